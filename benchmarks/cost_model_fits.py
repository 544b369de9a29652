"""What `bench_cost_models.py` fits and compares: every model on the same data and the same splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from neuroshard_pipeline.cost_models.baselines import BASELINES, fit_predict_baseline
from neuroshard_pipeline.cost_models.intervals import coverage
from neuroshard_pipeline.cost_models.metrics import accuracy
from neuroshard_pipeline.cost_models.params import CommTrainParams, ComputeTrainParams
from neuroshard_pipeline.cost_models.splits import Split, split_samples
from neuroshard_pipeline.cost_models.training import (
    ComputeData,
    compute_data,
    compute_intervals,
    fit_compute,
    predict_compute,
)
from neuroshard_pipeline.cost_models.training_comm import CommData, fit_comm, predict_comm
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard

#: What suits the paper's network; ours takes the project's parameters. Chosen on validation, as ours were.
PAPER = {
    "architecture": "paper", "members": 1, "learning_rate": 0.002, "weight_decay": 0.0, "epochs": 400, "patience": 100,
}  # fmt: skip

#: Sharders whose plans are searched with the cost models.
SEARCHES = ("neuroshard", "neuroshard_plus")

LEARNING_SHARES = (0.1, 0.25, 0.5, 1.0)
FIGURES = ("mape", "median_ape", "bias", "kendall_tau")

#: The ablation: shares of training and validation samples whose cost is wrong by a factor of up to 3 either way.
WRONG_SHARES = (0.0, 0.1, 0.3)
_LARGEST_LOG_FACTOR = float(np.log(3.0))

Predict = Callable[[Sequence[ComputeSample]], np.ndarray]

#: What predicts costs (N, 2), and what bounds their sum (N, 2), if anything.
Model = tuple[Predict, Predict | None]


def training_data(catalog: Any) -> ComputeData:
    """The measured compute samples of the newest run."""
    names = "augment.compute_samples", "augment.table_pool", "measure.compute_costs", "augment.compute_sample_settings"
    return compute_data(*(catalog.load(name) for name in names))


def chosen_shard_sets(catalog: Any) -> ComputeData | None:
    """The shards of every rank of every measured plan of a search with their cost, or None before any search."""
    if not all(catalog.exists(f"search.{name}") for name in ("plans", "plan_costs")):
        return None
    tasks = {task.task_id: task for task in tasks_from_frame(catalog.load("augment.sharding_tasks"))}
    plans = catalog.load("search.plans").query("sharder in @SEARCHES")
    costs = catalog.load("search.plan_costs").dropna(subset=["measured_compute_ms"])
    measured = costs.set_index(["task_id", "sharder", "rank"])["measured_compute_ms"]
    samples, totals = [], []
    for key, rows in plans[plans["task_id"].isin(tasks)].groupby(["task_id", "sharder", "rank"]):
        if key in measured.index:
            task = tasks[key[0]]
            tables = {member.name: member for member in task.tables}
            where = zip(rows["table"], rows["column_offset"], rows["embedding_dim"], strict=True)
            shards = tuple(Shard(tables[name], int(offset), int(width)) for name, offset, width in where)
            samples.append(ComputeSample("/".join(map(str, key)), task.batch_size, shards))
            totals.append(measured[key])
    # Plans are measured as a whole; halves stand in for the directions, and only the total is looked at.
    return ComputeData(tuple(samples), np.repeat(np.array(totals)[:, None] / 2, 2, axis=1), 0) if samples else None


def compute_rows(
    data: ComputeData, chosen: ComputeData | None, ours: ComputeTrainParams, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """One row per model: accuracy of forward + backward on held-out samples and on chosen shard sets."""
    rows = []
    for seed in seeds:
        split = split_samples(data.sample_ids, ours.validation_share, ours.test_share, seed)
        models = compute_models(data, split, ours.model_copy(update={"seed": seed}))
        for name, (predict, bounds) in models.items():
            row: dict[str, Any] = {"model": name, **figures(data.take(split.test), predict, bounds, "")}
            if chosen:
                row |= figures(chosen, predict, bounds, "chosen ")
            rows.append(row)
    return rows


def compute_models(data: ComputeData, split: Split, ours: ComputeTrainParams) -> dict[str, Model]:
    """Every model, fitted to the training samples of one split."""
    training = data.take(split.training)
    models: dict[str, Model] = {
        params.architecture: neural(data, split, params) for params in (ours, ours.model_copy(update=PAPER))
    }
    for name in BASELINES:
        fitted = partial(fit_predict_baseline, name, training.samples, training.costs, seed=ours.seed)
        models[name] = fitted, None
    return models


def neural(data: ComputeData, split: Split, params: ComputeTrainParams) -> Model:
    """A fitted network."""
    model, _ = fit_compute(data, split, params, {})
    return partial(predict_compute, model), partial(compute_intervals, model)


def figures(test: ComputeData, predict: Predict, bounds: Predict | None, prefix: str) -> dict[str, float]:
    """Accuracy of the total cost, and how much of it the intervals cover where there are any."""
    measured = test.costs.sum(axis=1)
    accurate = accuracy(measured, predict(test.samples).sum(axis=1), None)
    found = {f"{prefix}{name}": float(accurate[name] or 0.0) for name in FIGURES}
    if bounds is not None:
        found[f"{prefix}coverage"] = coverage(measured, bounds(test.samples))
    return found


def learning_rows(data: ComputeData, ours: ComputeTrainParams, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Held-out MAPE of both networks for growing shares of the training samples."""
    rows = []
    for seed in seeds:
        split = split_samples(data.sample_ids, ours.validation_share, ours.test_share, seed)
        order = np.random.default_rng(seed).permutation(split.training)
        for changes in ({}, PAPER):
            params = ours.model_copy(update={**changes, "seed": seed})
            row: dict[str, Any] = {"model": params.architecture}
            for share in LEARNING_SHARES:
                fewer = Split(np.sort(order[: max(1, round(share * len(order)))]), split.validation, split.test)
                predict, _ = neural(data, fewer, params)
                row[f"{len(fewer.training)} samples"] = figures(data.take(split.test), predict, None, "")["mape"]
            rows.append(row)
    return rows


def ablation_rows(data: ComputeData, ours: ComputeTrainParams, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """MAPE on clean held-out samples after training on wrong labels: plain, self-distilled, and plain for as long."""
    kinds = {
        "plain": {"distillation": "none"},
        "plain, twice the epochs": {"distillation": "none", "epochs": 2 * ours.epochs, "patience": 2 * ours.epochs},
        "smc2": {"distillation": "smc2"},
    }
    rows = []
    for seed in seeds:
        split = split_samples(data.sample_ids, ours.validation_share, ours.test_share, seed)
        for name, changes in kinds.items():
            row: dict[str, Any] = {"model": name}
            for share in WRONG_SHARES:
                noisy = with_wrong_labels(data, share, seed)
                predict, _ = neural(noisy, split, ours.model_copy(update={**changes, "seed": seed}))
                row[f"{share:.0%} wrong"] = figures(data.take(split.test), predict, None, "")["mape"]
            rows.append(row)
    return rows


def with_wrong_labels(data: ComputeData, share: float, seed: int) -> ComputeData:
    """A share of the costs multiplied by a random factor, log-uniform from a third to three."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(len(data.costs)) < share
    factor = np.exp(rng.uniform(-_LARGEST_LOG_FACTOR, _LARGEST_LOG_FACTOR, len(data.costs)))
    return ComputeData(data.samples, np.where(wrong[:, None], data.costs * factor[:, None], data.costs), 0)


def comm_rows(data: CommData, ours: CommTrainParams, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One row per model, direction and world size."""
    rows = []
    for seed in seeds:
        rows += world_size_rows("universal, one network", data, data, ours, seed)
        for world_size in sorted({sample.world_size for sample in data.samples}):
            own = data.take([row for row, sample in enumerate(data.samples) if sample.world_size == world_size])
            others = data.take([row for row, sample in enumerate(data.samples) if sample.world_size != world_size])
            rows += world_size_rows("paper, one per world size", own, own, ours.model_copy(update=PAPER), seed)
            rows += world_size_rows("universal, world size never seen", others, own, ours, seed)
    return rows


def world_size_rows(
    name: str, training: CommData, test: CommData, params: CommTrainParams, seed: int
) -> list[dict[str, Any]]:
    """Train on one set, test on the held-out part of another, apart by world size and direction."""
    if len(training.samples) < 10:
        return []
    params = params.model_copy(update={"seed": seed})
    shares = params.validation_share, params.test_share, seed
    model, _ = fit_comm(training, split_samples(training.sample_ids, *shares), params, {})
    held_out = test.take(split_samples(test.sample_ids, *shares).test)
    rows = []
    for world_size in sorted({sample.world_size for sample in held_out.samples}):
        part = held_out.take([row for row, sample in enumerate(held_out.samples) if sample.world_size == world_size])
        measured, predicted = np.concatenate(part.costs), np.concatenate(predict_comm(model, part.samples))
        for column, direction in enumerate(("forward", "backward")):
            accurate = accuracy(measured[:, column], predicted[:, column], None)
            kept = {figure: accurate[figure] for figure in FIGURES}
            rows.append({"direction": direction, "world size": world_size, "model": name, **kept})
    return rows
