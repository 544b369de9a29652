"""Steps per second of every plan, and whether all plans trained to the same losses.

Shapes: R rounds, S steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.torchrec_bridge.train_check.errors import TrainCheckError
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.problem import same_placement

Json = dict[str, Any]


def summarise_training(steps: pd.DataFrame, solutions: Solutions, params: TrainingParams) -> Json:
    """What the check found.

    A plan's speed in a round is the number of its timed steps over their time. `steps_per_second` is the median over
    rounds beside the quartiles; `against_first` sets a round's speed against the first plan's in the same round,
    likewise.

    Args:
        steps: as `train_under_plans` returns it.
        solutions: the plans that were trained, and the sharders that found none.
        params: how they were trained.

    Raises:
        TrainCheckError: two plans trained to different losses.
    """
    difference = check_losses(steps, params.loss_tolerance)
    speeds = _speeds(steps)
    plans = {plan.sharder: plan for plan in solutions.plans}
    first = next(iter(plans))
    task = plans[first].task
    sharders: dict[str, Json] = {}
    for name, plan in plans.items():
        twins = [other for other in sharders if same_placement(plans[other], plan)]
        sharders[name] = {
            "steps_per_second": _spread(speeds[name]),
            "against_first": _spread(speeds[name] / speeds[first]),
            "predicted_cost_ms": plan.predicted_cost_ms,
            "num_shards": len(plan.shards),
            "same_plan_as": twins[0] if twins else None,
        }
    failures = solutions.failures.set_index("sharder")["error"].to_dict()
    return {
        "task_id": task.task_id,
        "num_tables": len(task.tables),
        "world_size": task.world_size,
        "batch_size": task.batch_size,
        "training": params.model_dump(mode="json"),
        "first": first,
        "largest_loss_difference": difference,
        "first_loss": float(steps["loss"].iloc[0]),
        "last_loss": float(steps["loss"].iloc[-1]),
        "sharders": sharders,
        "failures": failures,
    }


def check_losses(steps: pd.DataFrame, tolerance: float) -> float:
    """The largest relative difference between two plans' losses at the same step.

    Raises:
        TrainCheckError: it exceeds `tolerance`, or a loss is not a number; the message names plans, step and losses.
    """
    bad = steps[~np.isfinite(steps["loss"])]
    if len(bad):
        sharder, step = bad.iloc[0]["sharder"], bad.iloc[0]["step"]
        raise TrainCheckError(
            f"under the plan of {sharder} the loss of step {step} is not a number; lower learning_rate"
        )
    losses = steps.pivot_table(index="step", columns="sharder", values="loss")  # (S, plans)
    table = losses.to_numpy()
    difference = np.ptp(table, axis=1) / np.abs(table).min(axis=1)  # (S,)
    worst = int(difference.argmax())
    if difference[worst] > tolerance:
        low, high = int(table[worst].argmin()), int(table[worst].argmax())
        raise TrainCheckError(
            f"the plans train to different losses: at step {losses.index[worst]} {table[worst, low]:.6f} under "
            f"{losses.columns[low]}, {table[worst, high]:.6f} under {losses.columns[high]}, a relative difference of "
            f"{difference[worst]:.2g} where loss_tolerance is {tolerance:g}"
        )
    return float(difference[worst])


def training_table(summary: Mapping[str, Any]) -> str:
    """The summary as aligned text."""
    header = ["plan of", "steps/s", "middle half", f"x {summary['first']}", "middle half", "predicted ms"]
    rows = [header]
    for name, found in summary["sharders"].items():
        speed, ratio, cost = found["steps_per_second"], found["against_first"], found["predicted_cost_ms"]
        rows.append(
            [
                name + (f" (= {found['same_plan_as']})" if found["same_plan_as"] else ""),
                f"{speed['median']:.2f}",
                f"{speed['lower_quartile']:.2f}..{speed['upper_quartile']:.2f}",
                f"{ratio['median']:.3f}",
                f"{ratio['lower_quartile']:.3f}..{ratio['upper_quartile']:.3f}",
                "-" if cost is None else f"{cost:.2f}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines += [f"{name}: no plan: {error}" for name, error in summary["failures"].items()]
    return "\n".join([*lines, "", _note(summary)])


def _note(summary: Mapping[str, Any]) -> str:
    training = summary["training"]
    difference = summary["largest_loss_difference"]
    agreement = f"equal between plans to {difference:.1g} of their value" if difference else "identical under all plans"
    where = f"{summary['world_size']} ranks ({training['backend']}, dense network {training['dense']})"
    turns = f"{training['rounds']} rounds of {training['steps_per_round']} timed steps per plan"
    return (
        f"{summary['num_tables']} tables of {summary['task_id']} on {where}, global batch {summary['batch_size']}.\n"
        f"Medians and middle halves of {turns}, plans in a new order every round.\n"
        f"Losses from {summary['first_loss']:.4f} to {summary['last_loss']:.4f}, {agreement}."
    )


def _speeds(steps: pd.DataFrame) -> dict[str, pd.Series]:
    """Steps per second of every sharder, by round (R,)."""
    timed = steps[steps["timed"]]
    per_round = 1000.0 / timed.groupby(["sharder", "round"])["step_ms"].mean()
    return {str(sharder): per_round[sharder] for sharder in per_round.index.unique("sharder")}


def _spread(values: pd.Series) -> dict[str, float]:
    lower, median, upper = (float(values.quantile(share)) for share in (0.25, 0.5, 0.75))
    return {"median": median, "lower_quartile": lower, "upper_quartile": upper}
