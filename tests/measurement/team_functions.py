"""What the tests' worker processes run; in a module of its own, as workers import it by name."""

from __future__ import annotations

import os
import signal
import time

import torch

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.comm_bench import CollectiveBench, forward_splits, set_up_rank
from neuroshard_pipeline.measurement.compute_bench import set_up_worker

WORLD = 3


def calculator(rank, start):
    def answer(job):
        if job == "die" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "hang" and rank == 0:
            time.sleep(60)
        if job == "raise":
            raise ZeroDivisionError("one over nothing")
        return start + rank, os.getpid()

    return answer


def unfit(_rank):
    raise MeasurementError("no such device")


def exchange_of_rank(rank, params, store_file):
    """Every rank sends its number plus a hundredth of the receiver's; returns what came, forward and backward."""
    bench = CollectiveBench(rank, WORLD, params, store_file)

    def answer(sample):
        results = []
        for backward in (False, True):
            sizes = forward_splits(sample, rank)[1 if backward else 0]
            send = torch.cat([torch.full((size,), rank + to / 100) for to, size in enumerate(sizes)])
            results.append(bench.exchange(sample, send, backward).tolist())
        return results

    return answer


def set_up_mortal_rank(rank, world_size, samples, params, store_file):
    """As `set_up_rank`, but the last rank dies of the sample called deadly."""
    return mortal(set_up_rank(rank, world_size, samples, params, store_file), samples, rank == world_size - 1)


def set_up_mortal_worker(rank, worker, samples, params, seed):
    """As `set_up_worker`, but it dies of the sample called deadly."""
    return mortal(set_up_worker(rank, worker, samples, params, seed), samples, True)


def mortal(measure, samples, dies):
    def answer(indices):
        if dies and any("deadly" in samples[index].sample_id for index in indices):
            os.kill(os.getpid(), signal.SIGKILL)
        return measure(indices)

    return answer
