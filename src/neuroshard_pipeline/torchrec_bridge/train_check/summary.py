"""Samples per second of every model, plan and dense mode, where a step's time goes, and whether all losses agree.

Shapes: R rounds.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.steps import AGAIN, same_as
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainCheckError, TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.run import PARTS

Json = dict[str, Any]

_RESAMPLES = 2000


def summarise_training(steps: pd.DataFrame, solutions: Solutions, params: TrainingParams) -> Json:
    """Summarise the steps of `train_under_plans` as JSON values.

    The time of a step is that of its slowest rank; that of a plan in a round is the quantile of its timed steps; its
    time is the median over rounds. Ratios have `low` and `high`, a 95 % interval over resampled rounds.

    Returns:
        `speeds`, a row per network, model, dense mode and plan: `samples_per_s`; `step_ms` and its `PARTS`, means over
        ranks; `speed_up` over the first plan, and `embedding_speed_up`, that of the embedding modules alone;
        `embeddings_ms` and `dense_ms`, what both take alone; `predicted_ms`, the predicted embedding step and
        `dense_ms`, null if there are several networks. A plan with the ending `AGAIN` is a second measurement.

    Raises:
        TrainCheckError: two losses of a model differ, or a loss is not finite.
    """
    plans, losses = solutions.plans, check_losses(steps, params)
    if len(params.networks) > 1:  # the cost models know one of them
        plans = tuple(dataclasses.replace(plan, predicted=None) for plan in plans)
    task, names = plans[0].task, ["network", "model", "dense", "sharder"]
    timed = steps[steps["timed"]]
    slowest = timed.groupby([*names, "round", "step"])["step_ms"].max()
    rounds = slowest.groupby([*names, "round"]).quantile(params.quantile)
    times = {name: ms.to_numpy() for name, ms in rounds.groupby(names)}  # (R,) each
    parts = timed.groupby(names)[list(PARTS)].mean().to_dict("index")
    forms = list(itertools.product(params.networks or ("",), params.models, params.dense))
    return {
        "task_id": task.task_id,
        "num_tables": len(task.tables),
        "world_size": task.world_size,
        "num_hosts": task.num_hosts,
        "batch_size": task.batch_size,
        "memory_bytes": max(task.memory_limits),
        "training": params.model_dump(mode="json"),
        "first": plans[0].sharder,
        "losses": losses,
        "speeds": [row for form in forms for row in _speeds(form, times, parts, plans)],
        "failures": solutions.failures.set_index("sharder")["error"].to_dict(),
    }


def check_losses(steps: pd.DataFrame, params: TrainingParams) -> dict[str, dict[str, float]]:
    """`first` and `last` of every model's losses, `largest_difference` (relative) in the `compared` first steps.

    Raises:
        TrainCheckError: a difference exceeds `loss_tolerance`, or a loss is not finite.
    """
    found = {}
    whole = steps[(steps["sharder"] != "") & (steps["dense"] != "")]
    for model, of_model in whole.groupby("model"):
        table = of_model.pivot_table(index=["sharder", "dense"], columns="step", values="loss", dropna=False)
        names, losses = [f"{sharder} ({dense})" for sharder, dense in table.index], table.to_numpy()
        if not np.isfinite(losses).all():
            row, step = np.argwhere(~np.isfinite(losses))[0]
            raise TrainCheckError(
                f"{model}: under the plan of {names[row]} the loss of step {table.columns[step]} is not finite; lower "
                "learning_rate"
            )
        difference = (np.ptp(losses, axis=0) / np.abs(losses).min(axis=0))[: params.loss_steps]
        step = int(difference.argmax())
        if difference[step] > params.loss_tolerance:
            low, high = int(losses[:, step].argmin()), int(losses[:, step].argmax())
            raise TrainCheckError(
                f"{model} trains to different losses: at step {table.columns[step]} the loss is "
                f"{losses[low, step]:.6f} under {names[low]} and {losses[high, step]:.6f} under {names[high]}; the "
                f"relative difference of {difference[step]:.2g} exceeds loss_tolerance {params.loss_tolerance:g}"
            )
        ends = {"first": float(losses[0, 0]), "last": float(losses[0, -1])}
        found[str(model)] = {**ends, "compared": len(difference), "largest_difference": float(difference.max())}
    return found


def _speeds(
    form: tuple[str, str, str], times: Mapping[Any, np.ndarray], parts: Mapping[Any, Any], plans: Sequence[Plan]
) -> Iterator[Json]:
    """A row of `speeds` per plan, for a network, a model and a dense mode."""
    measured, network = same_as(plans), form[0]
    again = [
        dataclasses.replace(plan, sharder=plan.sharder + AGAIN)
        for plan in plans
        if (*form, plan.sharder + AGAIN) in times
    ]
    dense_ms = float(np.median(times[*form, ""]))
    for plan in (*plans, *again):
        name = measured.get(plan.sharder, plan.sharder)
        ms, alone = times[*form, name], times[network, "embeddings", "", name]
        step_ms, cost_ms = float(np.median(ms)), plan.predicted_cost_ms
        yield {
            **dict(zip(("network", "model", "dense"), form, strict=True)),
            "sharder": plan.sharder,
            "same_plan_as": None if name == plan.sharder else name,
            "samples_per_s": 1000.0 * plan.task.batch_size / step_ms,
            "step_ms": step_ms,
            "speed_up": _ratio(times[*form, plans[0].sharder], ms),
            "embedding_speed_up": _ratio(times[network, "embeddings", "", plans[0].sharder], alone),
            "embeddings_ms": float(np.median(alone)),
            "dense_ms": dense_ms,
            "predicted_ms": None if cost_ms is None else cost_ms + dense_ms,
            **parts[*form, name],
        }


def _ratio(theirs: np.ndarray, ours: np.ndarray) -> dict[str, float]:
    """The ratio of the medians of times (R,) with its interval; a resample draws the same rounds for both."""
    draws = np.random.default_rng(0).integers(len(ours), size=(_RESAMPLES, len(ours)))
    low, high = np.quantile(np.median(theirs[draws], axis=1) / np.median(ours[draws], axis=1), [0.025, 0.975]).tolist()
    return {"value": float(np.median(theirs) / np.median(ours)), "low": low, "high": high}


def training_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one row per network, model, dense mode and plan, for a table of speeds."""
    first = summary["first"]
    header = [f"x {first}", "95 %", "embeddings alone", "step ms", "predicted ms", "embeddings + dense ms"]
    rows = [["model, dense network, plan of", "samples/s", *header]]
    for of in summary["speeds"]:
        where = [of["network"]] if of["network"] else []
        same = f" (= {of['same_plan_as']})" if of["same_plan_as"] else ""
        speed_up, predicted = of["speed_up"], of["predicted_ms"]
        rows.append(
            [
                ", ".join([*where, of["model"], of["dense"], of["sharder"]]) + same,
                f"{of['samples_per_s']:.0f}",
                f"{speed_up['value']:.3f}",
                f"{speed_up['low']:.3f}..{speed_up['high']:.3f}",
                f"{of['embedding_speed_up']['value']:.3f}",
                f"{of['step_ms']:.2f}",
                "-" if predicted is None else f"{predicted:.2f}",
                f"{of['embeddings_ms']:.2f} + {of['dense_ms']:.2f}",
            ]
        )
    return rows


def training_notes(summary: Mapping[str, Any]) -> list[str]:
    """Lines below the table: sharders without a plan, what was trained, and how much the losses differ."""
    training, losses = summary["training"], summary["losses"]
    ranks = ", ".join(["virtual ranks", *training["networks"]] if training["networks"] else [training["backend"]])
    errors = [abs(of["predicted_ms"] / of["step_ms"] - 1.0) for of in summary["speeds"] if of["predicted_ms"]]
    return [
        *(f"{name}: no plan: {error}" for name, error in summary["failures"].items()),
        "",
        f"{summary['num_tables']} tables of {summary['task_id']} on {summary['world_size']} ranks of "
        f"{summary['num_hosts']} host(s) ({ranks}), trainer {training['trainer']}, batch_size {summary['batch_size']}.",
        f"{training['rounds']} rounds of {training['steps_per_round']} timed steps; all take turns, in a new order in "
        "every round. Intervals are over rounds.",
        *([f"Median error of the predicted step: {100 * float(np.median(errors)):.0f} %."] if errors else []),
        *(
            f"{model}: the losses go from {of['first']:.4f} to {of['last']:.4f}; in the first {of['compared']} "
            f"steps, they differ by at most {of['largest_difference']:.1g} of their value."
            for model, of in losses.items()
        ),
    ]
