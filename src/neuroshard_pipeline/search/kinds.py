"""The shard kinds of a search: what is known of every distinct (table, width), looked up once.

Two shards of one table with the same width cost the same wherever their columns begin, so a search thinks in
kinds; columns are dealt out when a plan is made. Shapes: Y kinds, H numbers of a shard embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import FloatArray, IntArray, Models, quantised
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard
from neuroshard_pipeline.tables.task import ShardingTask


class ShardKinds:
    """Kinds met so far, numbered from 0 in order of appearance; the whole tables come first.

    Attributes:
        task: the sharding task.
        models: the cost models.
        memory: the memory model.
        table: (Y,) index of the table in the task.
        width: (Y,) columns.
        bytes: (Y,) memory on a rank.
        embedding: (Y, H) shard embeddings.
        cost: (Y,) predicted compute cost of the shard alone on a rank, in units of 1e-9 ms.
        limits: (W,) bytes that shards may use on each rank.
    """

    def __init__(self, task: ShardingTask, models: Models, memory: MemoryModel):
        self.task = task
        self.models = models
        self.memory = memory
        self.limits: IntArray = np.array(memory.limits(task), dtype=np.int64)
        self._number: dict[tuple[int, int], int] = {}
        self.table: IntArray = np.empty(0, dtype=np.int64)
        self.width: IntArray = np.empty(0, dtype=np.int64)
        self.bytes: IntArray = np.empty(0, dtype=np.int64)
        self.cost: FloatArray = np.empty(0)
        self.embedding: FloatArray = np.empty((0, 0))
        self.whole_tables = self.numbers((index, table.embedding_dim) for index, table in enumerate(task.tables))

    def numbers(self, pairs: Iterable[tuple[int, int]]) -> IntArray:
        """Kind numbers of (table index, width) pairs; unknown ones are embedded in one call of the model."""
        wanted = list(pairs)
        fresh = list(dict.fromkeys(pair for pair in wanted if pair not in self._number))
        if fresh:
            self._add(fresh)
        return np.array([self._number[pair] for pair in wanted], dtype=np.int64)

    def halves(self, kinds: Sequence[int]) -> IntArray:
        """Kinds of half the width, one for each of `kinds`."""
        return self.numbers((int(self.table[kind]), int(self.width[kind]) // 2) for kind in kinds)

    @property
    def can_halve(self) -> np.ndarray:
        """(Y,) whether half the width is still a multiple of 4."""
        return self.width % (2 * COLUMN_GRANULARITY) == 0

    @property
    def placement_order(self) -> IntArray:
        """Kinds in descending cost; ties by the order of tables in the task, then the wider first."""
        return np.lexsort((-self.width, self.table, -self.cost))

    def in_placement_order(self, states: IntArray) -> IntArray:
        """Every row of `states` (..., N) in placement order."""
        order = self.placement_order
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        return order[np.sort(position[states], axis=-1)]

    def plan(self, kinds: IntArray, ranks: IntArray, sharder: str) -> Plan:
        """The plan that puts a shard of `kinds[i]` on `ranks[i]`; a table's columns are dealt out in this order."""
        next_column = [0] * len(self.task.tables)
        shards = []
        for table, width in zip(self.table[kinds].tolist(), self.width[kinds].tolist(), strict=True):
            shards.append(Shard(self.task.tables[table], next_column[table], width))
            next_column[table] += width
        return Plan(self.task, tuple(shards), tuple(ranks.tolist()), sharder, None, self.memory)

    def _add(self, pairs: list[tuple[int, int]]) -> None:
        shards = [Shard(self.task.tables[table], 0, width) for table, width in pairs]
        embeddings = self.models.compute.shard_embeddings(shards, self.task.batch_size)
        costs = self.models.compute.costs_from_sums(embeddings, self.task.batch_size).sum(axis=-1)
        known = len(self._number)
        self._number.update({pair: known + index for index, pair in enumerate(pairs)})
        self.table = np.append(self.table, [table for table, _ in pairs])
        self.width = np.append(self.width, [width for _, width in pairs])
        self.bytes = np.append(self.bytes, [self.memory.shard_bytes(shard, self.task) for shard in shards])
        self.cost = np.append(self.cost, quantised(costs))
        self.embedding = np.concatenate([self.embedding, embeddings]) if known else embeddings
