"""`benchmark.task_costs` and `benchmark.verdicts`: the costs of all sharders on all tasks, compared suite by suite.

The common tasks of a suite are those for which every compared sharder has a cost. Sharders that solve too few tasks of
the suite are not compared on them (`least_success`).
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd
from pydantic import Field

from neuroshard_pipeline.evaluation.comparison import OURS, Bootstrap, Comparison
from neuroshard_pipeline.evaluation.suites import SUITE_COLUMNS, suite_of_tasks
from neuroshard_pipeline.evaluation.totals import COST_COLUMNS, basis_of, cost_table, number, plan_totals
from neuroshard_pipeline.parameters import Parameters

_KEYS = ["task_id", "sharder"]
_MEANS = ("predicted_step_ms", "paper_cost_ms")


class VerdictParams(Parameters):
    """Parameters of confidence intervals and verdicts.

    Attributes:
        confidence: confidence level of the intervals.
        resamples: number of bootstrap resamples.
        least_tasks: minimum number of compared tasks for a confidence interval and a verdict.
        least_success: a sharder that solves a smaller share of the tasks of a suite does not count for the common
            tasks; otherwise they would be few.
        seed: seed of the bootstrap.
    """

    confidence: float = Field(gt=0, lt=1)
    resamples: int = Field(ge=100, le=100_000)
    least_tasks: int = Field(ge=2)
    least_success: float = Field(ge=0, le=1)
    seed: int = Field(ge=0)


def task_costs(tasks: pd.DataFrame, attempts: pd.DataFrame, plan_costs: pd.DataFrame) -> pd.DataFrame:
    """`benchmark.task_costs`: one row per task and sharder.

    Returns:
        `suite, group, is_measured, task_id, sharder`; `solved`, whether the sharder found a plan; `seconds` and `error`
        of the attempt; and `predicted_step_ms`, `paper_cost_ms` and `measured_step_ms` of the plan (see
        `totals.plan_totals`), NaN without one.
    """
    totals = plan_totals(plan_costs).set_index(_KEYS)[[*_MEANS, "measured_step_ms"]]
    frame = attempts.assign(solved=attempts["error"].isna()).join(totals, on=_KEYS)
    frame = frame.merge(suite_of_tasks(tasks), left_on="task_id", right_index=True)
    first = [*SUITE_COLUMNS, *_KEYS]
    return frame[[*first, *(column for column in frame.columns if column not in first)]]


def compare_suites(costs: pd.DataFrame, noise: dict[str, Any], judge: str, params: VerdictParams) -> dict[str, Any]:
    """`benchmark.verdicts`: compare the sharders suite by suite; the result is ready for JSON.

    `costs` are `benchmark.task_costs`, `noise` is that of `steps.noise_of`, and `judge` says what measured costs are.

    Returns:
        `confidence`, `resamples`, `noise`, `judge` and `suites`, which maps every suite to the result of
        `compare_suite` extended by `not_run`, the sharders that ran on other suites only.
    """
    everyone = list(dict.fromkeys(costs["sharder"]))
    suites = {}
    for suite, own in costs.groupby("suite", sort=False):
        not_run = [name for name in everyone if name not in set(own["sharder"])]
        suites[str(suite)] = compare_suite(own, params) | {"not_run": not_run}
    told = {"confidence": params.confidence, "resamples": params.resamples, "noise": noise, "judge": judge}
    return told | {"suites": suites}


def compare_suite(costs: pd.DataFrame, params: VerdictParams) -> dict[str, Any]:
    """Compare the sharders on the tasks of one suite.

    Returns:
        `tasks`, `feasible_tasks` and `unmeasured_tasks`, the numbers of all tasks, of those that at least one sharder
        solved, and of those whose plans are not measured; `basis`, `measured` or `predicted`; `compared`, the sharders
        that solved enough tasks; `common_tasks`, the number of tasks for which all compared sharders have a cost;
        `possibly_best`, the sharder with the lowest mean cost and those without a measurable difference from it (empty
        if there are fewer than `least_tasks` common tasks); `best`, the only sharder in `possibly_best`, or None;
        `sharders`, the results of `_sharder_facts` by name; `pairs`, the comparisons of each of `comparison.OURS` with
        every other sharder on all tasks for which both have a cost.
    """
    names = list(dict.fromkeys(costs["sharder"]))
    share = costs.groupby("sharder")["solved"].mean()
    compared = [name for name in names if share[name] > 0 and share[name] >= params.least_success]
    table = cost_table(costs[costs["solved"]], names, COST_COLUMNS[basis_of(costs)])
    common = table.loc[table[compared].notna().all(axis=1) & bool(compared), compared]
    bootstrap = Bootstrap(params.confidence, params.resamples, params.seed)
    comparison = Comparison(bootstrap, params.least_tasks, basis_of(costs))
    possibly_best = _possibly_best(common, bootstrap) if len(common) >= params.least_tasks else []
    return {
        "tasks": int(costs["task_id"].nunique()),
        "feasible_tasks": int(costs.groupby("task_id")["solved"].any().sum()),
        "unmeasured_tasks": int(costs.loc[~costs["is_measured"], "task_id"].nunique()),
        "basis": comparison.basis,
        "compared": compared,
        "common_tasks": len(common),
        "best": possibly_best[0] if len(possibly_best) == 1 else None,
        "possibly_best": possibly_best,
        "sharders": {name: _sharder_facts(costs, name, common, comparison) for name in names},
        "pairs": comparison.compare_ours(table, names),
    }


def best_rival(verdict: Mapping[str, Any]) -> str | None:
    """The sharder outside `OURS` with the lowest mean cost on the common tasks; None if no such sharder has a cost."""
    costs = {name: values["cost_ms"] for name, values in verdict["sharders"].items() if name not in OURS}
    known = {name: cost for name, cost in costs.items() if cost is not None}
    return min(known, key=known.__getitem__, default=None)


def find_pair(verdict: Mapping[str, Any], ours: str, rival: str | None) -> Mapping[str, Any] | None:
    """The comparison of two sharders on a suite, or None if they were not compared."""
    return next((pair for pair in verdict["pairs"] if (pair["ours"], pair["rival"]) == (ours, rival)), None)


def _possibly_best(common: pd.DataFrame, bootstrap: Bootstrap) -> list[str]:
    """The sharder with the lowest mean cost, and those without a measurable difference from it."""
    cheapest = str(common.mean().idxmin())
    costs = {str(name): common[name].to_numpy() for name in common.columns}
    ours = costs[cheapest]
    return [name for name in costs if name == cheapest or bootstrap.ratio_of_means(ours, costs[name]).high >= 1.0]


def _sharder_facts(costs: pd.DataFrame, name: str, common: pd.DataFrame, comparison: Comparison) -> dict[str, Any]:
    """Results of one sharder on the tasks of one suite.

    Returns:
        `solved, tried`, numbers of tasks; `seconds, max_seconds`, mean and maximum over the tasks. The other values are
        means over the common tasks, or None if there are none or the sharder is not compared on them: `cost_ms`, the
        measured cost or, if the basis is `predicted`, the predicted cost of the step; `predicted_step_ms`,
        `paper_cost_ms`; and `relative` (the cost divided by the lowest cost of any compared sharder for
        the same task, with its confidence interval).
    """
    own = costs[costs["sharder"] == name].set_index("task_id")
    facts: dict[str, Any] = {
        "solved": int(own["solved"].sum()),
        "tried": len(own),
        "seconds": number(own["seconds"].mean()),
        "max_seconds": number(own["seconds"].max()),
    }
    if name not in common.columns or common.empty:
        return facts | dict.fromkeys(("cost_ms", "relative", *_MEANS))
    relative: dict[str, Any] = asdict(comparison.bootstrap.mean((common[name] / common.min(axis=1)).to_numpy()))
    if len(common) < comparison.least_tasks:
        relative |= {"low": None, "high": None}
    here = own.loc[common.index]
    return facts | {
        "cost_ms": number(common[name].mean()),
        "relative": relative,
        **{name: number(here[name].mean()) for name in _MEANS},
    }
