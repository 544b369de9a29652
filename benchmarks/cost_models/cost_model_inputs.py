"""Inputs of `bench_cost_models.py` from a finished run.

They are the measured samples that are split for training and tests, groups of measured evaluation samples, on which no
model is trained, and the shards that searches chose for each rank, with their measured costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.augment.variation import is_derived
from neuroshard_pipeline.cost_models.comm_training import comm_data
from neuroshard_pipeline.cost_models.compute_training import compute_data
from neuroshard_pipeline.cost_models.measured import CommData, ComputeData
from neuroshard_pipeline.cost_models.metrics import noise_floor_of
from neuroshard_pipeline.evaluation.plan_frames import shards_from_frame
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.samples import TRAINING, ComputeSample

#: The batch size of the paper's samples, scaled to this project's default tables.
PAPER_BATCH_SIZE = 512

#: Sharders whose plans are searched with the cost models.
SEARCHES = ("neuroshard", "neuroshard_plus")


@dataclass(frozen=True)
class ComputeInputs:
    """Measured compute samples.

    Attributes:
        data: the samples that are split into training, validation and held-out ones.
        groups: evaluation samples, on which no model is trained, by purpose.
        chosen: shards of the ranks of the searches' measured plans, without ranks that have row shards or replicas,
            with the costs of their lookups inside TorchRec's steps as the entry `chosen`; empty before any search.
        floors: median noise floor of `forward`, `backward` and `total`.
    """

    data: ComputeData
    groups: dict[str, ComputeData]
    chosen: dict[str, ComputeData]
    floors: dict[str, float | None]


@dataclass(frozen=True)
class CommInputs:
    """Measured communication samples.

    Attributes:
        data: all measured samples.
        floors: median noise floor of `forward` and `backward`.
    """

    data: CommData
    floors: dict[str, float | None]


def compute_inputs(catalog: Any) -> ComputeInputs:
    """The newest run's compute samples."""
    names = "augment.compute_samples", "augment.table_pool", "measure.compute_costs", "augment.compute_sample_settings"
    samples, pool, costs, settings = (catalog.load(name) for name in names)
    by_purpose = {
        str(purpose): compute_data(samples, pool, costs, settings, purpose) for purpose in settings["purpose"].unique()
    }
    chosen = _chosen(catalog) if _has(catalog, "plans", "plan_costs") else None
    floor = catalog.load("measure.hardware")["noise_floor"]["compute"]
    return ComputeInputs(
        by_purpose.pop(TRAINING),
        {purpose: group for purpose, group in by_purpose.items() if group.samples},
        {"chosen": chosen} if chosen else {},
        {part: noise_floor_of(floor, part) for part in ("forward", "backward", "total")},
    )


def paper_samples(data: ComputeData) -> ComputeData:
    """The samples of the paper's kind: batch size 512, fp32, SGD, and only tables generated as in the paper."""
    names = sorted({shard.table.name for sample in data.samples for shard in sample.shards})
    derived = {name for name, is_it in zip(names, is_derived(pd.Series(names, dtype=str)), strict=True) if is_it}

    def fits(sample: ComputeSample) -> bool:
        tables = [shard.table for shard in sample.shards]
        plain = all(table.data_type == "fp32" and table.name not in derived for table in tables)
        return plain and sample.batch_size == PAPER_BATCH_SIZE and sample.optimizer == "sgd"

    return data.take([row for row, sample in enumerate(data.samples) if fits(sample)])


def comm_inputs(catalog: Any) -> CommInputs:
    """The newest run's communication samples."""
    floor = catalog.load("measure.hardware")["noise_floor"]["comm"]
    data = comm_data(catalog.load("augment.comm_samples"), catalog.load("measure.comm_costs"))
    return CommInputs(data, {part: noise_floor_of(floor, part) for part in ("forward", "backward")})


def _has(catalog: Any, *names: str) -> bool:
    return all(catalog.exists(f"search.{name}") for name in names)


def _chosen(catalog: Any) -> ComputeData | None:
    """The shards of every rank of every measured plan of a search, with their cost; None without such plans.

    Ranks with row shards or replicas are left out, because they run several lookup kernels.
    """
    tasks = {task.task_id: task for task in tasks_from_frame(catalog.load("augment.sharding_tasks"))}
    plans = catalog.load("search.plans").query("sharder in @SEARCHES")
    costs = catalog.load("search.plan_costs").dropna(subset=["measured_compute_ms"])
    measured = costs.set_index(["task_id", "sharder", "rank"])["measured_compute_ms"]
    samples, totals = [], []
    for key, rows in plans[plans["task_id"].isin(tasks)].groupby(["task_id", "sharder", "rank"]):
        if key in measured.index:
            task = tasks[key[0]]
            shards, _ = shards_from_frame(rows, task)
            if any(shard.sharding_type != "column_wise" for shard in shards):
                continue
            samples.append(ComputeSample("/".join(map(str, key)), task.batch_size, shards, task.optimizer))
            totals.append(measured[key])
    # The costs of a plan's rank are stored as forward + backward. Each gets half of it, and only the sum is evaluated.
    return ComputeData(tuple(samples), _halves(np.array(totals)), 0) if samples else None


def _halves(totals: np.ndarray) -> np.ndarray:
    """Forward and backward costs (N, 2) whose sums are `totals` (N,)."""
    return np.repeat(totals[:, None] / 2, 2, axis=1)
