"""What one rank does: joins the group, shards the model under every plan, trains the steps that it is told to."""

from __future__ import annotations

import datetime
import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams
from neuroshard_pipeline.workers import settle_on_core

if TYPE_CHECKING:
    from torchrec.distributed import DistributedModelParallel


@dataclass(frozen=True)
class Turn:
    """Steps that are trained under one plan without a break.

    Attributes:
        plan: position of the plan.
        first_step: number of the first step, which decides the batches.
        steps: how many.
    """

    plan: int
    first_step: int
    steps: int


#: Per step of a turn: the mean loss of this rank's samples, and the milliseconds that the step took.
Steps = list[tuple[float, float]]


def set_up_rank(
    rank: int,
    world_size: int,
    plans: Sequence[Plan],
    batches: Sequence[Batch],
    params: TrainingParams,
    store_file: str,
) -> Callable[[Turn], Steps]:
    """Join the process group and shard the model under every plan; the answer trains turns.

    TorchRec is imported here, in the rank's own process.
    """
    warnings.simplefilter("ignore")  # TorchRec, FBGEMM and torch.distributed warn of their own deprecations
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world_size))
    device = torch.device("cpu")
    if params.backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(params.threads)
        if params.threads == 1:
            settle_on_core(rank)
    dist.init_process_group(
        params.backend,
        store=dist.FileStore(store_file, world_size),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=params.timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    return RankTrainer(rank, world_size, plans, batches, params, device).train


class RankTrainer:
    """The sharded models of one rank, one per plan, and its part of the batches."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        plans: Sequence[Plan],
        batches: Sequence[Batch],
        params: TrainingParams,
        device: torch.device,
    ) -> None:
        from neuroshard_pipeline.torchrec_bridge.train_check.model import keyed_ids
        from neuroshard_pipeline.torchrec_bridge.train_check.sharded import shard_model

        self._device = device
        share = len(batches[0].labels) // world_size
        part = slice(rank * share, (rank + 1) * share)
        names = [table.name for table in plans[0].task.tables]
        self._batches = [
            (
                torch.from_numpy(batch.dense[part]).to(device),
                keyed_ids(names, batch.ids, part).to(device),
                torch.from_numpy(batch.labels[part]).to(device),
            )
            for batch in batches
        ]
        self._models: list[DistributedModelParallel] = [shard_model(plan, params, device) for plan in plans]
        self._optimizers = [
            torch.optim.SGD(model.module.dense_parameters(), lr=params.learning_rate) for model in self._models
        ]

    def train(self, turn: Turn) -> Steps:
        """Train a turn; the ranks start it together."""
        dist.barrier()
        return [self._step(turn.plan, number) for number in range(turn.first_step, turn.first_step + turn.steps)]

    def _step(self, plan: int, number: int) -> tuple[float, float]:
        start = time.perf_counter()
        dense, ids, labels = self._batches[number % len(self._batches)]
        optimizer = self._optimizers[plan]
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(self._models[plan](dense, ids), labels)
        loss.backward()
        optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return loss.item(), 1000.0 * (time.perf_counter() - start)
