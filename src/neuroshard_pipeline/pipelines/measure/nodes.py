"""Nodes of the measure stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from neuroshard_pipeline.measurement import (
    CommMeasureParams,
    ComputeMeasureParams,
    RecordingParams,
    TopologyParams,
    campaign_date,
    describe_hardware,
    noise_floor,
    reduce_comm,
    reduce_compute,
    run_comm_campaign,
    run_compute_campaign,
)
from neuroshard_pipeline.tables import comm_samples_from_frame, compute_samples_from_frame

Shards = dict[str, Callable[[], pd.DataFrame]]


def measure_compute(
    samples: pd.DataFrame,
    pool: pd.DataFrame,
    settings: pd.DataFrame,
    params: ComputeMeasureParams,
    seed: int,
    done: Shards,
) -> Iterator[dict[str, pd.DataFrame]]:
    """Run what is missing of the compute campaign; Kedro saves every shard as it is yielded."""
    for key, shard in run_compute_campaign(compute_samples_from_frame(samples, pool, settings), params, seed, done):
        yield {key: shard}


def reduce_compute_costs(
    shards: Shards,
    samples: pd.DataFrame,
    pool: pd.DataFrame,
    settings: pd.DataFrame,
    params: ComputeMeasureParams,
    seed: int,
    recording: RecordingParams,
) -> pd.DataFrame:
    """One cost per compute sample."""
    return reduce_compute(shards, compute_samples_from_frame(samples, pool, settings), params, seed, recording)


def measure_comm(
    samples: pd.DataFrame, params: CommMeasureParams, seed: int, done: Shards
) -> Iterator[dict[str, pd.DataFrame]]:
    """Run what is missing of the communication campaign."""
    for key, shard in run_comm_campaign(comm_samples_from_frame(samples), params, seed, done):
        yield {key: shard}


def reduce_comm_costs(
    shards: Shards, samples: pd.DataFrame, params: CommMeasureParams, seed: int, topology: TopologyParams
) -> pd.DataFrame:
    """One cost per rank of every communication sample."""
    return reduce_comm(shards, comm_samples_from_frame(samples), params, seed, topology)


def describe_measurement(
    compute_shards: Shards,
    comm_shards: Shards,
    compute_samples: pd.DataFrame,
    pool: pd.DataFrame,
    compute_settings: pd.DataFrame,
    comm_samples: pd.DataFrame,
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    seed: int,
    recording: RecordingParams,
    topology: TopologyParams,
) -> dict[str, Any]:
    """What was measured on, and how far two independent measurements lie apart."""
    samples = compute_samples_from_frame(compute_samples, pool, compute_settings)
    compute_floor = noise_floor(compute_shards, samples, compute, seed, recording)
    collectives = comm_samples_from_frame(comm_samples)
    comm_floor = noise_floor(comm_shards, collectives, comm, seed)
    dates = [
        campaign_date(compute_shards, samples, compute, seed, recording),
        campaign_date(comm_shards, collectives, comm, seed),
    ]
    date = max((date for date in dates if date), default=None)
    return describe_hardware(compute, comm, compute_floor, comm_floor, date, recording, topology)
