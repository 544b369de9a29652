"""Measurement campaigns: many visits of many samples, resumable after a kill at any moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.measurement.costs import Shards, load_rows, reduce_rows, relative_disagreement
from neuroshard_pipeline.measurement.crew import Crew, comm_crew, compute_crew
from neuroshard_pipeline.measurement.extra_visits import next_extra_stretches
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.stretches import (
    AnyParams,
    AnySample,
    campaign_hash,
    planned_stretches,
)
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample


def run_compute_campaign(
    samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int, done: Shards
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Measure what is missing of a campaign of compute costs.

    Args:
        samples: with unique ids; a longer list extends an earlier campaign.
        params: protocol and backend.
        seed: of ids and order.
        done: the shards of earlier runs.

    Yields:
        (key, raw shard); the caller stores each before asking for the next.
    """
    with compute_crew(samples, params, seed) as crew:
        yield from _run(samples, params, seed, done, crew)


def run_comm_campaign(
    samples: Sequence[CommSample], params: CommMeasureParams, seed: int, done: Shards
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Measure what is missing of a campaign of communication costs; see `run_compute_campaign`."""
    with comm_crew(samples, params) as crew:
        yield from _run(samples, params, seed, done, crew)


def reduce_compute(
    shards: Shards, samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int
) -> pd.DataFrame:
    """Costs from the shards of a finished campaign: `sample_id, forward_ms, backward_ms, spread_ms, repeats, error`."""
    return reduce_rows(_rows(shards, params, seed), samples).drop(columns="rank")


def reduce_comm(shards: Shards, samples: Sequence[CommSample], params: CommMeasureParams, seed: int) -> pd.DataFrame:
    """Costs from the shards of a finished campaign: `sample_id, rank, forward_ms, backward_ms, spread_ms, error`."""
    return reduce_rows(_rows(shards, params, seed), samples).drop(columns="repeats")


def noise_floor(shards: Shards, samples: Sequence[AnySample], params: AnyParams, seed: int) -> dict[str, object]:
    """How far two independent measurements lie apart, from a finished campaign (`costs.relative_disagreement`)."""
    return relative_disagreement(_rows(shards, params, seed), samples)


def measure_compute(samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int) -> pd.DataFrame:
    """Run a whole campaign in memory and return its costs (`reduce_compute`)."""
    return reduce_compute(dict(run_compute_campaign(samples, params, seed, {})), samples, params, seed)


def measure_comm(samples: Sequence[CommSample], params: CommMeasureParams, seed: int) -> pd.DataFrame:
    """Run a whole campaign in memory and return its costs (`reduce_comm`)."""
    return reduce_comm(dict(run_comm_campaign(samples, params, seed, {})), samples, params, seed)


def _rows(shards: Shards, params: AnyParams, seed: int) -> pd.DataFrame:
    return load_rows(shards, campaign_hash(params, seed, fingerprint()))


def _run(
    samples: Sequence[AnySample], params: AnyParams, seed: int, done: Shards, crew: Crew
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the missing regular stretches, then extra ones until their budget ends."""
    campaign = campaign_hash(params, seed, fingerprint())
    planned = planned_stretches(samples, params, seed, campaign)
    missing = [stretch for stretch in planned if stretch.key not in done]
    total = sum(len(stretch.indices) for stretch in planned)
    left = sum(len(stretch.indices) for stretch in missing)
    # disable=None: quiet where the output is no terminal
    with tqdm(total=total, initial=total - left, unit=" visits", disable=None, desc=f"measure {params.backend}") as bar:
        shards = dict(done)
        while missing:
            for stretch, frame in crew.run(missing):
                shards[stretch.key] = frame
                yield stretch.key, frame
                bar.update(len(stretch.indices))
            missing = next_extra_stretches(load_rows(shards, campaign), samples, params, campaign, crew.parallel)
            bar.total = (bar.total or 0) + sum(len(stretch.indices) for stretch in missing)
