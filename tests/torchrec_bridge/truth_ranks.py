"""Embeddings that are trained by timed steps on the ranks of a plan, and by the same steps unsharded in one process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.truth.embeddings import RankIds, ShardedEmbeddings, unsharded_embeddings
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import durations
from neuroshard_pipeline.torchrec_bridge.virtual.log import RankLog

#: The rows of every feature, as nested lists.
Rows = dict[str, list[list[float]]]


def trained_rows(
    rank: int, world_size: int, plan: Plan, batches: Sequence[Batch], params: StepParams, log: RankLog | None = None
) -> tuple[list[dict[str, float]], Rows]:
    """Run one step per batch from equal weights; return the times, and the rows of this rank's part of batch 0.

    A virtual rank has a log.
    """
    device = torch.device("cpu")
    share = plan.task.batch_size // world_size
    part = slice(rank * share, (rank + 1) * share)
    ids = [RankIds(plan.task.tables, batch.ids, part, device) for batch in batches]
    embeddings = ShardedEmbeddings(plan, params, device, log and log.now)
    _fill(embeddings.collections)
    times = []
    for each in ids:
        times.append(durations(embeddings.step(each)))
        if log is not None:
            log.finish()
    return times, _rows_of(embeddings.collections, ids[0].keyed())


def unsharded_rows(task: ShardingTask, batches: Sequence[Batch], learning_rate: float) -> Rows:
    """The rows of batch 0 after the same steps without sharding. As in TorchRec, gradients are averaged over ranks."""
    device = torch.device("cpu")
    collections = list(unsharded_embeddings(task.tables).to_empty(device=device).values())
    for collection in collections:
        collection.__dict__["_device"] = device  # TorchRec's own record, which `to_empty` leaves at meta
    _fill(collections)
    ids = [RankIds(task.tables, batch.ids, slice(0, task.batch_size), device) for batch in batches]
    optimizer = torch.optim.SGD([w for collection in collections for w in collection.parameters()], lr=learning_rate)
    for each in ids:
        found = [c(keyed) for c, keyed in zip(collections, each.keyed(), strict=True)]
        outputs = [
            [rows.values()] if isinstance(rows, KeyedTensor) else [r.values() for r in rows.values()] for rows in found
        ]
        optimizer.zero_grad()
        (sum(rows.sum() for of in outputs for rows in of) / task.world_size).backward()
        optimizer.step()
    return _rows_of(collections, ids[0].keyed())


@torch.no_grad()
def _fill(collections: Sequence[nn.Module]) -> None:
    for collection in collections:
        for weight in collection.parameters():
            weight.fill_(0.5)


def _rows_of(collections: Sequence[nn.Module], keyed: Sequence[KeyedJaggedTensor]) -> Rows:
    found: Rows = {}
    for collection, ids in zip(collections, keyed, strict=True):
        output = collection(ids)
        if hasattr(output, "wait"):
            output = output.wait()
        if isinstance(output, KeyedTensor):
            found |= {name: rows.tolist() for name, rows in output.to_dict().items()}
        else:
            found |= {name: rows.values().tolist() for name, rows in output.items()}
    return found
