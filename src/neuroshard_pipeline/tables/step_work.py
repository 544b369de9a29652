"""The work of a training step beside lookups and the exchange of pooled rows: ids, copies and dense gradients.

Shapes: W ranks, Q quantities. TorchRec's words: the *input dist* sends every rank the ids that look up its shards.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: Quantities of one rank, in millions unless the description says otherwise.
QUANTITIES: dict[str, str] = {
    "groups": "number of pairs of module and sharding type; each has an input dist and a lookup of its own",
    "features": "number of features whose ids the rank receives; a feature counts again for every shard",
    "bags": "bag lengths that the rank receives: features * batch_size",
    "ids": "ids that the rank receives",
    "sent_bags": "bag lengths that the rank sends, the same on all ranks",
    "sent_ids": "ids that the rank sends, the same on all ranks",
    "pooled": "floats that the rank's lookups write for the samples of all ranks",
    "returned": "floats that the rank gets back for its own samples, the same on all ranks",
    "reordered": "those of `returned` in groups with a table of several column shards, whose outputs are all permuted",
    "replicas": "number of modules with replicas, which have a lookup and an all-reduce of their own",
    "gradients": "floats of the dense gradients of replicas, the same on all ranks",
}

_MILLION = 1e6
_INDEX = {name: index for index, name in enumerate(QUANTITIES)}


def shard_work(shard: Shard, task: ShardingTask) -> tuple[FloatArray, FloatArray]:
    """The work that one shard causes on its own rank, and on every rank of the task: (Q,) each, without `groups`.

    A replica needs no exchange. Every rank has a replica of its table, so the second array counts each replica for a
    part of `1 / world_size`.
    """
    table, own, everywhere = shard.table, np.zeros(len(QUANTITIES)), np.zeros(len(QUANTITIES))
    share = 1.0 / task.world_size
    ids = task.batch_size * table.pooling_factor
    outputs = (ids if table.pooling == "none" else task.batch_size * table.num_features) * shard.embedding_dim
    if shard.sharding_type == "data_parallel":
        own[_INDEX["pooled"]] = outputs * share / _MILLION
        everywhere[_INDEX["returned"]] = outputs * share**2 / _MILLION
        everywhere[_INDEX["gradients"]] = share * table.num_embeddings * table.embedding_dim / _MILLION
        return own, everywhere
    bags = task.batch_size * table.num_features
    own[_INDEX["features"]] = table.num_features
    own[_INDEX["bags"]] = bags / _MILLION
    own[_INDEX["ids"]] = ids * shard.row_share / _MILLION
    own[_INDEX["pooled"]] = outputs * (shard.row_share if table.pooling == "none" else 1.0) / _MILLION
    everywhere[_INDEX["sent_bags"]] = share * bags / _MILLION
    everywhere[_INDEX["sent_ids"]] = share * ids * shard.row_share / _MILLION
    everywhere[_INDEX["returned"]] = share * outputs * shard.row_share / _MILLION
    return own, everywhere


def rank_work(task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int]) -> FloatArray:
    """The work of every rank (W, Q) under a plan with `shards[i]` on `ranks[i]`."""
    work = np.zeros((task.world_size, len(QUANTITIES)))
    for shard, rank in zip(shards, ranks, strict=True):
        own, everywhere = shard_work(shard, task)
        work[rank] += own
        work += everywhere
    work[:, _INDEX["groups"]] = len(exchange_groups(shards))
    work[:, _INDEX["replicas"]] = len({s.table.module for s in shards if s.sharding_type == "data_parallel"})
    work[:, _INDEX["reordered"]] = reordered_floats(task, shards)
    return work


def reordered_floats(task: ShardingTask, shards: Sequence[Shard]) -> float:
    """The quantity `reordered` of a plan with these shards; rows that are cut do not count."""
    returned: dict[tuple[str, str], float] = defaultdict(float)
    cut = set()
    for shard in shards:
        if shard.sharding_type in ("column_wise", "grid_shard"):
            group = (shard.table.module, shard.sharding_type)
            returned[group] += shard_work(shard, task)[1][_INDEX["returned"]]
            if shard.embedding_dim < shard.table.embedding_dim:
                cut.add(group)
    return sum(returned[group] for group in cut)


def exchange_groups(shards: Sequence[Shard]) -> set[tuple[str, str]]:
    """The pairs (module, sharding type) whose ids are exchanged; replicas need no exchange."""
    return {(shard.table.module, shard.sharding_type) for shard in shards if shard.sharding_type != "data_parallel"}
