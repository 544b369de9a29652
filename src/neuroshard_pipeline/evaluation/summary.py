"""`search.summary`: compares sharders on the tasks that all of them solved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.comparison import Bootstrap, Comparison
from neuroshard_pipeline.evaluation.prediction_errors import prediction_errors
from neuroshard_pipeline.evaluation.totals import basis_of, plan_totals

#: With this many resamples the ends of an interval are accurate to a twentieth of its width.
_BOOTSTRAP = Bootstrap(confidence=0.95, resamples=2000, seed=0)
#: Fewer tasks do not support a statement about other tasks.
_LEAST_TASKS = 5


def summarise(
    plan_costs: pd.DataFrame,
    attempts: pd.DataFrame,
    intervals: pd.DataFrame | None = None,
    anchors: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Compare sharders; the result is ready for JSON.

    A mean over the tasks that a sharder solved favours a sharder that fails on expensive tasks. The means are therefore
    taken over the tasks that all sharders solved. Means of measured costs leave out tasks with a failed measurement.

    Args:
        plan_costs: `search.plan_costs`.
        attempts: `task_id, sharder, seconds, error`, as in `sharders.Solutions`.
        intervals: `search.plan_intervals`, or None.
        anchors: `search.anchors`, or None.

    Returns:
        `num_tasks`, `num_common_tasks`, `num_measured_tasks`. Per sharder under `sharders`: `tasks_solved,
        tasks_tried, mean_predicted_ms, mean_measured_ms` (None without tasks), `mean_seconds_per_task`,
        `max_seconds_per_task` and `failures`, the error message of every task that was not solved. Under
        `prediction_on_plans` the result of `prediction_errors`. Under `pairs` each of `comparison.OURS` compared with
        every other sharder, by measured cost, or by predicted cost if nothing was measured.
    """
    totals = plan_totals(plan_costs)
    names = list(dict.fromkeys(attempts["sharder"]))
    predicted, measured = (_cost_table(totals, names, kind) for kind in ("predicted", "measured"))
    basis = basis_of(totals)
    comparison = Comparison(_BOOTSTRAP, _LEAST_TASKS, basis)
    return {
        "num_tasks": int(attempts["task_id"].nunique()),
        "num_common_tasks": _tasks_solved_by_all(attempts),
        "num_measured_tasks": len(measured.dropna()),
        "sharders": {
            name: {
                **_attempts_of(attempts[attempts["sharder"] == name]),
                "mean_predicted_ms": _mean(predicted, name),
                "mean_measured_ms": _mean(measured, name),
            }
            for name in names
        },
        "prediction_on_plans": prediction_errors(plan_costs, intervals, anchors),
        "pairs": comparison.compare_ours(measured if basis == "measured" else predicted, names),
    }


def _cost_table(totals: pd.DataFrame, names: Sequence[str], kind: str) -> pd.DataFrame:
    """Cost in ms by task and sharder; NaN where there is none."""
    return totals.pivot_table(index="task_id", columns="sharder", values=f"{kind}_ms").reindex(columns=names)


def _mean(table: pd.DataFrame, name: str) -> float | None:
    """Mean over the tasks that have a cost for every sharder; None if there are none."""
    values = table.dropna()[name].to_numpy(dtype=float)
    return float(np.mean(values)) if len(values) else None


def _tasks_solved_by_all(attempts: pd.DataFrame) -> int:
    return int(attempts["error"].isna().groupby(attempts["task_id"]).all().sum())


def _attempts_of(attempts: pd.DataFrame) -> dict[str, Any]:
    failed = attempts[attempts["error"].notna()]
    return {
        "tasks_solved": len(attempts) - len(failed),
        "tasks_tried": len(attempts),
        "mean_seconds_per_task": float(attempts["seconds"].mean()),
        "max_seconds_per_task": float(attempts["seconds"].max()),
        "failures": dict(zip(failed["task_id"], failed["error"], strict=True)),
    }
