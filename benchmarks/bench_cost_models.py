"""How good the cost models are: ours, the paper's network and two baselines on the same data and the same splits.

Reads the newest versions of a pre-training run from the catalog and prints tables; nothing is written.

    .venv/bin/kedro run --pipeline pretrain
    .venv/bin/python benchmarks/bench_cost_models.py [--env base] [--data-root data] [--seeds 3]

About three minutes on 2 cores for 1,000 compute samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from neuroshard_pipeline.cost_models.baselines import BASELINES, fit_predict_baseline
from neuroshard_pipeline.cost_models.metrics import accuracy
from neuroshard_pipeline.cost_models.params import CommTrainParams, ComputeTrainParams
from neuroshard_pipeline.cost_models.splits import Split, split_samples
from neuroshard_pipeline.cost_models.training import (
    ComputeData,
    compute_data,
    fit_compute,
    noise_floor_of,
    predict_compute,
)
from neuroshard_pipeline.cost_models.training_comm import CommData, comm_data, fit_comm, predict_comm
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard

#: What suits the paper's network; ours takes the project's parameters. Chosen on validation, as ours were.
PAPER = {
    "architecture": "paper", "members": 1, "learning_rate": 0.002, "weight_decay": 0.0, "epochs": 400, "patience": 100,
}  # fmt: skip

LEARNING_SHARES = (0.1, 0.25, 0.5, 1.0)
FIGURES = ("mape", "median_ape", "bias", "kendall_tau")

Predict = Callable[[Sequence[ComputeSample]], np.ndarray]


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="base", help="configuration environment, as for kedro run")
    parser.add_argument("--data-root", help="where the run kept its data, if not in the environment's place")
    parser.add_argument("--seeds", type=int, default=3, help="splits and initial weights to average over")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    bootstrap_project(root)
    overrides = {"data_root": arguments.data_root} if arguments.data_root else {}
    with KedroSession.create(root, env=arguments.env, runtime_params=overrides) as session:
        context = session.load_context()
        report(context.catalog, context.params["train"], range(arguments.seeds))


def report(catalog: Any, params: dict[str, Any], seeds: Sequence[int]) -> None:
    """Compute models, their learning curve, and communication models."""
    data = compute_data(
        *(catalog.load(name) for name in ("augment.compute_samples", "augment.table_pool", "measure.compute_costs"))
    )
    floor = catalog.load("measure.hardware")["noise_floor"]
    chosen = chosen_shard_sets(catalog)
    ours: ComputeTrainParams = params["compute"]  # Kedro has validated and built it
    print(f"compute: {len(data.samples)} samples, {data.left_out} left out, noise floor {floors(floor['compute'])}")
    print(f"shard sets of measured plans: {len(chosen.samples) if chosen else 0}\n")
    print(table(compute_rows(data, chosen, ours, seeds)))
    print("\nlearning curve: held-out MAPE by share of the training samples\n")
    print(table(learning_rows(data, ours, seeds)))
    comm = comm_data(catalog.load("augment.comm_samples"), catalog.load("measure.comm_costs"))
    print(f"\ncommunication: {len(comm.samples)} samples, noise floor {floors(floor['comm'])}\n")
    print(table(comm_rows(comm, params["comm"], seeds)))


def floors(floor: dict[str, Any]) -> str:
    """Median noise floors in words."""
    parts = {part: noise_floor_of(floor, part) for part in ("forward", "backward", "total")}
    return ", ".join(f"{part} {'unknown' if value is None else f'{value:.1%}'}" for part, value in parts.items())


def chosen_shard_sets(catalog: Any) -> ComputeData | None:
    """The shards of every rank of every measured plan with their measured cost, or None before any search."""
    if not all(catalog.exists(f"search.{name}") for name in ("plans", "plan_costs")):
        return None
    tasks = {task.task_id: task for task in tasks_from_frame(catalog.load("augment.sharding_tasks"))}
    plans = catalog.load("search.plans")
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
        for name, predict in compute_models(data, split, ours.model_copy(update={"seed": seed})).items():
            row: dict[str, Any] = {"model": name, **figures(data.take(split.test), predict, "")}
            if chosen:
                row |= figures(chosen, predict, "chosen ")
            rows.append(row)
    return rows


def compute_models(data: ComputeData, split: Split, ours: ComputeTrainParams) -> dict[str, Predict]:
    """Every model, fitted to the training samples of one split."""
    training = data.take(split.training)
    models: dict[str, Predict] = {
        params.architecture: neural(data, split, params) for params in (ours, ours.model_copy(update=PAPER))
    }
    for name in BASELINES:
        models[name] = lambda test, name=name: fit_predict_baseline(
            name, training.samples, training.costs, test, ours.seed
        )
    return models


def neural(data: ComputeData, split: Split, params: ComputeTrainParams) -> Predict:
    """A fitted network as a function of samples."""
    model, _ = fit_compute(data, split, params, {})
    return lambda samples: predict_compute(model, samples)


def figures(test: ComputeData, predict: Predict, prefix: str) -> dict[str, float]:
    """Accuracy of the total cost."""
    measured = accuracy(test.costs.sum(axis=1), predict(test.samples).sum(axis=1), None)
    return {f"{prefix}{name}": float(measured[name] or 0.0) for name in FIGURES}


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
                predict = neural(data, fewer, params)
                row[f"{len(fewer.training)} samples"] = figures(data.take(split.test), predict, "")["mape"]
            rows.append(row)
    return rows


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
            label = f"{direction:8s} {world_size:3d} ranks  {name}"
            rows.append({"model": label, **{figure: accurate[figure] for figure in FIGURES}})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Mean over seeds, models in the order in which they came; shares in percent, tau as it is."""
    frame = pd.DataFrame(rows).groupby("model", sort=False).mean()
    formats = {name: (lambda v: f"{v:.3f}") if name.endswith("tau") else (lambda v: f"{v:+.1%}") for name in frame}
    return frame.to_string(formatters=formats)


if __name__ == "__main__":
    main()
