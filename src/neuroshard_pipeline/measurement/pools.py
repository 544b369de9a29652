"""The worker teams that measure the chunks of a campaign."""

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pandas as pd

from neuroshard_pipeline.measurement.chunks import AnySample, Chunk
from neuroshard_pipeline.measurement.comm_bench import set_up_rank
from neuroshard_pipeline.measurement.compute_bench import set_up_worker
from neuroshard_pipeline.measurement.costs import make_record
from neuroshard_pipeline.measurement.cuda import needs_cuda
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.timing import Timing
from neuroshard_pipeline.measurement.torchrun_team import TorchrunTeam
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.workers import Item, LocalTeam, Pool, Team, single_workers

#: Modules that the fork server, which starts all local workers, imports once.
PRELOAD = ("neuroshard_pipeline.measurement.pools", "neuroshard_pipeline.measurement.fbgemm")
#: A chunk is given up after this many consecutive samples that each killed their worker.
_GIVE_UP_AFTER = 3


def measured(samples: Sequence[AnySample], chunks: Sequence[Chunk], pool: Pool) -> Iterator[tuple[Chunk, pd.DataFrame]]:
    """Measure chunks in the given order and yield each with its record as it finishes.

    A sample that kills its worker becomes rows with an error.
    """
    failed: list[Chunk] = []
    for outcome in pool.run(Item(chunk.indices, chunk.group) for chunk in chunks):
        chunk = chunks[outcome.index]
        if outcome.value is None:
            failed.append(chunk)
        else:
            yield chunk, make_record(samples, chunk, outcome.value)
    for chunk in failed:
        yield chunk, make_record(samples, chunk, _measured_singly(chunk, pool))


def _measured_singly(chunk: Chunk, pool: Pool) -> list[list[Timing]]:
    """Measure every sample of a failed chunk alone, to find those that fail; returns the timings of each rank."""
    errors: list[str] = []  # of the samples that failed since the last success

    def items() -> Iterator[Item]:
        for index in chunk.indices:
            if len(errors) >= _GIVE_UP_AFTER:
                return
            yield Item((index,), chunk.group)

    size = max(chunk.group, 1)
    answers: dict[int, list[list[Timing]]] = {}
    for outcome in pool.run(items(), attempts=1):
        if outcome.value is None:
            errors.append(str(outcome.error))
            answers[outcome.index] = [[Timing.failed(errors[-1])]] * size
        else:
            errors.clear()
            answers[outcome.index] = outcome.value
    given_up = [[Timing.failed(errors[-1] if errors else "")]] * size
    of_samples = [answers.get(position, given_up) for position in range(len(chunk.indices))]
    return [[timing for answer in of_samples for timing in answer[rank]] for rank in range(size)]


@contextmanager
def compute_pool(samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int) -> Iterator[Pool]:
    """A pool of workers that measure at the same time, on this host or on a Ray cluster."""

    def open_teams() -> dict[int, list[Team]]:
        machine = fingerprint(params.backend)

        def arguments(worker: int) -> tuple[object, ...]:
            return worker, samples, params, seed, machine

        gpus = int(needs_cuda(params.backend))
        return {
            0: single_workers(params.worker_params, set_up_worker, arguments, gpus_per_worker=gpus, preload=PRELOAD)
        }

    with Pool(open_teams, params.timeout_s) as pool:
        yield pool


@contextmanager
def comm_pool(samples: Sequence[CommSample], params: CommMeasureParams) -> Iterator[Pool]:
    """A pool with one team for every world size; only one team measures at a time.

    A world size above `params.local_world_size` is measured by ranks that torchrun has started on several hosts.
    """
    with tempfile.TemporaryDirectory() as folder:

        def arguments(world_size: int) -> tuple[object, ...]:
            return world_size, samples, params, f"{folder}/{uuid.uuid4().hex}"  # a new file store at every start

        def team(world_size: int) -> Team:
            if params.local_world_size is not None and world_size > params.local_world_size:
                return TorchrunTeam(world_size, samples, params)
            spawn = needs_cuda(params.backend)
            return LocalTeam(world_size, set_up_rank, partial(arguments, world_size), spawn=spawn, preload=PRELOAD)

        def open_teams() -> dict[int, list[Team]]:
            return {size: [team(size)] for size in sorted({sample.world_size for sample in samples})}

        with Pool(open_teams, params.timeout_s, parallel=1) as pool:
            yield pool
