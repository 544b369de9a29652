"""Bytes that the ranks of a plan send each other in one step: expectations from its tables, without any cost model.

    ids         bag lengths (4 bytes), ids (8) and weights of ids (4) of the input dist
    outputs     looked-up rows or their sums, and backward their gradients, in all-to-alls
    reductions  partial sums of row shards, dense gradients of replicas and host tiers, averages of replica groups

What a rank keeps for itself is not sent. The few numbers per pair of ranks that announce the sizes of messages do not
count. A reduction of S bytes on n ranks of H hosts is assumed to send as few bytes between hosts as possible:
S (H - 1) between hosts and S (n - H) inside them; an all_reduce sends twice these bytes. A tree over hosts does this
(`lab.network`). A ring in the order of the ranks sends the same bytes in total, but S H (n - 1) / n between hosts. The
bytes of a reduction are divided evenly among its ranks.

Tiers are parts of a sequence table by popularity of its rows (`tables.tiers`). A module with such a table sends ids
without the bags of their samples (`torchrec_bridge.tiered`). For each shard of the module, a rank then sends
`BAGS_OF_COLD_TIERS` bag lengths, or none if the shard is of a host tier.

Shapes: W ranks.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.search.parts import outputs_per_sample, reductions
from neuroshard_pipeline.tables.dedup import exchanged
from neuroshard_pipeline.tables.placed import placed_shards
from neuroshard_pipeline.tables.step_work import Group, TorchRecType, group_of
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: Pairs of a shard and its rank.
Placed = list[tuple[Shard, int]]

Kind = Literal["ids", "outputs", "reductions"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: Bags into which the ids of a rank for the cold tier of one table are divided (`torchrec_bridge.tiered.sequence`).
BAGS_OF_COLD_TIERS = 64

_LENGTH_BYTES, _ID_BYTES, _WEIGHT_BYTES, _FLOAT_BYTES = 4, 8, 4, 4
_SUMMED_IN_HOSTS = ("table_row_wise", "grid_shard")


@dataclass(frozen=True)
class Volumes:
    """Expected bytes (W,) per step by kind that every rank sends to ranks of its host, and to those of other hosts."""

    inside: Mapping[Kind, FloatArray]
    across: Mapping[Kind, FloatArray]


def plan_volumes(
    task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int], gpus_per_host: int | None = None
) -> Volumes:
    """The bytes that a step with `shards[i]` on `ranks[i]` sends; the task is the plan's, with its tiers.

    Only replica groups need `gpus_per_host`, the GPUs of a host if they are known (`tables.replica_groups`).
    """
    inside, across = ({kind: np.zeros(task.world_size) for kind in KINDS} for _ in range(2))
    host = np.arange(task.world_size) // task.ranks_per_host
    is_same = host[:, None] == host
    for kind, sent in _messages(task, shards, ranks):
        sent = np.where(np.eye(task.world_size, dtype=bool), 0.0, sent)
        inside[kind] += np.where(is_same, sent, 0.0).sum(axis=1)
        across[kind] += np.where(is_same, 0.0, sent).sum(axis=1)
    for each in reductions(task, placed_shards(shards, ranks, task.world_size), gpus_per_host):
        passes = 2.0 if each.collective == "all_reduce" else 1.0
        of_rank = passes * each.size_bytes / each.num_ranks / each.interval
        hosts = -(-each.num_ranks // each.ranks_per_host)
        inside["reductions"] += (each.num_ranks - hosts) * of_rank
        across["reductions"] += (hosts - 1) * of_rank
    return Volumes(inside, across)


def _messages(task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int]) -> Iterator[tuple[Kind, FloatArray]]:
    """Bytes from rank i to rank j, (W, W), of every all-to-all."""
    groups: dict[Group, Placed] = defaultdict(list)
    for shard, rank in zip(shards, ranks, strict=True):
        groups[group_of(shard)].append((shard, rank))
    in_tiers = {table.embedding_module for table in task.tables if table.tier is not None}
    for (module, sharding_type), placed in groups.items():
        if sharding_type == "data_parallel":
            continue
        received = np.zeros(task.world_size)  # from every rank
        for shard, rank in placed:
            received[rank] += _id_bytes(shard, task, module in in_tiers)
        yield "ids", _among(sharding_type, np.repeat(received[None, :], task.world_size, axis=0), task)
        sent = _outputs(sharding_type, placed, task)
        if sent.any():
            yield "outputs", sent
            yield "outputs", sent.T


def _id_bytes(shard: Shard, task: ShardingTask, in_tiers: bool) -> float:
    """Bytes of lengths, ids and weights that every rank sends to the shard's rank for it.

    `in_tiers` says whether any table of its module has tiers.
    """
    seen, samples = exchanged(shard, task).table, task.batch_size / task.world_size
    bags = samples * seen.num_features
    if in_tiers:
        bags = 0 if shard.sharding_type == "host_row_wise" else BAGS_OF_COLD_TIERS
    per_id = _ID_BYTES + _WEIGHT_BYTES * seen.is_weighted
    return _LENGTH_BYTES * bags + per_id * samples * seen.pooling_factor * shard.row_share


def _outputs(sharding_type: TorchRecType, placed: Placed, task: ShardingTask) -> FloatArray:
    """Bytes of the forward outputs of one group of shards from rank i to rank j, (W, W)."""
    samples, local = task.batch_size / task.world_size, task.ranks_per_host
    of_rank = defaultdict[int, float](float)
    is_sequence = placed[0][0].table.pooling == "none"
    for shard, rank in placed:
        floats = outputs_per_sample(shard, task)
        if is_sequence or sharding_type == "column_wise":
            of_rank[rank] += floats
        elif sharding_type in _SUMMED_IN_HOSTS:  # every rank of the host has the sums of an equal part of the samples
            for other in range(rank // local * local, (rank // local + 1) * local):
                of_rank[other] += floats * shard.row_share
    sent = np.zeros((task.world_size, task.world_size))
    for rank, floats in of_rank.items():
        sent[rank] = _FLOAT_BYTES * task.comm_share * samples * floats
    if not is_sequence and sharding_type in _SUMMED_IN_HOSTS:
        place, host = np.arange(task.world_size) % local, np.arange(task.world_size) // local
        return np.where((place[:, None] == place) & (host[:, None] != host), sent, 0.0)
    return _among(sharding_type, sent, task)


def _among(sharding_type: TorchRecType, messages: FloatArray, task: ShardingTask) -> FloatArray:
    """The messages (W, W) that are sent. If every host has all rows, these are the messages inside hosts only."""
    if sharding_type != "host_row_wise":
        return messages
    host = np.arange(task.world_size) // task.ranks_per_host
    return np.where(host[:, None] == host, messages, 0.0)
