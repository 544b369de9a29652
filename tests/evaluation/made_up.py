"""Costs of training samples (the first campaign) on a made-up machine that may slow down later, and cost models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from cost_models.machine import true_comm_ms, true_compute_ms

from neuroshard_pipeline.augment.comm_draws import CommSampleParams, comm_samples
from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples, paper_settings
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.augment.task_draws import ShardingTaskParams
from neuroshard_pipeline.cost_models import (
    CommTrainParams,
    ComputeTrainParams,
    CostModels,
    train_comm_model,
    train_compute_model,
)
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.tables.frames import comm_samples_from_frame, compute_samples_from_frame
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

from .campaigns import ComputedCampaigns

CONF = Path(__file__).resolve().parents[2] / "conf"


def tiny(stage: str) -> dict:
    """Parameters of a stage in the `test` environment."""
    base, changes = (
        yaml.safe_load((CONF / env / f"{name}.yml").read_text())[stage]
        for env, name in (("base", f"parameters_{stage}"), ("test", "parameters"))
    )
    return {key: {**value, **changes.get(key, {})} for key, value in base.items() if isinstance(value, dict)}


COMPUTE_TRAIN = ComputeTrainParams(**tiny("train")["compute"])
COMM_TRAIN = CommTrainParams(**tiny("train")["comm"])
AUGMENT = tiny("augment")
TASKS = ShardingTaskParams(**AUGMENT["sharding_tasks"] | {"local_world_size": None})


def compute_costs(samples: Sequence[ComputeSample], slowdown: float = 1.0) -> pd.DataFrame:
    rows = [(s.sample_id, *(slowdown * true_compute_ms(s.shards, s.batch_size))) for s in samples]
    frame = pd.DataFrame(rows, columns=["sample_id", "forward_ms", "backward_ms"])
    return frame.assign(spread_ms=0.01, repeats=2, error=None)


def comm_costs(samples: Sequence[CommSample], slowdown: float = 1.0) -> pd.DataFrame:
    rows = [(s.sample_id, rank, *(slowdown * costs)) for s in samples for rank, costs in enumerate(true_comm_ms(s))]
    frame = pd.DataFrame(rows, columns=["sample_id", "rank", "forward_ms", "backward_ms"])
    return frame.assign(spread_ms=0.01, error=None)


def first_campaign() -> MeasuredSamples:
    pool = generate_pool(PoolParams(**AUGMENT["pool"]))
    compute = compute_samples(pool, ComputeSampleParams(**AUGMENT["compute_samples"]))
    comm = comm_samples(pool, CommSampleParams(**AUGMENT["comm_samples"]))
    return MeasuredSamples(
        pool, compute, paper_settings(compute), compute_costs(compute_samples_from_frame(compute, pool)), comm,
        comm_costs(comm_samples_from_frame(comm)),
    )  # fmt: skip


def train(data: MeasuredSamples) -> CostModels:
    compute, *_ = train_compute_model(
        data.compute_samples, data.table_pool, data.compute_costs, COMPUTE_TRAIN, {}, data.compute_settings
    )
    comm, *_ = train_comm_model(data.comm_samples, data.comm_costs, COMM_TRAIN, {})
    return CostModels(compute, comm)


def campaigns(slowdown: float = 1.0) -> ComputedCampaigns:
    return ComputedCampaigns(
        lambda samples: compute_costs(samples, slowdown), lambda samples: comm_costs(samples, slowdown)
    )


def total_ms(costs: pd.DataFrame) -> np.ndarray:
    return costs[["forward_ms", "backward_ms"]].sum(axis=1).to_numpy()
