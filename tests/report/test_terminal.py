import pytest

from neuroshard_pipeline.report import part_table, summary_table


def test_columns_are_aligned_and_ascii(inputs):
    text = summary_table(inputs.summary)
    table = text.split("\n\n")[0].splitlines()
    assert len({len(line) for line in table}) == 1
    assert len(table) == 2 + 6
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 90


def test_the_cheapest_comes_first_with_its_measured_and_predicted_cost(inputs):
    first = summary_table(inputs.summary).splitlines()[2].split()
    ours = inputs.summary["sharders"]["neuroshard"]
    assert first[:2] == ["neuroshard", "5/5"]
    assert float(first[2]) == pytest.approx(ours["mean_measured_step_ms"], abs=0.006)
    assert float(first[4]) == pytest.approx(ours["mean_predicted_step_ms"], abs=0.006)


def test_parts_are_means_over_plans_and_ranks(inputs):
    lines = part_table(inputs.plan_costs).splitlines()
    assert len(lines) == 2 + 4
    costs = inputs.plan_costs.fillna(0.0)
    shown = {name.strip(): (float(predicted), float(measured)) for name, predicted, measured in map(_cells, lines[2:])}
    spans = shown["lookups, forward and backward"], shown["output dist and its backward, the module's own work"]
    rest = ["forward_comm", "backward_comm", "reduction", "module"]
    for found, parts in zip(spans, (["compute"], rest), strict=True):
        for ms, kind in zip(found, ("predicted", "measured"), strict=True):
            assert ms == pytest.approx(sum(costs[f"{kind}_{part}_ms"].mean() for part in parts), abs=0.006)


def _cells(line: str) -> list[str]:
    return line.rsplit(maxsplit=2)


def test_every_run_has_a_table(scenario):
    text = summary_table(scenario.summary)
    assert all(name in text for name in scenario.summary["sharders"])
    assert "nan" not in text
