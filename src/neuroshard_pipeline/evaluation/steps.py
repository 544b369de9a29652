"""Reduces timed steps of plans to costs, and states how far two measurements of the same plan differ.

A judge (`torchrec_bridge.truth`) times steps of the embedding modules under plans, and returns one row per step and
rank. Sharders that make the same plan of a task share one measurement. One plan of every task is measured twice, with
modules of its own each time; the second measurement shows the noise of the run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.comparison import OURS
from neuroshard_pipeline.search.plan import Plan

#: Name of the second measurement of a plan: the sharder's name with this ending.
AGAIN = " (again)"
#: Columns of timed steps that make up the measured parts of a rank. A part contains the waits of its collectives.
_PARTS = {
    "measured_compute_ms": ("lookup_forward_ms", "lookup_backward_ms"),
    "measured_forward_comm_ms": ("output_dist_ms",),
    "measured_backward_comm_ms": ("output_dist_backward_ms",),
    "measured_input_dist_ms": ("input_dist_ms",),
    "measured_module_ms": ("dense_optimizer_ms",),
}
_PLAN = ["task_id", "sharder"]
#: Share of differences that lie inside the resolution: two standard errors of a normal distribution.
_STANDARD_ERRORS = 1.96


def plans_to_time(plans: Sequence[Plan]) -> list[Plan]:
    """The different plans of every task, and one of them a second time under a name that ends with `AGAIN`.

    The repeated plan is that of our most thorough sharder, or the first one if none of ours has a plan.
    """
    found: list[Plan] = []
    for own in _by_task(plans).values():
        first = dict.fromkeys(same_as(own).values())
        different = [plan for plan in own if plan.sharder in first]
        ours = sorted(different, key=lambda plan: OURS.index(plan.sharder) if plan.sharder in OURS else len(OURS))
        found += [*different, replace(ours[0], sharder=ours[0].sharder + AGAIN)]
    return found


def measured_costs(steps: pd.DataFrame, plans: Sequence[Plan], quantile: float) -> pd.DataFrame:
    """Measured costs of plans: `task_id, sharder, rank`, the columns of `_PARTS` and `measured_step_ms`.

    The cost of a plan is the quantile of its timed steps; the time of a step is that of its slowest rank. The parts of
    a rank are the same quantile of the rank's parts.

    Args:
        steps: timed steps of `plans_to_time(plans)`, as a judge returns them; plans without steps get no rows.
        plans: the plans; those of one task with equal placements get the costs of one measurement.
        quantile: other programs disturb a low quantile less than the median, 0.5.
    """
    if steps.empty:
        return pd.DataFrame(columns=[*_PLAN, "rank", *_PARTS, "measured_step_ms"])
    timed = steps[steps["timed"]]
    other = timed["backward_ms"] - timed["lookup_backward_ms"] - timed["dense_optimizer_ms"]
    timed = timed.assign(output_dist_backward_ms=other)
    ranks = timed.assign(**{name: timed[list(columns)].sum(axis=1) for name, columns in _PARTS.items()})
    of_ranks = ranks.groupby([*_PLAN, "rank"], sort=False)[list(_PARTS)].quantile(quantile)
    costs = of_ranks.join(step_costs(steps, quantile).rename("measured_step_ms")).reset_index()
    same = pd.DataFrame(
        [
            (task_id, sharder, first)
            for task_id, own in _by_task(plans).items()
            for sharder, first in same_as(own).items()
        ],
        columns=[*_PLAN, "first"],
    )
    return same.merge(costs, left_on=["task_id", "first"], right_on=_PLAN, suffixes=("", "_timed"))[
        [*_PLAN, "rank", *_PARTS, "measured_step_ms"]
    ]


def step_costs(steps: pd.DataFrame, quantile: float) -> pd.Series:
    """The quantile of the ms of every plan's timed steps, by task and sharder."""
    slowest = steps[steps["timed"]].groupby([*_PLAN, "round", "step"], sort=False)["step_ms"].max()
    return slowest.groupby(_PLAN, sort=False).quantile(quantile)


def noise_of(steps: pd.DataFrame, quantile: float) -> dict[str, Any]:
    """How far two measurements of the same plan differ.

    Returns:
        `tasks`, the number of plans that were measured twice; `difference`, the median of their relative differences;
        `per_task`, the root mean square of the logarithms of the ratios; `other_programs`, the share of the cores that
        other programs used meanwhile. The last three are None if they are not known.
    """
    unknown = {"tasks": 0, "difference": None, "per_task": None, "other_programs": None}
    if steps.empty:
        return unknown
    share = steps.groupby("task_id")["other_programs"].mean().median() if "other_programs" in steps else np.nan
    costs = step_costs(steps, quantile).reset_index()
    again = costs[costs["sharder"].str.endswith(AGAIN)]
    again = again.assign(sharder=again["sharder"].str.removesuffix(AGAIN))
    both = costs.merge(again, on=_PLAN, suffixes=("", "_again"))
    ratios = (both["step_ms"] / both["step_ms_again"]).map(math.log)
    known = {"other_programs": None if pd.isna(share) else float(share)}
    if both.empty:
        return unknown | known
    size = {"difference": float(np.expm1(ratios.abs().median())), "per_task": float(np.sqrt((ratios**2).mean()))}
    return {"tasks": len(both)} | size | known


def resolution(noise: Mapping[str, Any], num_tasks: int) -> float | None:
    """The relative difference of two mean costs over `num_tasks` tasks that noise alone exceeds once in 20 runs."""
    if not num_tasks or noise["per_task"] is None:
        return None
    return float(np.expm1(_STANDARD_ERRORS * noise["per_task"] / np.sqrt(num_tasks)))


def _by_task(plans: Sequence[Plan]) -> dict[str, list[Plan]]:
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        found.setdefault(plan.task.task_id, []).append(plan)
    return found


def same_as(plans: Sequence[Plan]) -> dict[str, str]:
    """For the plans of one task, by sharder: the first sharder whose plan has the same placement, itself or another."""
    first: dict[Any, str] = {}
    return {
        plan.sharder: first.setdefault(frozenset(zip(plan.shards, plan.ranks, strict=True)), plan.sharder)
        for plan in plans
    }
