"""The worker teams that measure the chunks of a campaign; a chunk is a list of samples that are saved together."""

import logging
import tempfile
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pandas as pd

from neuroshard_pipeline.host import usable_cores
from neuroshard_pipeline.measurement.chunks import AnySample, Chunk
from neuroshard_pipeline.measurement.costs import make_record
from neuroshard_pipeline.measurement.cuda import needs_cuda
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.measurement.id_files import batches_of, files_of
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.time_budget import TimeBudget
from neuroshard_pipeline.measurement.timing import Timing
from neuroshard_pipeline.tables.samples import CollectiveSample, ComputeSample
from neuroshard_pipeline.workers import ATTEMPTS, Item, LocalTeam, Pool, Team, single_workers

_LOGGER = logging.getLogger(__name__)

#: Modules that the fork server, which starts all local workers without a GPU, imports once.
PRELOAD = tuple(f"neuroshard_pipeline.measurement.{name}" for name in ("comm_bench", "compute_bench", "fbgemm"))
#: A chunk is given up when this many of its samples in a row fail although each is measured alone.
_GIVE_UP_AFTER = 3


def measured(
    samples: Sequence[AnySample], chunks: Sequence[Chunk], pool: Pool, budget: TimeBudget
) -> Iterator[tuple[Chunk, pd.DataFrame]]:
    """Measure chunks in the given order and yield each with its record as it finishes, until the time budget ends.

    Until a sample succeeds, one chunk is measured at a time, so that a caller can stop a campaign that cannot work.
    If the worker of a chunk dies, hangs or raises an unexpected exception, each sample of the chunk is measured alone.
    A sample that fails alone becomes rows with an error, and the following chunks leave it out.
    """
    waiting = deque(chunks)
    handed: list[Chunk] = []
    failed: list[tuple[Chunk, str]] = []
    deadly: set[tuple[int, bool]] = set()  # (index, replica): the other measurement of a sample may succeed
    any_success = False

    def items() -> Iterator[Item]:
        while waiting and not failed and (any_success or not handed) and budget.starts(waiting[0].visit):
            chunk = waiting.popleft()
            left = tuple(index for index in chunk.indices if (index, chunk.replica) not in deadly)
            if left:
                handed.append(replace(chunk, indices=left))
                yield Item(left, chunk.group)

    while waiting and not budget.is_over:
        handed.clear()
        failed.clear()
        for outcome in pool.run(items(), ATTEMPTS if any_success else 1):
            chunk = handed[outcome.index]
            if outcome.value is None:
                failed.append((chunk, str(outcome.error)))
            else:
                record = make_record(samples, chunk, outcome.value)
                any_success |= bool(record["error"].isna().any())
                yield chunk, record
        for chunk, error in failed:
            timings, died = _measured_singly(chunk, error, pool)
            record = make_record(samples, chunk, timings)
            any_success |= bool(record["error"].isna().any())
            deadly |= {(index, chunk.replica) for index in died}
            yield chunk, record


def _measured_singly(chunk: Chunk, error: str, pool: Pool) -> tuple[list[list[Timing]], set[int]]:
    """Measure every sample of a failed chunk alone, to find those that fail.

    Returns:
        The timings of each rank, and the indices of the samples that failed alone.
    """
    size = max(chunk.group, 1)
    if len(chunk.indices) == 1:
        return [[Timing.failed(error)]] * size, set(chunk.indices)
    _LOGGER.warning("%d samples failed together: %s; each of them is measured alone now", len(chunk.indices), error)
    errors: list[str] = []  # of the samples that failed since the last success

    def items() -> Iterator[Item]:
        for index in chunk.indices:
            if len(errors) >= _GIVE_UP_AFTER:
                return
            yield Item((index,), chunk.group)

    answers: dict[int, list[list[Timing]]] = {}
    died: set[int] = set()
    for outcome in pool.run(items(), attempts=1):
        if outcome.value is None:
            errors.append(str(outcome.error))
            died.add(chunk.indices[outcome.index])
            answers[outcome.index] = [[Timing.failed(errors[-1])]] * size
        else:
            errors.clear()
            answers[outcome.index] = outcome.value
    given_up = [
        [Timing.failed(f"left out after {len(errors)} failures in a row: {errors[-1] if errors else ''}")]
    ] * size
    of_samples = [answers.get(position, given_up) for position in range(len(chunk.indices))]
    return [[timing for answer in of_samples for timing in answer[rank]] for rank in range(size)], died


@contextmanager
def compute_pool(samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int) -> Iterator[Pool]:
    """A pool of workers that measure at the same time, on this host or on a Ray cluster."""
    from neuroshard_pipeline.measurement.compute_bench import set_up_worker  # imported late, because it imports torch

    def open_teams() -> dict[int, list[Team]]:
        machine = fingerprint(params.backend)
        # Ids are drawn here, on all cores, because a chunk has a time limit, and a GPU would wait for them.
        files_of(params, seed).draw_missing(batches_of(samples), len(usable_cores()))

        def arguments(worker: int) -> tuple[object, ...]:
            return worker, samples, params, seed, machine

        gpus = int(needs_cuda(params.backend))
        return {
            0: single_workers(params.worker_params, set_up_worker, arguments, gpus_per_worker=gpus, preload=PRELOAD)
        }

    with Pool(open_teams, params.timeout_s) as pool:
        yield pool


@contextmanager
def comm_pool(samples: Sequence[CollectiveSample], params: CommMeasureParams) -> Iterator[Pool]:
    """A pool with one team for every world size; only one team measures at a time.

    A world size above `params.local_world_size` is measured by ranks that torchrun has started on several hosts.
    """
    from neuroshard_pipeline.measurement.comm_bench import set_up_rank  # imported late, because both import torch
    from neuroshard_pipeline.measurement.torchrun_team import TorchrunTeam

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
