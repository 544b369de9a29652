"""What the price of a step needs of each of S shards: its embedding (H numbers) and its work (Q quantities)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.tables.dedup import looked_up
from neuroshard_pipeline.tables.placed import PlacedShards, placed_shards
from neuroshard_pipeline.tables.step_work import QUANTITIES, shard_work
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: About how many shards the plans may have together whose distinct shards are known.
_MOST_PLACED = 100_000

#: What equal shards of one task have in common: table, width, rows and sharding type.
ShardKey = tuple[str, int, int, str]


class ShardCache:
    """Embeddings and work of the shards of one task, computed once for equal shards of a table."""

    def __init__(self, task: ShardingTask, models: Models) -> None:
        self._task, self._models = task, models
        self._embedded: dict[ShardKey, FloatArray] = {}
        self._works: dict[ShardKey, FloatArray] = {}
        self._placed: dict[tuple[int, int], tuple[Sequence[Shard], Sequence[int], PlacedShards]] = {}

    def placed(self, shards: Sequence[Shard], ranks: Sequence[int]) -> PlacedShards:
        """`placed_shards`; the last results are known, because placements are checked before they are priced."""
        key = id(shards), id(ranks)
        if key not in self._placed:
            if len(self._placed) * len(shards) > _MOST_PLACED:
                self._placed.clear()
            self._placed[key] = shards, ranks, placed_shards(shards, ranks, self._task.world_size)
        return self._placed[key][2]

    def embeddings(self, shards: Sequence[Shard]) -> FloatArray:
        """(S, H) embeddings of what the kernels of shards of any type see (`shard_embeddings`)."""
        return each_once(self._embedded, shards, lambda new: shard_embeddings(new, self._task, self._models))

    def works(self, shards: Sequence[Shard]) -> FloatArray:
        """(S, 2, Q) work of the shards (`step_work.shard_work`)."""
        return shard_works(self._works, shards, self._task)


def each_once(
    known: dict[ShardKey, FloatArray], shards: Sequence[Shard], of: Callable[[list[Shard]], FloatArray]
) -> FloatArray:
    """The entry of every shard; one call of `of` computes those that are not yet `known`, and they are added to it."""
    keys = [(shard.table.name, shard.embedding_dim, shard.num_rows, shard.sharding_type) for shard in shards]
    unknown = {key: shard for key, shard in zip(keys, shards, strict=True) if key not in known}
    if unknown:
        known.update(zip(unknown, of(list(unknown.values())), strict=True))
    return np.array([known[key] for key in keys])


def shard_works(known: dict[ShardKey, FloatArray], shards: Sequence[Shard], task: ShardingTask) -> FloatArray:
    """(S, 2, Q) `step_work.shard_work` of the shards; that of shards that are `known` is not computed again."""
    works = each_once(known, shards, lambda new: np.array([shard_work(each, task) for each in new]))
    return works.reshape(-1, 2, len(QUANTITIES))


def shard_embeddings(shards: Sequence[Shard], task: ShardingTask, models: Models) -> FloatArray:
    """Embeddings (S, H) of what the kernels of shards of any type see."""
    seen = [_seen(shard, task) for shard in shards]
    found: dict[tuple[Shard, int], FloatArray] = {}
    for batch_size in dict.fromkeys(batch_size for _, batch_size in seen):
        batch = list(dict.fromkeys(shard for shard, own in seen if own == batch_size))
        made = models.compute.shard_embeddings(batch, batch_size, task.optimizer)
        found |= {(shard, batch_size): row for shard, row in zip(batch, made, strict=True)}
    return np.array([found[key] for key in seen])


def _seen(shard: Shard, task: ShardingTask) -> tuple[Shard, int]:
    """The lookups of a shard (`dedup.looked_up`); every id of a sequence table is a bag."""
    looked, batch_size = looked_up(shard, task)
    if shard.table.pooling != "none":
        return looked, batch_size
    num_bags = max(1, round(batch_size * looked.table.pooling_factor))
    single = replace(looked.table, pooling_factor=1.0, pooling="sum", num_features=1, tier=None)
    return Shard(single, looked.column_offset, looked.embedding_dim), num_bags
