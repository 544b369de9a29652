"""`benchmark.task_costs`: what every sharder made of every task, one row each."""

from __future__ import annotations

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.benchmark.suites import SUITE_COLUMNS, suite_of_tasks
from neuroshard_pipeline.evaluation.plan_samples import MEASURED_COLUMNS, PREDICTED_COLUMNS

_PLAN = ["task_id", "sharder", "seed"]
_KEYS = ["task_id", "sharder"]


def task_costs(tasks: pd.DataFrame, attempts: pd.DataFrame, plan_costs: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds of a sharder.

    Args:
        tasks: `benchmark.tasks`.
        attempts: `benchmark.attempts`.
        plan_costs: `benchmark.plan_costs`.

    Returns:
        `suite, group, is_measured, task_id, sharder`; `seeds` tried and `seeds_solved`; `solved`, whether all were;
        `predicted_ms`, the mean over plans; `measured_ms`, the mean over the measured plans, NaN where there is none;
        `measured_seeds`; `imbalance`, the dearest rank's compute over the mean rank's, less 1 (measured where the plan
        is); `seconds` of one attempt; `error`, the first one.
    """
    grouped = attempts.groupby(_KEYS, sort=False)
    frame = pd.DataFrame(
        {
            "seeds": grouped.size(),
            "seeds_solved": grouped["error"].agg(lambda errors: int(errors.isna().sum())),
            "seconds": grouped["seconds"].mean(),
            "error": grouped["error"].first(),
        }
    )
    frame["solved"] = frame["seeds_solved"] == frame["seeds"]
    plans = _plans(plan_costs).groupby(_KEYS, sort=False)
    for column in ("predicted_ms", "measured_ms", "imbalance"):
        frame[column] = plans[column].mean()
    frame["measured_seeds"] = plans["measured_ms"].count()
    frame["measured_seeds"] = frame["measured_seeds"].fillna(0).astype(np.int64)
    frame = frame.reset_index().merge(suite_of_tasks(tasks), left_on="task_id", right_index=True)
    first = [*SUITE_COLUMNS, *_KEYS]
    return frame[[*first, *(column for column in frame.columns if column not in first)]]


def _plans(plan_costs: pd.DataFrame) -> pd.DataFrame:
    """`task_id, sharder, seed, predicted_ms, measured_ms, imbalance` of every plan; NaN where a rank lacks a cost."""
    ranks = plan_costs[_PLAN].assign(
        predicted_ms=plan_costs[PREDICTED_COLUMNS].sum(axis=1, skipna=False),
        measured_ms=plan_costs[MEASURED_COLUMNS].astype(float).sum(axis=1, skipna=False),
        measured_compute_ms=plan_costs["measured_compute_ms"].astype(float),
        predicted_compute_ms=plan_costs["predicted_compute_ms"],
    )
    grouped = ranks.groupby(_PLAN, sort=False)
    most, mean, known = grouped.max(), grouped.mean(), grouped.count().eq(grouped.size(), axis=0)
    measured, predicted = (
        most[f"{kind}_compute_ms"] / mean[f"{kind}_compute_ms"] - 1.0 for kind in ("measured", "predicted")
    )
    return pd.DataFrame(
        {
            "predicted_ms": most["predicted_ms"].where(known["predicted_ms"]),
            "measured_ms": most["measured_ms"].where(known["measured_ms"]),
            "imbalance": measured.where(known["measured_compute_ms"], predicted),
        }
    ).reset_index()
