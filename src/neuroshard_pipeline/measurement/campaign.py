"""Measurement campaigns: many visits of many samples, resumable after a kill at any moment."""

import logging
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.measurement.chunks import (
    AnyParams,
    AnySample,
    campaign_hash,
    digest,
    measured_visits,
    planned_chunks,
)
from neuroshard_pipeline.measurement.costs import (
    Records,
    load_rows,
    loaded,
    no_disagreement,
    reduce_rows,
    relative_disagreement,
)
from neuroshard_pipeline.measurement.hardware import cache_too_large, fingerprint, last_level_cache_bytes
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.pools import ChunkPool, comm_pool, compute_pool
from neuroshard_pipeline.measurement.recording import RecordingParams, open_recording, recorded_costs
from neuroshard_pipeline.measurement.topology import TopologyParams, require_topology, topology_costs
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

_LOGGER = logging.getLogger(__name__)


class CampaignSummary(NamedTuple):
    """What is known about a finished campaign besides its costs.

    Attributes:
        date: time of the last visit (ISO 8601, UTC), None if nothing was measured.
        noise_floor: see `costs.relative_disagreement`; every value is null if nothing was measured.
    """

    date: str | None
    noise_floor: dict[str, object]


def run_compute_campaign(
    samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int, done: Records
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Measure what is missing of a campaign of compute costs.

    Args:
        samples: samples with unique ids; a longer list extends an earlier campaign.
        params: parameters of the campaign. The backend `recorded` measures nothing.
        seed: seed of the ids and of the order of visits.
        done: records of earlier runs.

    Yields:
        (key, record); the caller stores each before it asks for the next.
    """
    if params.backend == "recorded":
        return
    if doubt := cache_too_large(params, last_level_cache_bytes()):
        _warn_once(doubt)
    with compute_pool(samples, params, seed) as pool:
        yield from _run_campaign(samples, params, seed, done, pool)


def run_comm_campaign(
    samples: Sequence[CommSample], params: CommMeasureParams, seed: int, done: Records
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Measure what is missing of a campaign of communication costs; see `run_compute_campaign`.

    The backend `topology` measures nothing.
    """
    if params.backend == "topology":
        return
    with comm_pool(samples, params) as pool:
        yield from _run_campaign(samples, params, seed, done, pool)


def reduce_compute(
    records: Records,
    samples: Sequence[ComputeSample],
    params: ComputeMeasureParams,
    seed: int,
    recording: RecordingParams | None = None,
) -> pd.DataFrame:
    """Costs of a finished campaign: `sample_id, forward_ms, backward_ms, spread_ms, repeats, error`.

    The backend `recorded` looks them up in `recording`; a sample that it lacks becomes a row with an error.
    """
    if params.backend == "recorded":
        return recorded_costs(open_recording(recording), samples)
    return reduce_rows(_rows(records, params, seed), samples, params.visit_statistic).drop(columns="rank")


def reduce_comm(
    records: Records,
    samples: Sequence[CommSample],
    params: CommMeasureParams,
    seed: int,
    topology: TopologyParams | None = None,
) -> pd.DataFrame:
    """Costs of a finished campaign: `sample_id, rank, forward_ms, backward_ms, spread_ms, error`.

    The backend `topology` models them.
    """
    if params.backend == "topology":
        return topology_costs(samples, require_topology(topology))
    return reduce_rows(_rows(records, params, seed), samples, params.visit_statistic).drop(columns="repeats")


def summarise_campaign(
    records: Records,
    samples: Sequence[AnySample],
    params: AnyParams,
    seed: int,
    recording: RecordingParams | None = None,
) -> CampaignSummary:
    """Date and noise floor of a finished campaign.

    The backend `recorded` has those of its recording; `topology`, which measures nothing, has none.
    """
    if params.backend == "recorded":
        card = open_recording(recording).card
        return CampaignSummary(str(card["date"]), dict(card["noise_floor"]))
    if params.backend == "topology":
        return CampaignSummary(None, no_disagreement())
    rows = _rows(records, params, seed)
    date = rows.loc[rows["digest"].isin([digest(sample) for sample in samples]), "saved_at"].max()
    return CampaignSummary(str(date), relative_disagreement(rows, samples, params.visit_statistic))


def measure_compute(
    samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int, recording: RecordingParams | None = None
) -> pd.DataFrame:
    """Run a whole campaign in memory and return its costs (`reduce_compute`)."""
    return reduce_compute(dict(run_compute_campaign(samples, params, seed, {})), samples, params, seed, recording)


def measure_comm(
    samples: Sequence[CommSample], params: CommMeasureParams, seed: int, topology: TopologyParams | None = None
) -> pd.DataFrame:
    """Run a whole campaign in memory and return its costs (`reduce_comm`)."""
    return reduce_comm(dict(run_comm_campaign(samples, params, seed, {})), samples, params, seed, topology)


@cache
def _warn_once(doubt: str) -> None:
    """Warn only in the first of several campaigns."""
    _LOGGER.warning(doubt)


def _rows(records: Records, params: AnyParams, seed: int) -> pd.DataFrame:
    return load_rows(records, campaign_hash(params, seed, fingerprint(params.backend)))


def _run_campaign(
    samples: Sequence[AnySample], params: AnyParams, seed: int, done: Records, pool: ChunkPool
) -> Iterator[tuple[str, pd.DataFrame]]:
    campaign = campaign_hash(params, seed, fingerprint(params.backend))
    records = {key: loaded(record) for key, record in done.items() if key.startswith(f"{campaign}/")}
    missing = planned_chunks(samples, params, seed, campaign, measured_visits(records))
    planned = planned_chunks(samples, params, seed, campaign)
    total, left = (sum(len(chunk.indices) for chunk in chunks) for chunks in (planned, missing))
    # disable=None: no progress bar unless the output is a terminal
    with tqdm(total=total, initial=total - left, unit="visit", disable=None, desc=f"measure {params.backend}") as bar:
        for chunk, record in pool.run(missing):
            yield chunk.key, record
            bar.update(len(chunk.indices))
