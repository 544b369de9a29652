"""The work of one rank: join the process group, shard the model under every plan, and train steps on request."""

from __future__ import annotations

import datetime
import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams
from neuroshard_pipeline.workers import settle_on_core


@dataclass(frozen=True)
class Turn:
    """Consecutive steps under one plan.

    Attributes:
        plan: index of the plan.
        first_step: number of the first step, which determines the batches.
        steps: number of steps.
    """

    plan: int
    first_step: int
    steps: int


#: For every step of a turn, the mean loss of this rank's samples and the duration of the step in milliseconds.
Steps = list[tuple[float, float]]


def set_up_rank(
    rank: int, plans: Sequence[Plan], batches: Sequence[Batch], params: TrainingParams, store_file: str
) -> Callable[[Turn], Steps]:
    """Join the process group and shard the model under every plan; the returned function trains a turn.

    TorchRec is imported here, in the process of the rank.
    """
    warnings.simplefilter("ignore")  # TorchRec, FBGEMM and torch.distributed warn of their own deprecated calls
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    world_size = plans[0].task.world_size
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
    return RankTrainer(plans, batches, params, device).train


class RankTrainer:
    """The sharded models of one rank, one per plan, and this rank's share of every batch."""

    def __init__(
        self, plans: Sequence[Plan], batches: Sequence[Batch], params: TrainingParams, device: torch.device
    ) -> None:
        from neuroshard_pipeline.torchrec_bridge.train_check.model import keyed_ids, shard_model

        self._device = device
        share = len(batches[0].labels) // dist.get_world_size()
        part = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
        names = [table.name for table in plans[0].task.tables]
        self._batches = [
            (
                torch.from_numpy(batch.dense[part]).to(device),
                keyed_ids(names, batch.ids, part).to(device),
                torch.from_numpy(batch.labels[part]).to(device),
            )
            for batch in batches
        ]
        self._models = [shard_model(plan, params, device) for plan in plans]
        self._optimizers = [
            torch.optim.SGD(model.module.dense_parameters(), lr=params.learning_rate) for model in self._models
        ]

    def train(self, turn: Turn) -> Steps:
        """Train a turn after all ranks have reached its start."""
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
