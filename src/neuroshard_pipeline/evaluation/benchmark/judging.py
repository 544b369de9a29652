"""`benchmark.judgement`: who is best on which suite, by how much, and whether that can be said at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.benchmark.params import JudgeParams
from neuroshard_pipeline.evaluation.bootstrap import Bootstrap, Interval
from neuroshard_pipeline.evaluation.pairs import OURS, told_pair

Basis = Literal["measured", "predicted"]


def judge(costs: pd.DataFrame, params: JudgeParams) -> dict[str, Any]:
    """Suite by suite, ready for JSON.

    Args:
        costs: `benchmark.task_costs`.
        params: of intervals and verdicts.

    Returns:
        `confidence`, `resamples`, and under `suites`, for each: `tasks`; `feasible_tasks`, those that anyone solved;
        `basis`, `measured` or `predicted`; `compared`, the sharders that solved enough; `common_tasks`, the tasks that
        all of these solved and that have a cost for each; `best`, the sharder that is cheaper than every other one
        by its interval, or None; `not_told_apart`, those whose interval against the cheapest mean holds 1; `not_run`,
        sharders that run on other suites only; per sharder
        under `sharders` what `_sharder` says; under `pairs`, for each of `OURS` and every other sharder, on all tasks
        that these two solved: `tasks`, `ratio` (of means, ours over the rival's), `low`, `high`, `verdict` (`cheaper`,
        `dearer`, `not told apart`, `too few tasks`) and `statement`; under `groups`, mean costs on the common tasks.
    """
    everyone = list(dict.fromkeys(costs["sharder"]))
    suites = {
        str(suite): _judge_suite(str(suite), own, params)
        | {"not_run": [name for name in everyone if name not in set(own["sharder"])]}
        for suite, own in costs.groupby("suite", sort=False)
    }
    return {"confidence": params.confidence, "resamples": params.resamples, "suites": suites}


def basis_of(costs: pd.DataFrame) -> Basis:
    """A suite is judged by measurement where any of its plans was measured."""
    return "measured" if costs["measured_ms"].notna().any() else "predicted"


def cost_table(costs: pd.DataFrame) -> pd.DataFrame:
    """Cost in ms by task and sharder, on the basis of the suite; NaN where a task was not solved with every seed."""
    solved = costs[costs["solved"]]
    wide = solved.pivot_table(index="task_id", columns="sharder", values=f"{basis_of(costs)}_ms", sort=False)
    return wide.reindex(columns=list(dict.fromkeys(costs["sharder"])))


def _judge_suite(suite: str, costs: pd.DataFrame, params: JudgeParams) -> dict[str, Any]:
    names = list(dict.fromkeys(costs["sharder"]))
    share = costs.groupby("sharder")["solved"].mean()
    compared = [name for name in names if share[name] > 0 and share[name] >= params.least_success]
    table = cost_table(costs)
    common = table[compared].dropna()
    bootstrap = Bootstrap(params.confidence, params.resamples, params.seed)
    best, level = _best(common, bootstrap, params.least_tasks)
    basis = basis_of(costs)
    return {
        "tasks": int(costs["task_id"].nunique()),
        "feasible_tasks": int(costs.groupby("task_id")["solved"].any().sum()),
        "basis": basis,
        "compared": compared,
        "common_tasks": len(common),
        "best": best,
        "not_told_apart": level,
        "sharders": {name: _sharder(costs, name, common, bootstrap, params.least_tasks) for name in names},
        "pairs": [
            told_pair(suite, basis, table, ours, rival, bootstrap, params.least_tasks)
            for ours in OURS
            for rival in names
            if ours in names and rival != ours
        ],
        "groups": _groups(costs, common),
    }


def _sharder(
    costs: pd.DataFrame, name: str, common: pd.DataFrame, bootstrap: Bootstrap, least_tasks: int
) -> dict[str, Any]:
    """What the table shows of one sharder.

    `solved`, `tried` (tasks) and `seeds`; `seconds` and `max_seconds` of an attempt; on the common tasks `cost_ms`,
    `relative` (the mean cost over that of each task's cheapest plan, with its interval), `predicted_ms` and
    `imbalance`; all None where there are none.
    """
    own = costs[costs["sharder"] == name].set_index("task_id")
    facts: dict[str, Any] = {
        "solved": int(own["solved"].sum()),
        "tried": len(own),
        "seeds": int(own["seeds"].max()),
        "measured_seeds": int(own["measured_seeds"].max()),
        "seconds": _number(own["seconds"].mean()),
        "max_seconds": _number(own["seconds"].max()),
    }
    if name not in common.columns or common.empty:
        return facts | dict.fromkeys(("cost_ms", "relative", "predicted_ms", "imbalance"))
    relative = (common[name] / common.min(axis=1)).to_numpy()
    here = own.loc[common.index]
    return facts | {
        "cost_ms": _number(common[name].mean()),
        "relative": _told(bootstrap.mean(relative), len(common) >= least_tasks),
        "predicted_ms": _number(here["predicted_ms"].mean()),
        "imbalance": _number(here["imbalance"].mean()),
    }


def _best(common: pd.DataFrame, bootstrap: Bootstrap, least_tasks: int) -> tuple[str | None, list[str]]:
    """The sharder that is surely cheapest, if any, and those that may be as cheap as the cheapest mean."""
    if len(common) < least_tasks:
        return None, []
    first = str(common.mean().idxmin())
    level = [
        str(name)
        for name in common.columns
        if name == first or bootstrap.ratio_of_means(common[first].to_numpy(), common[name].to_numpy()).high >= 1.0
    ]
    return (first if level == [first] else None), level


def _told(interval: Interval, enough: bool) -> dict[str, float | None]:
    """The estimate, with its interval only where enough tasks stand behind it."""
    ends = asdict(interval)
    return ends if enough else ends | {"low": None, "high": None}


def _groups(costs: pd.DataFrame, common: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Per group its tasks, how many of them each sharder solved, and mean costs on the common ones."""
    groups = {}
    for group, own in costs.groupby("group", sort=False):
        shared = common.loc[common.index.isin(own["task_id"])]
        solved: Mapping[Any, Any] = own.groupby("sharder", sort=False)["solved"].sum().astype(int).to_dict()
        means: Mapping[Any, Any] = {str(name): _number(shared[name].mean()) for name in shared.columns}
        groups[str(group)] = {
            "tasks": int(own["task_id"].nunique()),
            "common_tasks": len(shared),
            "solved": {str(name): int(count) for name, count in solved.items()},
            "cost_ms": means,
        }
    return groups


def _number(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def best_rival(judged: Mapping[str, Any], excluded: Sequence[str] = OURS) -> str | None:
    """Of a judged suite, the sharder other than `excluded` with the lowest mean cost on the common tasks."""
    costs = {
        name: values["cost_ms"]
        for name, values in judged["sharders"].items()
        if name not in excluded and values["cost_ms"] is not None
    }
    return min(costs, key=costs.__getitem__) if costs else None


def find_pair(judged: Mapping[str, Any], ours: str, rival: str | None) -> Mapping[str, Any] | None:
    """The pair of a judged suite, or None."""
    return next((pair for pair in judged["pairs"] if (pair["ours"], pair["rival"]) == (ours, rival)), None)
