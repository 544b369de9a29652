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

Records = dict[str, Callable[[], pd.DataFrame]]
#: `date` and `noise_floor` of a finished campaign.
Summary = dict[str, Any]


def measure_compute(
    samples: pd.DataFrame,
    pool: pd.DataFrame,
    settings: pd.DataFrame,
    params: ComputeMeasureParams,
    seed: int,
    done: Records,
) -> Iterator[dict[str, pd.DataFrame]]:
    """Measure what is missing of the compute campaign; Kedro saves every record as it is yielded."""
    for key, record in run_compute_campaign(compute_samples_from_frame(samples, pool, settings), params, seed, done):
        yield {key: record}


def reduce_compute_costs(
    records: Records,
    samples: pd.DataFrame,
    pool: pd.DataFrame,
    settings: pd.DataFrame,
    params: ComputeMeasureParams,
    seed: int,
    recording: RecordingParams,
) -> tuple[pd.DataFrame, Summary]:
    """One cost per compute sample, and the summary of the campaign."""
    campaign = records, compute_samples_from_frame(samples, pool, settings), params, seed, recording
    return reduce_compute(*campaign), {"date": campaign_date(*campaign), "noise_floor": noise_floor(*campaign)}


def measure_comm(
    samples: pd.DataFrame, params: CommMeasureParams, seed: int, done: Records
) -> Iterator[dict[str, pd.DataFrame]]:
    """Measure what is missing of the communication campaign; Kedro saves every record as it is yielded."""
    for key, record in run_comm_campaign(comm_samples_from_frame(samples), params, seed, done):
        yield {key: record}


def reduce_comm_costs(
    records: Records, samples: pd.DataFrame, params: CommMeasureParams, seed: int, topology: TopologyParams
) -> tuple[pd.DataFrame, Summary]:
    """One cost per rank of every communication sample, and the summary of the campaign."""
    campaign = records, comm_samples_from_frame(samples), params, seed
    costs = reduce_comm(*campaign, topology)
    return costs, {"date": campaign_date(*campaign), "noise_floor": noise_floor(*campaign)}


def describe_measurement(
    compute_summary: Summary,
    comm_summary: Summary,
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    recording: RecordingParams,
    topology: TopologyParams,
) -> dict[str, Any]:
    """The hardware that measured, and the noise floor of both campaigns."""
    floors = compute_summary["noise_floor"], comm_summary["noise_floor"]
    date = max((date for date in (compute_summary["date"], comm_summary["date"]) if date), default=None)
    return describe_hardware(compute, comm, *floors, date, recording, topology)
