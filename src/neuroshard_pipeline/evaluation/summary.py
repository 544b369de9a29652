"""`search.summary`: compares sharders by mean costs over the tasks that all of them solved, and in pairs."""

from typing import Any

import pandas as pd

from neuroshard_pipeline.evaluation.comparison import Bootstrap, Comparison
from neuroshard_pipeline.evaluation.prediction_errors import prediction_errors
from neuroshard_pipeline.evaluation.totals import COST_COLUMNS, basis_of, cost_table, plan_totals

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

    Mean costs are taken over the tasks that all sharders solved, because a sharder that fails on expensive tasks would
    otherwise have a low mean. Mean measured costs also leave out tasks with a failed measurement.

    Args:
        plan_costs: `search.plan_costs`.
        attempts: `task_id, sharder, seconds, error`, as in `sharders.Solutions`.
        intervals: `search.plan_intervals`, or None.
        anchors: `search.anchors`, or None.

    Returns:
        `num_tasks, num_common_tasks, num_measured_tasks`. `sharders` has, by name: `tasks_solved, tasks_tried`;
        `mean_measured_ms`, `mean_predicted_ms` and `mean_step_ms` (`totals.plan_totals` defines these costs; a mean is
        None if no task has the cost for all sharders); `mean_seconds_per_task, max_seconds_per_task`; and `failures`,
        the error message of every unsolved task. `prediction_on_plans`: see `prediction_errors`. `pairs`: see
        `Comparison.compare_ours`; measured costs are compared, or predicted costs of the whole step if nothing was
        measured.
    """
    totals, names = plan_totals(plan_costs), list(dict.fromkeys(attempts["sharder"]))
    tables = {column: cost_table(totals, names, column) for column in ("predicted_ms", "step_ms", "measured_ms")}
    means = {f"mean_{column}": _means(table) for column, table in tables.items()}
    basis = basis_of(totals)
    return {
        "num_tasks": int(attempts["task_id"].nunique()),
        "num_common_tasks": int(attempts["error"].isna().groupby(attempts["task_id"]).all().sum()),
        "num_measured_tasks": len(tables["measured_ms"].dropna()),
        "sharders": {
            name: _attempts_of(attempts[attempts["sharder"] == name]) | {key: of[name] for key, of in means.items()}
            for name in names
        },
        "prediction_on_plans": prediction_errors(plan_costs, intervals, anchors),
        "pairs": Comparison(_BOOTSTRAP, _LEAST_TASKS, basis).compare_ours(tables[COST_COLUMNS[basis]], names),
    }


def _means(table: pd.DataFrame) -> dict[str, float | None]:
    """Mean per sharder over the tasks that have a cost for every sharder; None if there are no such tasks."""
    common = table.dropna()
    return {str(name): float(common[name].mean()) if len(common) else None for name in table.columns}


def _attempts_of(attempts: pd.DataFrame) -> dict[str, Any]:
    failed = attempts[attempts["error"].notna()]
    return {
        "tasks_solved": len(attempts) - len(failed),
        "tasks_tried": len(attempts),
        "mean_seconds_per_task": float(attempts["seconds"].mean()),
        "max_seconds_per_task": float(attempts["seconds"].max()),
        "failures": dict(zip(failed["task_id"], failed["error"], strict=True)),
    }
