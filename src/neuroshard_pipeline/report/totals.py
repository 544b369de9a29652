"""Compares plans by their embedding costs. The argument `totals` is always the result of `plan_totals`."""

import pandas as pd

from neuroshard_pipeline.evaluation.comparison import OURS, Basis
from neuroshard_pipeline.evaluation.totals import COST_COLUMNS, basis_of


def relative_to_best(totals: pd.DataFrame, basis: Basis) -> pd.DataFrame:
    """Add `relative`: the plan's cost divided by that of the task's cheapest plan. Plans without a cost are dropped."""
    column = COST_COLUMNS[basis]
    known = totals.dropna(subset=[column])
    best = known.groupby("task_id", observed=True)[column].transform("min")
    return known.assign(relative=known[column] / best)


def by_cost(totals: pd.DataFrame) -> list[str]:
    """Sharders from cheapest to most expensive, by their mean `relative` cost over the tasks that they solved."""
    means = relative_to_best(totals, basis_of(totals)).groupby("sharder", observed=True)["relative"].mean()
    missing = [name for name in dict.fromkeys(totals["sharder"]) if name not in means.index]
    return [*means.sort_values(kind="stable").index, *missing]


def example_task(totals: pd.DataFrame) -> tuple[str, str, str] | None:
    """An example for the report: the task with the median ratio of the costs of `after` and `before`.

    Returns:
        `(task_id, before, after)`: `after` is a sharder of `OURS`, and `before` is the cheapest sharder on this task
        that is not in `OURS`. If no task was solved by both kinds of sharders, `before` is the most expensive sharder
        and `after` the cheapest. None if no task has two plans.
    """
    column = COST_COLUMNS[basis_of(totals)]
    tasks = totals.dropna(subset=[column]).groupby("task_id", sort=False)
    costs = {str(name): task.set_index("sharder")[column].sort_values(kind="stable") for name, task in tasks}
    examples = [_example(name, cost) for name, cost in costs.items() if 0 < cost.index.isin(OURS).sum() < len(cost)]
    examples = examples or [_example(name, cost) for name, cost in costs.items() if len(cost) > 1]
    return sorted(examples)[len(examples) // 2][1:] if examples else None


def _example(task_id: str, cost: pd.Series) -> tuple[float, str, str, str]:
    """`(cost after / cost before, task_id, before, after)` of a task; `cost` is by sharder, the cheapest first."""
    ours = [name for name in OURS if name in cost.index]
    others = [name for name in cost.index if name not in OURS]
    before, after = (others[0], ours[0]) if ours and others else (cost.index[-1], cost.index[0])
    return float(cost[after] / cost[before]), task_id, str(before), str(after)
