"""`search.summary`: sharders compared on the tasks that every one of them solved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.cost_models.intervals import coverage, relative_width
from neuroshard_pipeline.evaluation.anchors import Drift, drifts_of_parts, without_drift
from neuroshard_pipeline.evaluation.bootstrap import Bootstrap
from neuroshard_pipeline.evaluation.pairs import OURS, told_pair
from neuroshard_pipeline.evaluation.plan_samples import MEASURED_COLUMNS, PREDICTED_COLUMNS

#: The usual confidence; with so many draws an end of the interval is off by less than a twentieth of its width.
_BOOTSTRAP = Bootstrap(confidence=0.95, resamples=2000, seed=0)
#: What is told against measured costs as they are and against those of the models' own campaign.
_NET_OF_DRIFT = ("mape", "bias", "coverage_90")
#: Fewer tasks say nothing of other tasks.
_LEAST_TASKS = 5


def embedding_costs(plan_costs: pd.DataFrame) -> pd.DataFrame:
    """Embedding cost of every plan: `task_id, sharder, predicted_ms, measured_ms`; NaN where a rank has no cost."""
    totals = plan_costs[["task_id", "sharder"]].assign(
        predicted_ms=plan_costs[PREDICTED_COLUMNS].sum(axis=1, skipna=False),
        measured_ms=plan_costs[MEASURED_COLUMNS].astype(float).sum(axis=1, skipna=False),
    )
    keys, values = ["task_id", "sharder"], ["predicted_ms", "measured_ms"]
    unknown = totals[values].isna().groupby([totals[key] for key in keys], sort=False).any()
    return totals.groupby(keys, sort=False)[values].max().mask(unknown).reset_index()


def summarise(
    plan_costs: pd.DataFrame,
    attempts: pd.DataFrame,
    intervals: pd.DataFrame | None = None,
    anchors: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Sharders side by side, ready for JSON.

    Averages over solved tasks would flatter a sharder that fails the expensive ones; the means here are therefore
    over the tasks that all sharders solved, and of these, for measured means, the ones measured for all.

    Args:
        plan_costs: `search.plan_costs`.
        attempts: `task_id, sharder, seconds, error`, as in `sharders.Solutions`.
        intervals: `search.plan_intervals`, or None.
        anchors: `search.anchors`, or None.

    Returns:
        `num_tasks`, `num_common_tasks`, `num_measured_tasks`, and per sharder under `sharders`: `tasks_solved,
        tasks_tried, mean_predicted_ms, mean_measured_ms` (None where there is none), `mean_seconds_per_task`,
        `max_seconds_per_task` and `failures`, the error message of every task not solved;
        `prediction_on_plans`, see `prediction_errors`; and `pairs`, each of ours against every other sharder by
        measured cost, or by predicted cost where nothing was measured (`pairs.told_pair`).
    """
    costs = embedding_costs(plan_costs)
    names = list(dict.fromkeys(attempts["sharder"]))
    predicted = _common(costs.pivot_table(index="task_id", columns="sharder", values="predicted_ms"), names)
    measured = _common(costs.pivot_table(index="task_id", columns="sharder", values="measured_ms"), names)
    solved = _solved_by_all(attempts)
    return {
        "num_tasks": int(attempts["task_id"].nunique()),
        "num_common_tasks": len(solved),
        "num_measured_tasks": len(measured),
        "sharders": {
            name: {
                **_attempts_of(attempts[attempts["sharder"] == name]),
                "mean_predicted_ms": _mean(predicted, name),
                "mean_measured_ms": _mean(measured, name),
            }
            for name in names
        },
        "prediction_on_plans": prediction_errors(plan_costs, intervals, anchors),
        "pairs": _pairs(costs, names),
    }


def _pairs(costs: pd.DataFrame, names: list[str]) -> list[dict[str, Any]]:
    basis = "measured" if costs["measured_ms"].notna().any() else "predicted"
    table = costs.pivot_table(index="task_id", columns="sharder", values=f"{basis}_ms").reindex(columns=names)
    return [
        told_pair("search", basis, table, ours, rival, _BOOTSTRAP, _LEAST_TASKS)
        for ours in OURS
        for rival in names
        if ours in names and rival != ours
    ]


def prediction_errors(
    plan_costs: pd.DataFrame, intervals: pd.DataFrame | None = None, anchors: pd.DataFrame | None = None
) -> dict[str, dict[str, float | int]]:
    """How well the cost models hold on the plans that were made, which is what they are for.

    Args:
        plan_costs: `search.plan_costs`; rows without a measured cost (an empty rank, a failure) are left out.
        intervals: `search.plan_intervals`, or None where there are none.
        anchors: `search.anchors`, or None where none were measured.

    Returns:
        Under `compute`, `forward_comm` and `backward_comm`, rank by rank, and under `embedding_cost`, plan by plan:
        `mape` (mean |predicted - measured| / measured), `bias` (the same with its sign) and `count`. With intervals,
        for the three parts, `coverage_90` and `mean_relative_width`. With anchors, `drift` (the share by which the
        median one has become dearer since the models' samples were measured), and `mape`, `bias` and `coverage_90`
        once more as `<figure>_net_of_drift`, against what the plans would have cost then. A part that was not measured
        is left out.
    """
    figures = _figures(plan_costs, intervals)
    for part, error in _errors(plan_costs).items():
        figures[part] |= {"count": len(error)}
    drifts = {} if anchors is None else drifts_of_parts(anchors)
    if drifts:
        for part, found in _figures(_without_drift(plan_costs, drifts), intervals).items():
            figures[part] |= {f"{name}_net_of_drift": found[name] for name in _NET_OF_DRIFT if name in found}
    for part, drift in drifts.items():
        if part in figures:
            figures[part] |= {"drift": drift.ratio - 1}
    return figures


def _figures(plan_costs: pd.DataFrame, intervals: pd.DataFrame | None) -> dict[str, dict[str, float | int]]:
    """Errors and, with intervals, coverage and width, per part of the cost."""
    figures: dict[str, dict[str, float | int]] = {
        name: {"mape": float(error.abs().mean()), "bias": float(error.mean())}
        for name, error in _errors(plan_costs).items()
    }
    for part, found in _interval_figures(plan_costs, intervals).items():
        figures[part] |= found
    return figures


def _errors(plan_costs: pd.DataFrame) -> dict[str, pd.Series]:
    """Relative errors with their sign, per part of the cost and of the whole; parts without any are left out."""
    totals = embedding_costs(plan_costs)
    pairs = {
        **{
            name.removeprefix("predicted_").removesuffix("_ms"): (plan_costs[name], plan_costs[measured].astype(float))
            for name, measured in zip(PREDICTED_COLUMNS, MEASURED_COLUMNS, strict=True)
        },
        "embedding_cost": (totals["predicted_ms"], totals["measured_ms"].astype(float)),
    }
    errors = {name: ((predicted - measured) / measured)[measured > 0] for name, (predicted, measured) in pairs.items()}
    return {name: error for name, error in errors.items() if len(error)}


def _without_drift(plan_costs: pd.DataFrame, drifts: dict[str, Drift]) -> pd.DataFrame:
    """Plan costs as the models' own campaign would have measured them."""
    return without_drift(plan_costs, {f"measured_{part}_ms": drift for part, drift in drifts.items()})


def _interval_figures(plan_costs: pd.DataFrame, intervals: pd.DataFrame | None) -> dict[str, dict[str, float]]:
    """Coverage and relative width per part, over the ranks that have a measured cost."""
    if intervals is None:
        return {}
    both = plan_costs.merge(intervals, on=["task_id", "sharder", "rank"])
    figures = {}
    for predicted, measured in zip(PREDICTED_COLUMNS, MEASURED_COLUMNS, strict=True):
        part = predicted.removeprefix("predicted_").removesuffix("_ms")
        known = both[both[measured].astype(float) > 0]
        if len(known):
            bounds = known[[f"low_{part}_ms", f"high_{part}_ms"]].to_numpy(dtype=float)
            figures[part] = {
                "coverage_90": coverage(known[measured].to_numpy(dtype=float), bounds),
                "mean_relative_width": relative_width(known[predicted].to_numpy(dtype=float), bounds),
            }
    return figures


def _solved_by_all(attempts: pd.DataFrame) -> list[str]:
    failed = set(attempts.loc[attempts["error"].notna(), "task_id"])
    return [task for task in dict.fromkeys(attempts["task_id"]) if task not in failed]


def _common(table: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Rows (tasks) with a cost for every sharder."""
    return table.reindex(columns=names).dropna()


def _mean(table: pd.DataFrame, name: str) -> float | None:
    values = table[name].to_numpy(dtype=float)
    return float(np.mean(values)) if len(values) else None


def _attempts_of(attempts: pd.DataFrame) -> dict[str, Any]:
    failed = attempts[attempts["error"].notna()]
    return {
        "tasks_solved": len(attempts) - len(failed),
        "tasks_tried": len(attempts),
        "mean_seconds_per_task": float(attempts["seconds"].mean()),
        "max_seconds_per_task": float(attempts["seconds"].max()),
        "failures": dict(zip(failed["task_id"], failed["error"], strict=True)),
    }
