"""Steps per second of every plan, and a check that all plans trained to the same losses.

Shapes: R rounds, S steps, P plans.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainCheckError, TrainingParams

Json = dict[str, Any]


def summarise_training(steps: pd.DataFrame, solutions: Solutions, params: TrainingParams) -> Json:
    """Summarise the check: speeds of the plans, and agreement of their losses, as JSON values.

    The speed of a plan in a round is the number of its timed steps divided by their duration. `steps_per_second` holds
    the median and the quartiles of the speed over rounds. `against_first` holds the median and the quartiles of the
    ratio between this speed and the first plan's speed in the same round.

    Args:
        steps: the result of `train_under_plans`.
        solutions: the plans that were trained, and the sharders that found no plan.
        params: the parameters of the training.

    Raises:
        TrainCheckError: two plans trained to different losses, or a loss is not finite.
    """
    difference = check_losses(steps, params.loss_tolerance)
    plans = solutions.plans
    task = plans[0].task
    return {
        "task_id": task.task_id,
        "num_tables": len(task.tables),
        "world_size": task.world_size,
        "batch_size": task.batch_size,
        "training": params.model_dump(mode="json"),
        "first": plans[0].sharder,
        "largest_loss_difference": difference,
        "first_loss": float(steps["loss"].iloc[0]),
        "last_loss": float(steps["loss"].iloc[-1]),
        "sharders": _summarise_plans(steps, plans),
        "failures": solutions.failures.set_index("sharder")["error"].to_dict(),
    }


def check_losses(steps: pd.DataFrame, tolerance: float) -> float:
    """The largest relative difference between two plans' losses at the same step.

    Raises:
        TrainCheckError: the difference exceeds `tolerance`, or a loss is not finite; the message names plans and step.
    """
    bad = steps[~np.isfinite(steps["loss"])]
    if len(bad):
        sharder, step = bad.iloc[0]["sharder"], bad.iloc[0]["step"]
        raise TrainCheckError(f"under the plan of {sharder} the loss of step {step} is not finite; lower learning_rate")
    losses = steps.pivot_table(index="step", columns="sharder", values="loss")  # (S, P)
    table = losses.to_numpy()
    difference = np.ptp(table, axis=1) / np.abs(table).min(axis=1)  # (S,)
    worst = int(difference.argmax())
    if difference[worst] > tolerance:
        low, high = int(table[worst].argmin()), int(table[worst].argmax())
        raise TrainCheckError(
            f"the plans train to different losses: at step {losses.index[worst]} the loss is {table[worst, low]:.6f} "
            f"under {losses.columns[low]} and {table[worst, high]:.6f} under {losses.columns[high]}; the relative "
            f"difference of {difference[worst]:.2g} exceeds loss_tolerance {tolerance:g}"
        )
    return float(difference[worst])


def training_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one row per plan, for a table of speeds."""
    rows = [["plan of", "steps/s", "quartiles", f"x {summary['first']}", "quartiles", "predicted ms"]]
    for name, found in summary["sharders"].items():
        same, cost = found["same_plan_as"], found["predicted_cost_ms"]
        rows.append(
            [
                f"{name} (= {same})" if same else name,
                *_spread_cells(found["steps_per_second"], decimals=2),
                *_spread_cells(found["against_first"], decimals=3),
                "-" if cost is None else f"{cost:.2f}",
            ]
        )
    return rows


def training_notes(summary: Mapping[str, Any]) -> list[str]:
    """Lines below the table: sharders without a plan, what was trained, and how much the losses differ."""
    training, difference = summary["training"], summary["largest_loss_difference"]
    agreement = f"differ between plans by at most {difference:.1g} of their value" if difference else "are identical"
    return [
        *(f"{name}: no plan: {error}" for name, error in summary["failures"].items()),
        "",
        f"{summary['num_tables']} tables of {summary['task_id']} on {summary['world_size']} ranks "
        f"({training['backend']}, dense network {training['dense']}), global batch {summary['batch_size']}.",
        f"Medians and quartiles over {training['rounds']} rounds of {training['steps_per_round']} timed steps per "
        "plan; the plans take turns, in a new order in every round.",
        f"The losses go from {summary['first_loss']:.4f} to {summary['last_loss']:.4f} and {agreement}.",
    ]


def _summarise_plans(steps: pd.DataFrame, plans: Sequence[Plan]) -> dict[str, Json]:
    mean_ms = steps[steps["timed"]].pivot_table(index="round", columns="sharder", values="step_ms")
    speeds = 1000.0 / mean_ms  # steps per second, (R, P)
    placed = [set(zip(plan.shards, plan.ranks, strict=True)) for plan in plans]
    return {
        plan.sharder: {
            "steps_per_second": _spread(speeds[plan.sharder]),
            "against_first": _spread(speeds[plan.sharder] / speeds[plans[0].sharder]),
            "predicted_cost_ms": plan.predicted_cost_ms,
            "num_shards": len(plan.shards),
            "same_plan_as": next((plans[at].sharder for at in range(index) if placed[at] == placed[index]), None),
        }
        for index, plan in enumerate(plans)
    }


def _spread(values: pd.Series) -> dict[str, float]:
    median, lower, upper = values.quantile([0.5, 0.25, 0.75])
    return {"median": median, "lower_quartile": lower, "upper_quartile": upper}


def _spread_cells(spread: Mapping[str, float], decimals: int) -> list[str]:
    """Two cells: the median, and both quartiles."""
    low, high = spread["lower_quartile"], spread["upper_quartile"]
    return [f"{spread['median']:.{decimals}f}", f"{low:.{decimals}f}..{high:.{decimals}f}"]
