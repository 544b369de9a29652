"""Measurement campaigns: a campaign times many samples, each in several visits.

It can be killed at any moment and resumed, because it stores the visits as records.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar, final

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.host import BUSY_SHARE, OtherPrograms
from neuroshard_pipeline.measurement.chunks import digest, failed_samples, measured_visits, planned_chunks
from neuroshard_pipeline.measurement.costs import (
    CampaignSummary,
    Records,
    load_rows,
    loaded,
    no_disagreement,
    other_programs_share,
    reduce_rows,
    relative_disagreement,
)
from neuroshard_pipeline.measurement.cuda import needs_cuda
from neuroshard_pipeline.measurement.failures import FailureWatch
from neuroshard_pipeline.measurement.hardware import cache_too_large, fingerprint, last_level_cache_bytes
from neuroshard_pipeline.measurement.identity import Identity, identity_of, name_of, other_campaigns
from neuroshard_pipeline.measurement.modelled import modelled_costs, require_device
from neuroshard_pipeline.measurement.params import AnyParams, CommMeasureParams, ComputeMeasureParams, VisitStatistic
from neuroshard_pipeline.measurement.pools import comm_pool, compute_pool, measured
from neuroshard_pipeline.measurement.recording import RecordingParams, open_recording, recorded_costs
from neuroshard_pipeline.measurement.time_budget import TimeBudget
from neuroshard_pipeline.measurement.topology import (
    TopologyParams,
    require_topology,
    topology_costs,
    topology_reduction_costs,
)
from neuroshard_pipeline.tables.samples import CollectiveSample, CommSample, ComputeSample, ReductionSample
from neuroshard_pipeline.workers import Pool

_LOGGER = logging.getLogger(__name__)

Sample = TypeVar("Sample", ComputeSample, CollectiveSample)


@dataclass(frozen=True)
class _Campaign(ABC, Generic[Sample]):
    params: AnyParams
    seed: int

    @abstractmethod
    def run(self, samples: Sequence[Sample], done: Records) -> Iterator[tuple[str, pd.DataFrame]]:
        """Measure the visits that `done` lacks, as far as `time_budget_s` allows; none if the backend measures nothing.

        Args:
            samples: samples with unique ids. A longer list, or more visits, extend an earlier campaign.
            done: records of earlier runs, by key, which may include records of other campaigns. Visits that failed
                for a reason that may pass are measured again.

        Yields:
            (key, record). The caller stores each record before it asks for the next one.

        Raises:
            MeasurementError: the device is missing, or the first samples all fail (`failures.FailureWatch`).
        """

    @abstractmethod
    def costs(self, records: Records, samples: Sequence[Sample]) -> pd.DataFrame:
        """Costs of a finished campaign."""

    def measure(self, samples: Sequence[Sample]) -> pd.DataFrame:
        """Run a whole campaign in memory and return its `costs`."""
        return self.costs(dict(self.run(samples, {})), samples)

    def summary(self, records: Records, samples: Sequence[Sample]) -> CampaignSummary:
        """What is known about a finished campaign."""
        rows = self._rows(records)
        date = rows.loc[rows["digest"].isin([digest(sample) for sample in samples]), "saved_at"].max()
        date = None if pd.isna(date) else str(date)
        others = None if needs_cuda(self.params.backend) else other_programs_share(rows, samples)
        if others is not None and others > BUSY_SHARE:
            _LOGGER.warning(
                "other programs used %.0f %% of this machine's cores during the measurements with %s; on a quiet "
                "machine, costs and plans differ. When these programs have ended, empty the data folder with `make "
                "clean`, and run again",
                100 * others,
                self.params.backend,
            )
        return CampaignSummary(date, relative_disagreement(rows, samples, self.params.visit_statistic), others)

    def identity(self) -> Identity:
        """Everything that the timings of this campaign on this machine depend on."""
        return identity_of(self.params, self.seed, fingerprint(self.params.backend))

    def _rows(self, records: Records) -> pd.DataFrame:
        return load_rows(records, name_of(self.identity()))

    def _reduced(
        self, records: Records, samples: Sequence[Sample], statistic: VisitStatistic | None = None
    ) -> pd.DataFrame:
        return reduce_rows(self._rows(records), samples, statistic or self.params.visit_statistic)

    def _run(self, samples: Sequence[Sample], done: Records, pool: Pool) -> Iterator[tuple[str, pd.DataFrame]]:
        identity = self.identity()
        name, described = name_of(identity), json.dumps(identity)
        for other in other_campaigns(done, identity):
            _LOGGER.info("%d stored records stay unused: %s", len(other.keys), other.difference)
        records = {key: loaded(record) for key, record in done.items() if key.startswith(f"{name}/")}
        contents = {digest(sample) for sample in samples}
        visits = {visit for visit in measured_visits(records) if visit.digest in contents}
        missing = planned_chunks(samples, self.params, self.seed, name, visits)
        total = len(visits) + sum(len(chunk.indices) for chunk in missing)
        if visits and missing:
            since = min(str(record["saved_at"].iloc[0]) for record in records.values())
            _LOGGER.info("%d of %d visits were stored by earlier runs, the first at %s", len(visits), total, since)
        description = f"measure {self.params.backend}"
        # disable=None: no progress bar unless the output is a terminal
        with tqdm(total=total, initial=len(visits), unit="visit", disable=None, desc=description) as bar:
            watch, held = FailureWatch(failed_samples(records)), list[tuple[str, pd.DataFrame]]()
            others = OtherPrograms()
            budget = TimeBudget(self.params.time_budget_s, [chunk.visit for chunk in missing])
            for chunk, record in measured(samples, missing, pool, budget):
                watch.look_at(record)
                held.append((chunk.key, record.assign(other_programs=others.share(), identity=described)))
                if watch.any_success:
                    yield from held
                    held.clear()
                bar.update(len(chunk.indices))
            yield from held
            watch.log_end()


@final
@dataclass(frozen=True)
class ComputeCampaign(_Campaign[ComputeSample]):
    """A campaign of compute costs.

    Attributes:
        params: parameters of the campaign.
        seed: seed of the drawn ids, of the order of visits, and of the choice of samples that are measured twice.
            Campaigns with equal seeds draw equal ids for a table.
        recording: needed by the two backends that measure nothing. For `recorded` it gives costs, date and noise floor;
            for `modelled` it gives the name of the GPU whose costs are computed.
    """

    params: ComputeMeasureParams
    recording: RecordingParams | None = None

    def run(self, samples: Sequence[ComputeSample], done: Records) -> Iterator[tuple[str, pd.DataFrame]]:
        """See `_Campaign.run`."""
        if self.params.costs_are != "measured":
            return
        if doubt := cache_too_large(self.params, last_level_cache_bytes()):
            _warn_once(doubt)
        with compute_pool(samples, self.params, self.seed) as pool:
            yield from self._run(samples, done, pool)

    def costs(self, records: Records, samples: Sequence[ComputeSample]) -> pd.DataFrame:
        """Costs of a finished campaign: `sample_id, forward_ms, backward_ms, spread_ms, repeats, error`.

        A sample that a recording lacks becomes a row with an error.
        """
        if self.params.backend == "recorded":
            return recorded_costs(open_recording(self.recording), samples)
        if self.params.backend == "modelled":
            return modelled_costs(samples, require_device(self.recording))
        return self._reduced(records, samples).drop(columns="rank")

    def summary(self, records: Records, samples: Sequence[ComputeSample]) -> CampaignSummary:
        """Date and noise floor of a finished campaign, or of the recording; modelled costs have neither."""
        if self.params.backend == "modelled":
            return CampaignSummary(None, no_disagreement())
        if self.params.backend == "recorded":
            card = open_recording(self.recording).card
            return CampaignSummary(str(card["date"]), dict(card["noise_floor"]))
        return super().summary(records, samples)


@final
@dataclass(frozen=True)
class CommCampaign(_Campaign[CollectiveSample]):
    """A campaign of communication costs. It may measure all-to-alls and reductions together.

    Attributes:
        params: parameters of the campaign.
        seed: seed of the order of visits, and of the choice of samples that are measured twice.
        topology: the cluster for which the backend `topology`, which measures nothing, models the costs.
    """

    params: CommMeasureParams
    topology: TopologyParams | None = None

    def run(self, samples: Sequence[CollectiveSample], done: Records) -> Iterator[tuple[str, pd.DataFrame]]:
        """See `_Campaign.run`."""
        if self.params.backend == "topology":
            return
        with comm_pool(samples, self.params) as pool:
            yield from self._run(samples, done, pool)

    def costs(self, records: Records, samples: Sequence[CollectiveSample]) -> pd.DataFrame:
        """Costs of a finished campaign's all-to-alls: `sample_id, rank, forward_ms, backward_ms, spread_ms, error`."""
        if self.params.backend == "topology":
            exchanges = [sample for sample in samples if isinstance(sample, CommSample)]
            return topology_costs(exchanges, require_topology(self.topology).network)
        return self._reduced(records, samples).drop(columns="repeats")

    def reduction_costs(self, records: Records, samples: Sequence[ReductionSample]) -> pd.DataFrame:
        """Costs of a finished campaign's reductions: `sample_id, cost_ms, spread_ms, error`.

        The cost is the time from the common start until the last rank has its result. A sample without a successful
        visit has an error and no cost.
        """
        if self.params.backend == "topology":
            return topology_reduction_costs(samples, require_topology(self.topology).network)
        reduced = self._reduced(records, samples, self.params.reduction_statistic)
        by_sample = reduced.groupby("sample_id", sort=False)
        costs = by_sample.agg(cost_ms=("forward_ms", "max"), spread_ms=("spread_ms", "max"), error=("error", "first"))
        return costs.reset_index()

    def summary(self, records: Records, samples: Sequence[CollectiveSample]) -> CampaignSummary:
        """Date and noise floor of a finished campaign; modelled costs have neither."""
        if self.params.backend == "topology":
            return CampaignSummary(None, no_disagreement())
        return super().summary(records, samples)


@cache
def _warn_once(doubt: str) -> None:
    """Warn once per process, even if the doubt concerns several campaigns."""
    _LOGGER.warning(doubt)
