"""`search.summary`: sharders compared on the tasks that every one of them solved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.sharders.evaluation import MEASURED_COLUMNS, PREDICTED_COLUMNS


def embedding_costs(plan_costs: pd.DataFrame) -> pd.DataFrame:
    """Embedding cost of every plan: `task_id, sharder, predicted_ms, measured_ms`; NaN where a rank has no cost."""
    totals = plan_costs[["task_id", "sharder"]].assign(
        predicted_ms=plan_costs[PREDICTED_COLUMNS].sum(axis=1, skipna=False),
        measured_ms=plan_costs[MEASURED_COLUMNS].astype(float).sum(axis=1, skipna=False),
    )
    keys, values = ["task_id", "sharder"], ["predicted_ms", "measured_ms"]
    unknown = totals[values].isna().groupby([totals[key] for key in keys], sort=False).any()
    return totals.groupby(keys, sort=False)[values].max().mask(unknown).reset_index()


def summarise(plan_costs: pd.DataFrame, attempts: pd.DataFrame) -> dict[str, Any]:
    """Sharders side by side, ready for JSON.

    Averages over solved tasks would flatter a sharder that fails the expensive ones; the means here are therefore
    over the tasks that all sharders solved, and of these, for measured means, the ones measured for all.

    Args:
        plan_costs: `search.plan_costs`.
        attempts: `task_id, sharder, seconds, error`, as in `sharders.Solutions`.

    Returns:
        `num_tasks`, `num_common_tasks`, `num_measured_tasks`, and per sharder under `sharders`: `tasks_solved,
        tasks_tried, mean_predicted_ms, mean_measured_ms` (None where there is none), `mean_seconds_per_task`,
        `max_seconds_per_task` and `failures`, the error message of every task not solved; and
        `prediction_on_plans`, see `prediction_errors`.
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
        "prediction_on_plans": prediction_errors(plan_costs),
    }


def prediction_errors(plan_costs: pd.DataFrame) -> dict[str, dict[str, float | int]]:
    """How well the cost models hold on the plans that were made, which is what they are for.

    Args:
        plan_costs: `search.plan_costs`; rows without a measured cost (an empty rank, a failure) are left out.

    Returns:
        Under `compute`, `forward_comm` and `backward_comm`, rank by rank, and under `embedding_cost`, plan by plan:
        `mape` (mean |predicted - measured| / measured), `bias` (the same with its sign) and `count`. A part that
        was not measured is left out.
    """
    totals = embedding_costs(plan_costs)
    pairs = {
        **{
            name.removeprefix("predicted_").removesuffix("_ms"): (plan_costs[name], plan_costs[measured].astype(float))
            for name, measured in zip(PREDICTED_COLUMNS, MEASURED_COLUMNS, strict=True)
        },
        "embedding_cost": (totals["predicted_ms"], totals["measured_ms"].astype(float)),
    }
    errors = {name: ((predicted - measured) / measured)[measured > 0] for name, (predicted, measured) in pairs.items()}
    return {
        name: {"mape": float(error.abs().mean()), "bias": float(error.mean()), "count": len(error)}
        for name, error in errors.items()
        if len(error)
    }


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
