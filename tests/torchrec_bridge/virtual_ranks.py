"""Jobs of virtual ranks, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torchrec_bridge.truth_ranks import Rows, trained_rows

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.virtual import copies
from neuroshard_pipeline.torchrec_bridge.virtual.group import join_virtual_ranks


def set_up_training(
    rank: int, world_size: int, ranks_per_host: int, batches: Sequence[Batch], params: StepParams, store_file: str
) -> Callable[[tuple[Plan, bool]], Rows]:
    """Join the group; the returned function trains a plan and returns the rows of this rank's part of batch 0.

    It also gets whether collectives copy their tensors, as they do for those of a GPU.
    """
    log = join_virtual_ranks(rank, world_size, params, store_file, ranks_per_host)

    def train(job: tuple[Plan, bool]) -> Any:
        plan, through_copies = job
        copies.is_on_host = lambda _: not through_copies
        return trained_rows(rank, world_size, plan, batches, params, log)[1]

    return train


def set_up_steps(rank: int, world_size: int, num_floats: int) -> Callable[[], None]:
    """A step is one all_reduce; it fails on the last rank if there is nothing to reduce."""
    buffer = torch.ones(num_floats)

    def step() -> None:
        if num_floats == 0 and rank == world_size - 1:
            raise ValueError("nothing to reduce")
        dist.all_reduce(buffer)

    return step


def set_up_alternating(rank: int, world_size: int) -> Callable[[], None]:  # noqa: ARG001
    """Every second step computes a hundred times as much, and reduces twice as many floats."""
    numbers = itertools.count()

    def step() -> None:
        is_heavy = next(numbers) % 2
        sum(range(10**6 if is_heavy else 10**4))
        dist.all_reduce(torch.ones(1000 * (1 + is_heavy)))

    return step


def set_up_collectives(rank: int, world_size: int, params: StepParams, store_file: str) -> Callable[[bool], Any]:
    """The returned function runs collectives, through copies or without, and returns results and the step's log."""
    log = join_virtual_ranks(rank, world_size, params, store_file)

    def run(through_copies: bool) -> Any:
        copies.is_on_host = lambda _: not through_copies
        log.now()
        found = [each.tolist() for each in _collectives(rank, world_size)]
        log.now()
        return found, log.finish()

    return run


def _collectives(rank: int, world: int) -> list[torch.Tensor]:
    """Results of collectives, and tensors that a collective must leave as they are."""
    splits = [[1 + (at + to) % 3 for to in range(world)] for at in range(world)]
    given = torch.arange(2 * sum(splits[rank])).reshape(-1, 2) + 100 * rank
    rows = torch.full((sum(splits[rank]), 2), -1)
    work = dist.all_to_all_single(rows, given, splits[rank], splits[rank], async_op=True)
    parts = [torch.full((2,), -1.0) for _ in range(world)]
    dist.all_to_all(parts, [torch.full((2,), float(rank + 10 * at)) for at in range(world)])
    sums = torch.full((3,), rank + 1.0, requires_grad=True)
    dist.all_reduce(sums)
    future = dist.all_reduce(torch.tensor([2.0**rank]), async_op=True).get_future()
    (future_sum,) = future.wait()
    block, gathered = torch.zeros(2), torch.zeros(2 * world)
    dist.reduce_scatter_tensor(block, torch.arange(2.0 * world) * (1 + rank))
    dist.all_gather_into_tensor(gathered, block)
    listed = [torch.zeros(2) for _ in range(world)]
    dist.all_gather(listed, block)
    own, of_all = torch.tensor([rank]), [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.broadcast(own, world - 1)
    dist.gather(own, of_all if rank == 0 else None, 0)
    dist.barrier()
    work.wait()
    work.wait()
    return [rows, given, *parts, sums, future_sum, block, gathered, *listed, own, *of_all]
