import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.totals import plan_totals
from neuroshard_pipeline.report.sharder_summary import ranked_costs
from neuroshard_pipeline.report.totals import by_cost, example_task, relative_to_best


def totals_of(rows):
    return pd.DataFrame(rows, columns=["task_id", "sharder", "world_size", "predicted_step_ms", "measured_step_ms"])


def test_relative_to_best_is_one_for_the_cheapest_of_each_task(inputs):
    relative = relative_to_best(plan_totals(inputs.plan_costs), "measured")
    assert relative.groupby("task_id")["relative"].min().tolist() == [1.0] * 5


def test_sharders_are_ordered_by_cost(inputs):
    expected = ["neuroshard", "size_lookup_greedy", "lookup_greedy", "dim_greedy", "size_greedy", "random"]
    assert by_cost(plan_totals(inputs.plan_costs)) == expected
    assert list(ranked_costs(inputs.summary)) == expected


def test_the_example_task_has_the_median_saving():
    rows = []
    for task, ours in (("a", 0.9), ("b", 0.5), ("c", 0.7)):
        rows += [(task, "neuroshard", 4, ours, ours), (task, "dim_greedy", 4, 1, 1), (task, "random", 4, 2, 2)]
    assert example_task(totals_of(rows)) == ("c", "dim_greedy", "neuroshard")


def test_the_example_compares_the_most_thorough_search_with_a_sharder_that_is_not_ours():
    rows = [("a", "neuroshard", 4, 1.1, 1.1), ("a", "neuroshard_plus", 4, 1, 1), ("a", "random", 4, 3, 3)]
    assert example_task(totals_of(rows)) == ("a", "random", "neuroshard_plus")


def test_the_example_is_a_task_that_a_sharder_other_than_ours_solved_if_there_is_one():
    ours = (("neuroshard", 1.0), ("neuroshard_plus", 0.9))
    rows = [(task, name, 4, cost, cost) for task in "abc" for name, cost in ours]
    assert example_task(totals_of(rows)) == ("b", "neuroshard", "neuroshard_plus")
    assert example_task(totals_of([*rows, ("c", "random", 4, 1.2, 1.2)])) == ("c", "random", "neuroshard_plus")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], None),
        ([("a", "neuroshard", 4, 1, 1)], None),
        ([("a", "random", 4, 2, 2), ("a", "dim_greedy", 4, 1, 1)], ("a", "random", "dim_greedy")),
    ],
)
def test_the_example_of_plans_only_of_ours_or_only_of_others(rows, expected):
    assert example_task(totals_of(rows)) == expected
