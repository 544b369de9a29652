"""`search.summary`: compares sharders by mean costs over the same tasks and in pairs, and states the noise."""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.cost_models.metrics import kendall_tau
from neuroshard_pipeline.evaluation.comparison import Basis, Bootstrap, Comparison
from neuroshard_pipeline.evaluation.prediction_errors import prediction_errors
from neuroshard_pipeline.evaluation.steps import resolution
from neuroshard_pipeline.evaluation.totals import COST_COLUMNS, basis_of, cost_table, number, plan_totals

#: With this many resamples the ends of an interval are accurate to a twentieth of its width.
_BOOTSTRAP = Bootstrap(confidence=0.95, resamples=2000, seed=0)
#: Fewer tasks do not support a statement about other tasks.
_LEAST_TASKS = 5
#: A sharder that solves a smaller share of the tasks does not limit the common tasks, and has no mean cost.
_LEAST_SOLVED = 0.5
#: Tasks with fewer different plans have no rank correlation.
_LEAST_PLANS = 3


def summarise(
    plan_costs: pd.DataFrame, attempts: pd.DataFrame, intervals: pd.DataFrame, noise: Mapping[str, Any], judge: str
) -> dict[str, Any]:
    """Compare sharders on the common tasks: those with a cost of every sharder that solved at least half of the tasks.

    Args:
        plan_costs: `search.plan_costs`.
        attempts: `task_id, sharder, seconds, error`, as in `sharders.Solutions`.
        intervals: `search.plan_intervals`.
        noise: the result of `steps.noise_of`.
        judge: what the measured costs are, in words.

    Returns:
        Ready for JSON: `num_tasks, num_common_tasks`; `basis`, `measured` or `predicted`, the steps that are compared;
        `judge`; `world_sizes`; `pairs` (`Comparison.compare_ours`); `agreement` (`_agreement`); `prediction_on_plans`
        (`prediction_errors`); `noise`, with `resolution` (`steps.resolution`); and `sharders`, by name: `tasks_solved,
        tasks_tried`, `mean_measured_step_ms, mean_predicted_step_ms` (None if it is not compared),
        `mean_seconds_per_task, max_seconds_per_task`, and `failures`, the error of every unsolved task.
    """
    totals, names = plan_totals(plan_costs), list(dict.fromkeys(attempts["sharder"]))
    basis = basis_of(totals)
    tables = {kind: cost_table(totals, names, column) for kind, column in COST_COLUMNS.items()}
    compared = [name for name in names if len(tables[basis]) and tables[basis][name].notna().mean() >= _LEAST_SOLVED]
    common = tables[basis][compared].dropna().index[: None if compared else 0]
    return {
        "num_tasks": int(attempts["task_id"].nunique()),
        "num_common_tasks": len(common),
        "basis": basis,
        "judge": judge,
        "world_sizes": sorted({int(size) for size in totals["world_size"]}),
        "sharders": {
            name: _means_of(name, tables, common if name in compared else None)
            | _attempts_of(attempts[attempts["sharder"] == name])
            for name in names
        },
        "pairs": Comparison(_BOOTSTRAP, _LEAST_TASKS, basis).compare_ours(tables[basis], names),
        "agreement": _agreement(totals, noise["per_task"]),
        "prediction_on_plans": prediction_errors(plan_costs, intervals),
        "noise": {**noise, "resolution": resolution(noise, len(common))},
    }


def _means_of(name: str, tables: Mapping[Basis, pd.DataFrame], common: pd.Index | None) -> dict[str, float | None]:
    """Mean measured and predicted step of a sharder over the common tasks; None if it is not compared on them."""
    means = {
        kind: np.nan if common is None else table[name].reindex(common).mean(skipna=False)
        for kind, table in tables.items()
    }
    return {f"mean_{kind}_step_ms": number(float(mean)) for kind, mean in means.items()}


def _agreement(totals: pd.DataFrame, noise_per_task: float | None) -> dict[str, Any]:
    """How well predicted and measured steps of different plans agree.

    Returns:
        `plans`, their number; `median_ratio`, median of predicted / measured; `median_error`, median of |ratio - 1|;
        `tau`, Kendall's tau-b of predicted and measured steps within a task, averaged over the tasks; `tau_limit`, the
        same for a prediction without error (`_tau_limit`).
    """
    # Sharders with the same plan of a task share its two costs.
    known = totals.dropna(subset=[*COST_COLUMNS.values()]).drop_duplicates(["task_id", *COST_COLUMNS.values()])
    ratio = known["predicted_step_ms"] / known["measured_step_ms"]
    tasks = [own for _, own in known.groupby("task_id") if len(own) >= _LEAST_PLANS]
    taus = [kendall_tau(own["measured_step_ms"], own["predicted_step_ms"]) for own in tasks]
    limits = [_tau_limit(own["measured_step_ms"], noise_per_task) for own in tasks if noise_per_task]
    return {
        "plans": len(known),
        "median_ratio": number(ratio.median()),
        "median_error": number((ratio - 1.0).abs().median()),
        "tau": number(float(np.mean([tau for tau in taus if np.isfinite(tau)] or [np.nan]))),
        "tau_limit": number(float(np.mean(limits or [np.nan]))),
    }


def _tau_limit(measured_ms: pd.Series, noise: float) -> float:
    """Expected tau of true and measured steps; `noise` is the deviation of the log ratio of two measurements."""
    # It is too high if the true steps differ by much less than the noise.
    pairs = combinations(np.log(measured_ms), 2)
    return float(np.mean([math.erf(abs(one - other) / (math.sqrt(2.0) * noise)) for one, other in pairs]))


def _attempts_of(attempts: pd.DataFrame) -> dict[str, Any]:
    failed = attempts[attempts["error"].notna()]
    return {
        "tasks_solved": len(attempts) - len(failed),
        "tasks_tried": len(attempts),
        "mean_seconds_per_task": float(attempts["seconds"].mean()),
        "max_seconds_per_task": float(attempts["seconds"].max()),
        "failures": dict(zip(failed["task_id"], failed["error"], strict=True)),
    }
