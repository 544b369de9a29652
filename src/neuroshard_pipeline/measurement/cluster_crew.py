"""The workers of a compute campaign on a Ray cluster: who measures a stretch, and failures as rows."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import pandas as pd

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.execution import Executor
from neuroshard_pipeline.measurement.compute_bench import make_bench
from neuroshard_pipeline.measurement.costs import raw_shard
from neuroshard_pipeline.measurement.cuda import needs_cuda
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.measurement.lookup_bench import LookupBench
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.measurement.protocol import Timing
from neuroshard_pipeline.measurement.stretches import Stretch
from neuroshard_pipeline.measurement.workers import settle_on_free_core
from neuroshard_pipeline.tables.samples import ComputeSample


@dataclass(frozen=True)
class Job:
    """What a worker needs to know to measure a stretch.

    Attributes:
        samples: in the order in which they are measured.
        params: of the campaign.
        seed: of the ids.
        machine: fingerprint of the host that runs the campaign, which the worker's host must equal.
    """

    samples: tuple[ComputeSample, ...]
    params: ComputeMeasureParams
    seed: int
    machine: tuple[tuple[str, str], ...]


@final
class ClusterCrew:
    """The workers of a campaign on a cluster; a worker's death costs a second visit of what it had in hand."""

    def __init__(
        self, samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int, executor: Executor
    ) -> None:
        self._samples = samples
        self._params = params
        self._seed = seed
        self._machine = _machine(params.backend)
        self._executor = executor

    def run(self, stretches: Iterable[Stretch]) -> Iterator[tuple[Stretch, pd.DataFrame]]:
        """Measure stretches, taking each when a worker needs it, and yield them as they finish."""
        begun: list[Stretch] = []
        failed: list[Stretch] = []

        def jobs() -> Iterator[Job]:
            for stretch in stretches:
                begun.append(stretch)
                yield self._job(stretch.indices)

        for outcome in self._executor.map(measure_job, jobs()):
            stretch = begun[outcome.index]
            if outcome.value is None:
                failed.append(stretch)
            else:
                yield stretch, raw_shard(self._samples, stretch, [outcome.value])
        for stretch in failed:
            yield stretch, raw_shard(self._samples, stretch, [self._measure_singly(stretch)])

    def _measure_singly(self, stretch: Stretch) -> list[Timing]:
        """Find the samples that fail by measuring each alone."""
        timings = {}
        for outcome in self._executor.map(measure_job, [self._job((index,)) for index in stretch.indices]):
            timings[outcome.index] = outcome.value[0] if outcome.value else Timing.failed(str(outcome.error))
        return [timings[position] for position in range(len(stretch.indices))]

    def _job(self, indices: Sequence[int]) -> Job:
        return Job(tuple(self._samples[index] for index in indices), self._params, self._seed, self._machine)


@contextmanager
def cluster_crew(samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int) -> Iterator[ClusterCrew]:
    """As many workers as `params.workers`, or as the cluster has room for, each on a GPU or core of its own."""
    with Executor(params.executor, gpus_per_worker=int(needs_cuda(params.backend))) as executor:
        yield ClusterCrew(samples, params, seed, executor)


def measure_job(job: Job) -> list[Timing]:
    """What a worker runs: measure a stretch with the bench that it keeps."""
    return _bench(job.params, job.seed, job.machine).measure(job.samples)


@lru_cache(maxsize=1)
def _bench(params: ComputeMeasureParams, seed: int, machine: tuple[tuple[str, str], ...]) -> LookupBench:
    """This worker's bench.

    Raises:
        MeasurementError: this host is not like the campaign's.
    """
    unlike = [
        f"{name} {here}, not {there}"
        for (name, here), (_, there) in zip(_machine(params.backend), machine, strict=True)
        if here != there
    ]
    if unlike:
        raise MeasurementError(f"a host of the cluster has {'; '.join(unlike)}: measure with hosts of one kind only")
    if not needs_cuda(params.backend):  # a GPU's worker needs its other threads beside it
        settle_on_free_core()
    bench = make_bench(params.model_copy(update={"workers": 1}), seed, 0)  # Ray shows a worker its own GPU only
    gc.freeze()  # what lives as long as the worker need not be collected between stretches
    return bench


def _machine(backend: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in sorted(fingerprint(backend).items()))
