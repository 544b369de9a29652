"""Functions that worker processes of the tests run; workers import this module by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

from neuroshard_pipeline.measurement.comm_bench import CollectiveBench, forward_splits, reduction, set_up_rank
from neuroshard_pipeline.measurement.compute_bench import set_up_worker

WORLD = 3


def exchange_of_rank(rank, params, store_file):
    """Returns a function that sends this rank's number plus a hundredth of the receiver's, in both directions.

    The function returns what was received.
    """
    bench = CollectiveBench(rank, WORLD, params, dist.FileStore(store_file, WORLD))

    def answer(sample):
        results = []
        for backward in (False, True):
            sizes = forward_splits(sample, rank)[1 if backward else 0]
            send = torch.cat([torch.full((size,), rank + to / 100) for to, size in enumerate(sizes)])
            received = torch.empty(sum(forward_splits(sample, rank)[0 if backward else 1]))
            dist.all_to_all_single(received, send, *bench._splits(sample, backward)[::-1])
            results.append(received.tolist())
        return results

    return answer


def reduce_of_rank(rank, params, store_file):
    """Returns a function that runs a reduction on a buffer and a share with values of the rank, and returns both."""
    CollectiveBench(rank, WORLD, params, dist.FileStore(store_file, WORLD))

    def answer(collective):
        buffer = torch.arange(2.0 * WORLD) + 100 * rank
        share = torch.tensor([10.0, 20.0]) + rank
        reduction(collective, buffer, share)()
        return buffer.tolist(), share.tolist()

    return answer


def set_up_mortal_rank(rank, world_size, samples, params, store_file):
    """Like `set_up_rank`, but the last rank dies at a job with a sample whose id contains "deadly"."""
    return mortal(set_up_rank(rank, world_size, samples, params, store_file), samples, rank == world_size - 1)


def set_up_mortal_worker(rank, worker, samples, params, seed, machine):
    """Like `set_up_worker`, but the worker dies at a job with a sample whose id contains "deadly"."""
    return mortal(set_up_worker(rank, worker, samples, params, seed, machine), samples, True)


def set_up_worker_that_recovers(rank, worker, samples, params, seed, machine):
    """Like `set_up_mortal_worker`, but only samples "deadly until FILE" are deadly, and only until the file exists."""
    measure = set_up_worker(rank, worker, samples, params, seed, machine)

    def answer(indices):
        remedies = [Path(samples[index].sample_id.partition(" until ")[2]) for index in indices]
        return mortal(measure, samples, not all(remedy.exists() for remedy in remedies))(indices)

    return answer


def set_up_broken_worker(*_):
    """A worker that raises at every job."""

    def answer(indices):
        raise RuntimeError(f"CUDA error: {len(indices)} samples, no kernel image")

    return answer


def mortal(measure, samples, dies):
    def answer(indices):
        if dies and any("deadly" in samples[index].sample_id for index in indices):
            os.kill(os.getpid(), signal.SIGKILL)
        return measure(indices)

    return answer
