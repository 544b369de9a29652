import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.evaluation.totals import plan_totals
from neuroshard_pipeline.report import figures
from report.conftest import titled_axes, without_plans


def picture_of(inputs):
    tables = inputs.plans, inputs.plan_costs, inputs.sharding_tasks
    return figures.plan_picture(*tables, "task-4x-001", "dim_greedy", "neuroshard")


@pytest.fixture(scope="module")
def picture(built_inputs):
    return picture_of(built_inputs)


@pytest.fixture(scope="module")
def whole_picture(built_whole):
    return picture_of(built_whole)


def test_cost_axes_name_their_unit(drawn):
    for name in ("cost_per_sharder", "plan_accuracy", "rank_accuracy", "held_out_accuracy"):
        assert all("ms" in title for title in titled_axes(drawn[name], "x")), name
    assert titled_axes(drawn["plan_picture"], "y") == ["columns", "measured cost, ms", "memory, %"]


def test_bars_are_means_over_common_tasks(inputs):
    """One sharder has no plan for one of the tasks, which therefore is in no bar."""
    plan_costs = without_plans(inputs, {("task-8x-001", "random")}).plan_costs
    figure = figures.cost_per_sharder(plan_costs)
    bars = {bar.y[0].split("<br>")[0]: bar.x[0] for bar in figure.data if bar.type == "bar"}
    common = plan_totals(plan_costs).query("task_id != 'task-8x-001'")
    means = common.groupby("sharder")["measured_step_ms"].mean().rename({"neuroshard": "<b>neuroshard</b>"})
    assert bars == pytest.approx(means.to_dict())
    assert list(bars.values()) == sorted(bars.values())


def test_predictions_are_drawn_and_named_so_where_nothing_was_measured(inputs):
    plan_costs = inputs.plan_costs.assign(measured_step_ms=np.nan)
    figure = figures.cost_per_sharder(plan_costs)
    assert "predicted step, ms" in titled_axes(figure, "x")
    assert sum(bar.type == "bar" for bar in figure.data) == 6


def test_plan_picture_shows_every_column_of_every_table_once(inputs, picture):
    tables = inputs.sharding_tasks.query("task_id == 'task-4x-001'")
    shards = [bar for bar in picture.data if bar.base is not None]
    assert [sum(bar.y) for bar in shards] == [tables["embedding_dim"].sum()] * 2
    assert [len(bar.y) for bar in shards] == [40, 41]
    for bar in shards:  # stacked without gaps or overlaps
        tops = {}
        for rank, base, width in zip(bar.x, bar.base, bar.y, strict=True):
            assert base == tops.get(rank, 0)
            tops[rank] = base + width


def test_plan_picture_gives_colours_only_to_the_parts_of_a_split_table(picture):
    before, after = (bar for bar in picture.data if bar.base is not None)
    assert not [colour for colour in before.marker.color if colour.startswith("#")]
    assert len([colour for colour in after.marker.color if colour.startswith("#")]) == 2


def test_plan_picture_refuses_a_task_without_plan(inputs):
    with pytest.raises(PlanError, match=r"task-4x-000 has no plan by 'torchrec'; it has plans by dim_greedy"):
        figures.plan_picture(
            inputs.plans, inputs.plan_costs, inputs.sharding_tasks, "task-4x-000", "torchrec", "random"
        )


def test_sharders_without_a_fixed_colour_get_different_colours(inputs):
    renamed = inputs.plan_costs.replace({"sharder": {"random": "mine", "dim_greedy": "yours"}})
    for figure in (figures.plan_accuracy(renamed), figures.rank_accuracy(renamed)):
        colours = {trace.name: trace.marker.color for trace in figure.data if trace.mode == "markers"}
        assert len(set(colours.values())) == 6


def test_noise_floor_is_a_band_around_the_identity(inputs):
    with_band = figures.rank_accuracy(inputs.plan_costs, {"compute": 0.1})
    without = figures.rank_accuracy(inputs.plan_costs)
    assert len(with_band.data) == len(without.data) + 1
    band = next(trace for trace in with_band.data if trace.fill == "toself")
    assert list(band.y) == pytest.approx([0, 0.9 * band.x[1], 1.1 * band.x[1], 0])


def test_large_held_out_frames_are_thinned(inputs):
    large = pd.concat([inputs.held_out] * 60, ignore_index=True)
    points = [len(trace.x) for trace in figures.held_out_accuracy(large).data if trace.mode == "markers"]
    assert len(points) == 5
    assert max(points) <= 1200


def test_the_plan_picture_shows_every_part(whole_picture):
    names = [trace.name for trace in whole_picture.data if trace.name]
    assert names.count("reductions") == 1  # dim_greedy's plan has none
    assert names.count("input dist") == names.count("TorchRec's module") == 2
    assert "replica" in names


def test_the_plan_picture_marks_the_step(whole, whole_picture):
    marked = {shape.y0 for shape in whole_picture.layout.shapes}
    totals = plan_totals(whole.plan_costs).set_index(["task_id", "sharder"])["measured_step_ms"]
    assert marked == {totals["task-4x-001", "dim_greedy"], totals["task-4x-001", "neuroshard"]}


def test_rows_and_types_of_shards_are_told(whole_picture):
    bars = [trace for trace in whole_picture.data if trace.text is not None and "columns" in trace.text[0]]
    texts = [text for bar in bars for text in bar.text]
    hatched = [sum(shape == "/" for shape in bar.marker.pattern.shape) for bar in bars]
    assert hatched == [0, 4]
    assert sum("data_parallel" in text for text in texts) == 4
    assert sum("row_wise" in text and "rows 0 to " in text for text in texts) == 1


def test_measured_reductions_have_a_panel_of_their_own(inputs, whole):
    panels = [len(figures.rank_accuracy(each.plan_costs).layout.annotations) for each in (inputs, whole)]
    assert panels == [5, 6]
