"""Measurement campaigns: many visits of many samples, resumable after a kill at any moment."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.measurement.cluster_crew import cluster_crew
from neuroshard_pipeline.measurement.costs import (
    Shards,
    load_rows,
    loaded,
    no_disagreement,
    reduce_rows,
    relative_disagreement,
)
from neuroshard_pipeline.measurement.crew import comm_crew, compute_crew
from neuroshard_pipeline.measurement.extra_visits import extra_seconds, extra_stretches
from neuroshard_pipeline.measurement.hardware import cache_too_large, fingerprint, last_level_cache_bytes
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.recording import RecordingParams, open_recording, recorded_costs
from neuroshard_pipeline.measurement.stretches import (
    AnyParams,
    AnySample,
    Stretch,
    campaign_hash,
    digest,
    measured_visits,
    planned_stretches,
)
from neuroshard_pipeline.measurement.topology import TopologyParams, require_topology, topology_costs
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

_LOGGER = logging.getLogger(__name__)


@cache
def _warn_once(doubt: str) -> None:
    """Several campaigns of a run need not repeat what holds for all of them."""
    _LOGGER.warning(doubt)


class AnyCrew(Protocol):
    """Whoever measures stretches and yields them with what they recorded."""

    def run(self, stretches: Iterable[Stretch]) -> Iterator[tuple[Stretch, pd.DataFrame]]:
        """Measure stretches, taking each when it starts."""


_BUDGET_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s"


def run_compute_campaign(
    samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int, done: Shards
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Measure what is missing of a campaign of compute costs.

    Args:
        samples: with unique ids; a longer list extends an earlier campaign.
        params: protocol and backend; `recorded` has nothing to measure.
        seed: of ids and order.
        done: the shards of earlier runs.

    Yields:
        (key, raw shard); the caller stores each before asking for the next.
    """
    if params.backend == "recorded":
        return
    if doubt := cache_too_large(params, last_level_cache_bytes()):
        _warn_once(doubt)
    hire = cluster_crew if params.engine == "ray" else compute_crew
    with hire(samples, params, seed) as crew:
        yield from run_campaign(samples, params, seed, done, crew)


def run_comm_campaign(
    samples: Sequence[CommSample], params: CommMeasureParams, seed: int, done: Shards
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Measure what is missing of a campaign of communication costs; see `run_compute_campaign`.

    The backend `topology` has nothing to measure.
    """
    if params.backend == "topology":
        return
    with comm_crew(samples, params) as crew:
        yield from run_campaign(samples, params, seed, done, crew)


def reduce_compute(
    shards: Shards,
    samples: Sequence[ComputeSample],
    params: ComputeMeasureParams,
    seed: int,
    recording: RecordingParams | None = None,
) -> pd.DataFrame:
    """Costs of a finished campaign: `sample_id, forward_ms, backward_ms, spread_ms, repeats, error`.

    With the backend `recorded` they are looked up in `recording`; a sample that it lacks is a row with an error.
    """
    if params.backend == "recorded":
        return recorded_costs(open_recording(recording), samples)
    return reduce_rows(_rows(shards, params, seed), samples, params.visit_statistic).drop(columns="rank")


def reduce_comm(
    shards: Shards,
    samples: Sequence[CommSample],
    params: CommMeasureParams,
    seed: int,
    topology: TopologyParams | None = None,
) -> pd.DataFrame:
    """Costs of a finished campaign: `sample_id, rank, forward_ms, backward_ms, spread_ms, error`.

    With the backend `topology` they are modelled, not measured.
    """
    if params.backend == "topology":
        return topology_costs(samples, require_topology(topology))
    return reduce_rows(_rows(shards, params, seed), samples, params.visit_statistic).drop(columns="repeats")


def noise_floor(
    shards: Shards,
    samples: Sequence[AnySample],
    params: AnyParams,
    seed: int,
    recording: RecordingParams | None = None,
) -> dict[str, object]:
    """How far two independent measurements lie apart, from a finished campaign (`costs.relative_disagreement`).

    With the backend `recorded` it is the recording's own; with `topology` there is none and every value is null.
    """
    if params.backend == "recorded":
        return dict(open_recording(recording).card["noise_floor"])
    if params.backend == "topology":
        return no_disagreement()
    return relative_disagreement(_rows(shards, params, seed), samples, params.visit_statistic)


def campaign_date(
    shards: Shards,
    samples: Sequence[AnySample],
    params: AnyParams,
    seed: int,
    recording: RecordingParams | None = None,
) -> str | None:
    """When the last visit of a finished campaign was over (ISO 8601, UTC).

    With the backend `recorded` it is the recording's date; with `topology`, which measures nothing, None.
    """
    if params.backend == "recorded":
        return str(open_recording(recording).card["date"])
    if params.backend == "topology":
        return None
    rows = _rows(shards, params, seed)
    return str(rows.loc[rows["digest"].isin([digest(sample) for sample in samples]), "saved_at"].max())


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


def _rows(shards: Shards, params: AnyParams, seed: int) -> pd.DataFrame:
    return load_rows(shards, campaign_hash(params, seed, fingerprint(params.backend)))


def run_campaign(
    samples: Sequence[AnySample], params: AnyParams, seed: int, done: Shards, crew: AnyCrew
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Let a crew measure what is missing: the regular stretches, then extra ones until their budget ends."""
    campaign = campaign_hash(params, seed, fingerprint(params.backend))
    shards = {key: loaded(shard) for key, shard in done.items() if key.startswith(f"{campaign}/")}
    missing = planned_stretches(samples, params, seed, campaign, measured_visits(shards))
    planned = planned_stretches(samples, params, seed, campaign)
    total, left = (sum(len(stretch.indices) for stretch in stretches) for stretches in (planned, missing))
    # disable=None: quiet where the output is no terminal
    with tqdm(total=total, initial=total - left, unit="visit", disable=None, desc=f"measure {params.backend}") as bar:
        for stretch, frame in crew.run(missing):
            shards[stretch.key] = frame
            yield stretch.key, frame
            bar.update(len(stretch.indices))
    yield from _run_extra(samples, params, campaign, shards, crew)


def _run_extra(
    samples: Sequence[AnySample],
    params: AnyParams,
    campaign: str,
    shards: dict[str, pd.DataFrame],
    crew: AnyCrew,
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield rounds of extra stretches, the last cut short when the budget is used up."""
    budget = _Budget(params.extra_visit_budget_s)
    with tqdm(total=budget.left_s, unit="s", disable=None, desc="extra visits", bar_format=_BUDGET_BAR) as bar:
        while budget.left_s > 0:
            rows = load_rows(shards, campaign)
            budget.left_s = params.extra_visit_budget_s - extra_seconds(rows)
            known = len(shards)
            for stretch, frame in crew.run(budget.limit(extra_stretches(rows, samples, params, campaign))):
                shards[stretch.key] = frame
                budget.left_s -= float(frame.loc[frame["rank"] == 0, "seconds"].sum())
                yield stretch.key, frame
                bar.update(params.extra_visit_budget_s - max(budget.left_s, 0.0) - bar.n)
            if len(shards) == known:
                return


@dataclass
class _Budget:
    """Seconds that may still be spent."""

    left_s: float

    def limit(self, stretches: Sequence[Stretch]) -> Iterator[Stretch]:
        """Hand out stretches until the budget is used up."""
        for stretch in stretches:
            if self.left_s <= 0:
                return
            yield stretch
