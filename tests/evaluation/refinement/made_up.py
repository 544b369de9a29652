"""A small training set measured on a made-up machine that may have become slower since, and cost models for it."""

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
from neuroshard_pipeline.cost_models import CommTrainParams, ComputeTrainParams, train_comm_model, train_compute_model
from neuroshard_pipeline.evaluation.refinement import Campaigns, Trained, TrainingSet, train_both
from neuroshard_pipeline.tables.frames import comm_samples_from_frame, compute_samples_from_frame
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

CONF = Path(__file__).resolve().parents[3] / "conf"


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
TASKS = ShardingTaskParams(**AUGMENT["sharding_tasks"])


def compute_costs(samples: Sequence[ComputeSample], slowdown: float = 1.0) -> pd.DataFrame:
    rows = [(s.sample_id, *(slowdown * true_compute_ms(s.shards, s.batch_size))) for s in samples]
    frame = pd.DataFrame(rows, columns=["sample_id", "forward_ms", "backward_ms"])
    return frame.assign(spread_ms=0.01, repeats=2, error=None)


def comm_costs(samples: Sequence[CommSample], slowdown: float = 1.0) -> pd.DataFrame:
    rows = [(s.sample_id, rank, *(slowdown * costs)) for s in samples for rank, costs in enumerate(true_comm_ms(s))]
    frame = pd.DataFrame(rows, columns=["sample_id", "rank", "forward_ms", "backward_ms"])
    return frame.assign(spread_ms=0.01, error=None)


def first_training_set() -> TrainingSet:
    pool = generate_pool(PoolParams(**AUGMENT["pool"]))
    compute = compute_samples(pool, ComputeSampleParams(**AUGMENT["compute_samples"]))
    comm = comm_samples(pool, CommSampleParams(**AUGMENT["comm_samples"]))
    return TrainingSet(
        pool, compute, paper_settings(compute), compute_costs(compute_samples_from_frame(compute, pool)), comm,
        comm_costs(comm_samples_from_frame(comm)),
    )  # fmt: skip


def train(data: TrainingSet) -> Trained:
    return train_both(
        data,
        lambda *frames, settings_frame: train_compute_model(*frames, COMPUTE_TRAIN, {}, settings_frame),
        lambda *frames: train_comm_model(*frames, COMM_TRAIN, {}),
    )


def campaigns(first: TrainingSet, slowdown: float = 1.0) -> Campaigns:
    return Campaigns(
        first, lambda samples: compute_costs(samples, slowdown), lambda samples: comm_costs(samples, slowdown)
    )


def total_ms(costs: pd.DataFrame) -> np.ndarray:
    return costs[["forward_ms", "backward_ms"]].sum(axis=1).to_numpy()
