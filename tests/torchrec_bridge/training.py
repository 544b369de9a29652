"""A training loop that compares a sharded model with the same model trained without sharding."""

from __future__ import annotations

import copy
import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec_bridge.trained_models import LEARNING_RATE, LOCAL_BATCH, Batches, built, initial


def train_both(
    rank: int, world_size: int, kind: str, plan: ShardingPlan, steps: int, last: AbstractContextManager
) -> tuple[list[tuple[float, float]], Any]:
    """Losses per step of this rank's part under `plan`, and of the same samples in the unsharded model.

    The forward and the backward pass of the last step run in the context `last`, whose value is returned, too.

    Raises:
        AssertionError: the trained weights of a shard differ from the unsharded model's.
    """
    expected, first, trained = _trained_unsharded(kind, world_size, steps)
    parallel = sharded(built(kind), plan)
    for shard, original in pairs(parallel, first):
        shard.copy_(original)
    # Replicated tables belong to the dense parameters, although an optimizer was attached to them.
    dense = [parameter for _, parameter in in_backward_optimizer_filter(parallel.named_parameters())]
    optimizer = torch.optim.SGD(dense, lr=LEARNING_RATE)
    part = slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        with last if step == steps - 1 else nullcontext() as value:
            mine = losses_of(parallel, drawn(kind, world_size, step, rank)).mean()
            mine.backward()
        losses.append((mine.item(), expected[step][part].mean().item()))
        optimizer.step()
    for shard, original in pairs(parallel, trained):
        torch.testing.assert_close(shard, original, rtol=1e-4, atol=1e-5)
    return losses, value


@functools.cache
def _trained_unsharded(
    kind: str, world_size: int, steps: int
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """For every step, the loss of every sample of all ranks in the unsharded model; its first and its trained weights.

    All plans of a rank are compared with the same training.
    """
    model = initial(kind)
    batches = _batches(kind, world_size)
    first = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(losses_of(model, batches.draw(step, slice(0, batches.samples))))
        losses[-1].mean().backward()
        optimizer.step()
    return [loss.detach() for loss in losses], first, model.state_dict()


@functools.cache
def drawn(kind: str, world_size: int, step: int, rank: int) -> tuple:
    """The part of a batch that one rank trains with."""
    return _batches(kind, world_size).draw(step, slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH))


@functools.cache
def _batches(kind: str, world_size: int) -> Batches:
    return Batches(initial(kind), world_size)


def sharded(model: nn.Module, plan: ShardingPlan) -> DistributedModelParallel:
    return DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=plan,
        sharders=[EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()],
    )


def losses_of(model: nn.Module, batch: tuple) -> torch.Tensor:
    dense, ids, labels = batch
    return nn.functional.binary_cross_entropy_with_logits(model(dense, *ids), labels, reduction="none")


def pairs(sharded: nn.Module, weights: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's shards and replicas, each with the corresponding weights of the unsharded model."""
    found = []
    for name, value in sharded.state_dict().items():
        for tensor, (row, column) in _shards(value):
            rows, columns = tensor.shape if tensor.dim() == 2 else (len(tensor), 1)
            original = weights[name][row : row + rows]
            found.append((tensor, original[:, column : column + columns] if tensor.dim() == 2 else original))
    return found


def _shards(value: Any) -> list[tuple[torch.Tensor, tuple[int, int]]]:
    """This rank's shards of a tensor, or the whole tensor, with their first rows and columns."""
    if isinstance(value, DTensor):  # in the state dicts of replica groups
        local = value.to_local()
        return list(zip(local.local_shards(), local.local_offsets(), strict=False))  # a rank may have no shard
    if hasattr(value, "local_shards"):
        return [(shard.tensor.detach(), tuple(shard.metadata.shard_offsets)) for shard in value.local_shards()]
    return [(value.detach(), (0, 0))]
