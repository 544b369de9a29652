"""What the ranks of moves_on_gloo.py do, in a module that they can import."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist

import neuroshard_pipeline as ns
from neuroshard_pipeline.torchrec_bridge.moving import move
from neuroshard_pipeline.torchrec_bridge.ranks import join_ranks
from neuroshard_pipeline.torchrec_bridge.truth.embeddings import ShardedEmbeddings
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams

REPEATS = 9
PARAMS = StepParams(
    backend="gloo",
    threads=1,
    timeout_s=600,
    learning_rate=0.01,
    num_batches=2,
    rounds=16,
    warmup_steps=1,
    steps_per_round=4,
    most_plans_held=4,
    seed=0,
)


class Job(NamedTuple):
    """Plans between which the ranks move a model."""

    old: ns.Plan
    new: ns.Plan


def set_up(rank: int, world_size: int, store: str) -> Callable[[Job], list[float]]:
    """Join the group; the returned function measures moves in ms."""
    device = join_ranks(rank, world_size, PARAMS, store)

    def measure(job: Job) -> list[float]:
        old, new = (ShardedEmbeddings(plan, PARAMS, device) for plan in job)
        found = []
        for _ in range(REPEATS):
            dist.barrier()
            start = time.perf_counter()
            move(old.sharded, new.sharded, old.dense_optimizers, new.dense_optimizers, new=True)
            dist.barrier()
            found.append(1000 * (time.perf_counter() - start))
        return found

    return measure
