"""The worker teams of a campaign: who measures a stretch, and what happens when that kills a worker."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Protocol

import pandas as pd

from neuroshard_pipeline.measurement.comm_bench import set_up_rank
from neuroshard_pipeline.measurement.compute_bench import set_up_worker
from neuroshard_pipeline.measurement.costs import raw_shard
from neuroshard_pipeline.measurement.cuda import needs_cuda
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.protocol import Timing
from neuroshard_pipeline.measurement.stretches import AnySample, Stretch
from neuroshard_pipeline.measurement.torchrun_team import TorchrunTeam
from neuroshard_pipeline.measurement.workers import Team, TeamFailedError
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

#: After so many samples in a row that each brought their worker down, the rest of a stretch is given up.
_GIVE_UP_AFTER = 3


class AnyTeam(Protocol):
    """Processes that measure the same stretch together: see `workers.Team`."""

    size: int

    def ask(self, job: Any, timeout_s: float) -> list[Any]:
        """Timings of every process; raises `TeamFailedError` where one of them came to grief."""

    def close(self) -> None:
        """End for good."""

    def kill(self) -> None:
        """End every process at once."""


class Crew:
    """The teams of a campaign, by group, and how many stretches they may measure at the same time."""

    def __init__(
        self, samples: Sequence[AnySample], teams: Mapping[int, Sequence[AnyTeam]], parallel: int, timeout_s: float
    ) -> None:
        self.parallel = parallel
        self._samples = samples
        self._teams = [team for members in teams.values() for team in members]
        self._idle = {group: list(members) for group, members in teams.items()}
        self._timeout_s = timeout_s
        self._pool = ThreadPoolExecutor(parallel)  # its threads only wait for workers

    def run(self, stretches: Iterable[Stretch]) -> Iterator[tuple[Stretch, pd.DataFrame]]:
        """Measure stretches in the given order, taking each when it starts, and yield them as they finish."""
        waiting = iter(stretches)
        running: dict[Future[pd.DataFrame], tuple[AnyTeam, Stretch]] = {}
        self._start_next(waiting, running)
        while running:
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            team, stretch = running.pop(future)
            self._idle[stretch.group].append(team)
            self._start_next(waiting, running)  # before the caller takes its time to save
            yield stretch, future.result()

    def close(self) -> None:
        """End every worker."""
        for team in self._teams:
            team.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for team in self._teams:
            team.kill()

    def _start_next(
        self, waiting: Iterator[Stretch], running: dict[Future[pd.DataFrame], tuple[AnyTeam, Stretch]]
    ) -> None:
        while len(running) < self.parallel and (stretch := next(waiting, None)) is not None:
            team = self._idle[stretch.group].pop()
            running[self._pool.submit(self._measure, team, stretch)] = team, stretch

    def _measure(self, team: AnyTeam, stretch: Stretch) -> pd.DataFrame:
        """One stretch as a raw shard; a sample that brings its worker down becomes rows with an error."""
        try:
            timings = team.ask(stretch.indices, self._timeout_s)
        except TeamFailedError:
            timings = self._measure_singly(team, stretch.indices)
        return raw_shard(self._samples, stretch, timings)

    def _measure_singly(self, team: AnyTeam, indices: Sequence[int]) -> list[list[Timing]]:
        """Find the samples that fail by measuring each alone; timings by rank."""
        timings: list[list[Timing]] = [[] for _ in range(team.size)]
        failures = 0
        error = ""
        for index in indices:
            answers = [[Timing.failed(error)]] * team.size
            if failures < _GIVE_UP_AFTER:
                try:
                    answers = team.ask((index,), self._timeout_s)
                    failures = 0
                except TeamFailedError as problem:
                    failures += 1
                    error = str(problem)
                    answers = [[Timing.failed(error)]] * team.size
            for of_rank, answer in zip(timings, answers, strict=True):
                of_rank.extend(answer)
        return timings


@contextmanager
def compute_crew(samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int) -> Iterator[Crew]:
    """As many single workers as `params.workers`, all at work at the same time."""
    spawn = needs_cuda(params.backend)
    arguments = [_constant(worker, samples, params, seed) for worker in range(params.workers)]
    teams = [Team(1, set_up_worker, constant, spawn) for constant in arguments]
    crew = Crew(samples, {0: teams}, params.workers, params.timeout_s)
    try:
        yield crew
    finally:
        crew.close()


@contextmanager
def comm_crew(samples: Sequence[CommSample], params: CommMeasureParams) -> Iterator[Crew]:
    """One team per world size, one of them at work at a time; torchrun's ranks where one host has too few."""
    with tempfile.TemporaryDirectory() as folder:
        teams: dict[int, list[AnyTeam]] = {}
        for world_size in sorted({sample.world_size for sample in samples}):
            if params.local_world_size is not None and world_size > params.local_world_size:
                teams[world_size] = [TorchrunTeam(world_size, samples, params)]
                continue

            def arguments(world_size: int = world_size) -> tuple[object, ...]:
                return world_size, samples, params, f"{folder}/{uuid.uuid4().hex}"  # a new meeting point every time

            teams[world_size] = [Team(world_size, set_up_rank, arguments, needs_cuda(params.backend))]
        crew = Crew(samples, teams, 1, params.timeout_s)
        try:
            yield crew
        finally:
            crew.close()


def _constant(*arguments: object) -> Callable[[], tuple[object, ...]]:
    return lambda: arguments
