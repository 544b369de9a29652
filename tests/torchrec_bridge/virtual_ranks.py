"""Jobs of virtual ranks, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torchrec_bridge.truth_ranks import Rows, trained_rows

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.virtual.group import join_virtual_ranks


def set_up_training(
    rank: int, world_size: int, ranks_per_host: int, batches: Sequence[Batch], params: StepParams, store_file: str
) -> Callable[[Plan], Rows]:
    """Join the group; the returned function trains a plan and returns the rows of this rank's part of batch 0."""
    log = join_virtual_ranks(rank, world_size, params, store_file, ranks_per_host)

    def train(plan: Plan) -> Any:
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
