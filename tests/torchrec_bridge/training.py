"""A training loop that compares a sharded model with the same model trained without sharding."""

from __future__ import annotations

import copy
import functools

import torch
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec_bridge.trained_models import LEARNING_RATE, LOCAL_BATCH, Batches, built, initial


def train_both(
    rank: int, world_size: int, kind: str, plan: ShardingPlan, steps: int
) -> tuple[list[tuple[float, float]], DistributedModelParallel]:
    """Losses per step of this rank's part under `plan`, and of the same samples in the unsharded model; then the model.

    Raises:
        AssertionError: the trained weights of a shard differ from the unsharded model's.
    """
    expected, first, trained = _trained_unsharded(kind, world_size, steps)
    parallel = sharded(built(kind), plan)
    for shard, original in _pairs(parallel, first):
        shard.copy_(original)
    # Replicated tables belong to the dense parameters, although an optimizer was attached to them.
    dense = [parameter for _, parameter in in_backward_optimizer_filter(parallel.named_parameters())]
    optimizer = torch.optim.SGD(dense, lr=LEARNING_RATE)
    part = slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        mine = losses_of(parallel, _drawn(kind, world_size, step, rank)).mean()
        mine.backward()
        losses.append((mine.item(), expected[step][part].mean().item()))
        optimizer.step()
    for shard, original in _pairs(parallel, trained):
        torch.testing.assert_close(shard, original, rtol=1e-4, atol=1e-5)
    return losses, parallel


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
def _drawn(kind: str, world_size: int, step: int, rank: int) -> tuple:
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


def _pairs(
    sharded: DistributedModelParallel, weights: dict[str, torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's shards and replicas, each with the corresponding weights of the unsharded model."""
    pairs = []
    for name, value in sharded.state_dict().items():
        if hasattr(value, "local_shards"):
            for shard in value.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                pairs.append((shard.tensor.detach(), weights[name][row : row + rows, column : column + columns]))
        else:
            pairs.append((value.detach(), weights[name]))
    return pairs
