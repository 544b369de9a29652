import dataclasses

import pytest

from neuroshard_pipeline.report import figures, refinement_table, render_report
from neuroshard_pipeline.report.refinement import refinement_costs, refinement_errors, refinement_verdict

PARTS = ("compute", "comm_forward", "comm_backward")


def errors(mape):
    return {part: {"mape": mape, "bias": -mape / 2, "count": 12} for part in PARTS}


def summary(**plans):
    rounds = [{"plans": 40, "compute_samples": 30, "comm_samples": 9, "drift": {}, "errors": {}}]
    sides = {
        "before": {"chosen": errors(0.09), "all": errors(0.08)},
        "after": {"chosen": errors(0.04), "all": errors(0.05)},
    }
    return {"run_id": "2026-01-01", "rounds": rounds, "errors": sides, "plans": plans, "drift": {}}


def plan(low, high, changes=None):
    changes = changes or {"one": low, "two": high}
    return {
        "tasks": len(changes), "before_ms": 3.5, "after_ms": 3.4, "change": (low + high) / 2, "interval": [low, high],
        "changes": changes, "better": 1, "worse": 1, "equal": 0,
    }  # fmt: skip


def test_errors_and_costs_stand_side_by_side():
    given = summary(neuroshard=plan(-0.03, -0.01))
    assert refinement_errors(given)[1] == ["compute", "9.0 %", "-4.5 %", "4.0 %", "-2.0 %", "8.0 %", "5.0 %"]
    assert refinement_costs(given)[1][:6] == ["neuroshard", "2", "3.500", "3.400", "-2.0 %", "-3.0 to -1.0 %"]
    text = refinement_table(given)
    assert "30 shard sets and 9 collectives of 40 plans" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.03, -0.01, "cheaper"), (0.01, 0.03, "dearer"), (-0.01, 0.02, "no difference")],
)
def test_the_verdict_follows_from_the_interval(low, high, verdict):
    assert verdict in refinement_verdict(summary(neuroshard=plan(low, high)))


def test_one_task_alone_gives_no_verdict():
    alone = {**plan(-0.1, -0.1, {"one": -0.1}), "interval": None}
    assert "too few" in refinement_verdict(summary(neuroshard=alone))
    assert figures.refinement(summary(neuroshard=alone)).data


def test_the_figure_has_a_bar_per_cost_and_a_point_per_task():
    drawn = figures.refinement(summary(neuroshard=plan(-0.03, 0.01), neuroshard_plus=plan(-0.02, 0.02)))
    bars = [trace for trace in drawn.data if trace.type == "bar"]
    assert [list(bar.y) for bar in bars] == [[9.0] * 3, [4.0] * 3]
    points = [trace for trace in drawn.data if trace.type == "box"]
    assert [list(trace.y) for trace in points] == [[-3.0, 1.0], [-2.0, 2.0]]


def test_the_report_shows_a_refinement_only_where_there_was_one(inputs):
    assert 'id="refinement"' not in render_report(inputs)
    page = render_report(dataclasses.replace(inputs, refinement=summary(neuroshard=plan(-0.03, -0.01))))
    assert 'id="refinement"' in page
    assert "run 2026-01-01" in page
    assert "measured plans became cheaper" in page


def test_the_drift_is_told_where_anchors_showed_it():
    assert "unknown, as no anchors were measured" in refinement_table(summary(neuroshard=plan(-0.03, -0.01)))
    drift = {"compute": {"backward_ms": {"ratio": 1.07, "anchors": 40}, "forward_ms": {"ratio": 1.0, "anchors": 0}}}
    told = refinement_table({**summary(neuroshard=plan(-0.03, -0.01)), "drift": drift})
    assert "plans were measured: backward lookups +7.0 %\n" in told
