"""What refinement was worth: errors on chosen shards and measured costs of plans, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from neuroshard_pipeline.evaluation.refinement.judging import Judged
from neuroshard_pipeline.evaluation.refinement.predictions import prediction_errors
from neuroshard_pipeline.evaluation.summary import embedding_costs

#: Names of the two pairs of cost models that are compared.
BEFORE, AFTER = "before", "after"

#: How sure the intervals of mean differences are.
CONFIDENCE = 0.95


def summarise_refinement(history: Sequence[dict[str, Any]], judged: Judged, run_id: str) -> dict[str, Any]:
    """Everything that a person wants to know of a refinement, ready for JSON.

    Args:
        history: of the rounds.
        judged: plans of the models `BEFORE` and `AFTER`.
        run_id: which run it was.

    Returns:
        `run_id`; `rounds`, the history; `drift` of the judging campaign; `errors`: per pair of models, `chosen` (on
        the samples that its own plans contain) and `all` (on those of all plans, the same for both), each as
        `predictions.prediction_errors`; `plans`: see `plan_changes`.
    """
    errors = {
        name: {"chosen": prediction_errors(rows[rows["chosen"]]), "all": prediction_errors(rows)}
        for name, rows in judged.predictions.groupby("models", sort=False)
    }
    return {
        "run_id": run_id,
        "rounds": list(history),
        "drift": judged.drift,
        "errors": errors,
        "plans": plan_changes(judged.plan_costs),
    }


def plan_changes(plan_costs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """How the measured embedding cost of plans changed, per sharder, over the tasks measured with both models.

    Args:
        plan_costs: with columns `models` and `sharder`.

    Returns:
        Per sharder `tasks`, `before_ms` and `after_ms` (means), `change` (mean of after / before - 1 over tasks),
        `interval` (the lowest and highest mean change that the tasks leave plausible, `CONFIDENCE`; None for one
        task), `changes` of every task, `better`, `worse` and `equal` (tasks), and the means that were predicted.
    """
    changes = {}
    for sharder, rows in plan_costs.groupby("sharder", sort=False):
        sides = {name: embedding_costs(rows[rows["models"] == name]).set_index("task_id") for name in (BEFORE, AFTER)}
        before, after = (sides[name].dropna() for name in (BEFORE, AFTER))
        tasks = before.index.intersection(after.index)
        before, after = before.loc[tasks], after.loc[tasks]
        change = (after["measured_ms"] / before["measured_ms"] - 1.0).to_numpy()
        changes[str(sharder)] = {
            "tasks": len(tasks),
            "before_ms": float(before["measured_ms"].mean()),
            "after_ms": float(after["measured_ms"].mean()),
            "before_predicted_ms": float(before["predicted_ms"].mean()),
            "after_predicted_ms": float(after["predicted_ms"].mean()),
            **mean_with_interval(change),
            "changes": dict(zip(tasks, change.tolist(), strict=True)),
            "better": int((change < 0).sum()),
            "worse": int((change > 0).sum()),
            "equal": int((change == 0).sum()),
        }
    return changes


def mean_with_interval(changes: np.ndarray) -> dict[str, Any]:
    """`change`, the mean, and `interval`, Student's for it at `CONFIDENCE`."""
    count = len(changes)
    if not count:
        return {"change": None, "interval": None}
    mean = float(changes.mean())
    if count == 1:
        return {"change": mean, "interval": None}
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1) * changes.std(ddof=1) / np.sqrt(count))
    return {"change": mean, "interval": [mean - reach, mean + reach]}
