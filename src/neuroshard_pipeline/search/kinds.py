"""The shard kinds of a search: what is known of every distinct (table, width), looked up once.

Two shards of one table with the same width cost the same wherever their columns begin, so a search thinks in
kinds; columns are dealt out when a plan is made. Tables that are kept together are one unit, and their one kind is
all of them. Shapes: Y kinds, U units, W ranks, N shards, H numbers of a shard embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import FloatArray, IntArray, Models, quantised
from neuroshard_pipeline.search.units import UNLIMITED, allowed_ranks, units_of
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, whole
from neuroshard_pipeline.tables.task import ShardingTask


class ShardKinds:
    """Kinds met so far, numbered from 0 in order of appearance; the whole tables come first.

    Attributes:
        task: the sharding task.
        models: the cost models.
        memory: the memory model.
        units: what is placed and split as one: a table, or tables kept together.
        rank_allowed: (U, W) whether a unit may lie on a rank, or None where every one may lie anywhere.
        table: (Y,) index of the unit, which is that of the table in the task where no tables are kept together.
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
        self.units = units_of(task)
        self.rank_allowed = allowed_ranks(self.units, task.world_size)
        self.min_width: IntArray = np.array([unit.min_width for unit in self.units], dtype=np.int64)
        self.max_shards: IntArray = np.array([unit.max_shards for unit in self.units], dtype=np.int64)
        self.limits_shards = bool((self.max_shards < UNLIMITED).any())
        self._number: dict[tuple[int, int], int] = {}
        self.table: IntArray = np.empty(0, dtype=np.int64)
        self.width: IntArray = np.empty(0, dtype=np.int64)
        self.bytes: IntArray = np.empty(0, dtype=np.int64)
        self.cost: FloatArray = np.empty(0)
        self.embedding: FloatArray = np.empty((0, 0))
        self.whole_tables = self.numbers((index, unit.width) for index, unit in enumerate(self.units))

    def numbers(self, pairs: Iterable[tuple[int, int]]) -> IntArray:
        """Kind numbers of (unit index, width) pairs; unknown ones are embedded in one call of the model."""
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
        """(Y,) whether half the width is still a multiple of 4 and no narrower than the unit allows."""
        return (self.width % (2 * COLUMN_GRANULARITY) == 0) & (self.width >= 2 * self.min_width[self.table])

    def may_split(self, state: IntArray) -> np.ndarray:
        """(N,) whether the unit of every shard of `state` may have one shard more."""
        if not self.limits_shards:
            return np.ones(len(state), dtype=bool)
        table = self.table[state]
        return np.bincount(table, minlength=len(self.units))[table] < self.max_shards[table]

    def allowed_on(self, state: IntArray) -> np.ndarray | None:
        """(N, W) whether every shard of `state` may lie on a rank, or None where all may lie anywhere."""
        return None if self.rank_allowed is None else self.rank_allowed[self.table[state]]

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
        next_column = [0] * len(self.units)
        shards: list[Shard] = []
        where: list[int] = []
        for unit, width, rank in zip(
            self.table[kinds].tolist(), self.width[kinds].tolist(), ranks.tolist(), strict=True
        ):
            added = self._shards(unit, next_column[unit], width)
            shards += added
            where += [rank] * len(added)
            next_column[unit] += width
        return Plan(self.task, tuple(shards), tuple(where), sharder, None, self.memory)

    def _shards(self, unit: int, column: int, width: int) -> list[Shard]:
        """The shards that a kind stands for: one, or the whole tables of a group."""
        tables = [self.task.tables[index] for index in self.units[unit].members]
        return [Shard(tables[0], column, width)] if len(tables) == 1 else [whole(table) for table in tables]

    def _add(self, pairs: list[tuple[int, int]]) -> None:
        shards = [self._shards(unit, 0, width) for unit, width in pairs]
        every, task = [shard for kind in shards for shard in kind], self.task
        parts = self.models.compute.shard_embeddings(every, task.batch_size, task.optimizer)
        embeddings = parts
        if len(parts) > len(pairs):
            starts = np.cumsum([0, *(len(kind) for kind in shards[:-1])])
            embeddings = np.add.reduceat(parts, starts, axis=0)
        costs = self.models.compute.costs_from_sums(embeddings, self.task.batch_size).sum(axis=-1)
        sizes = [self.units[unit].bytes(width, self.task, self.memory) for unit, width in pairs]
        known = len(self._number)
        self._number.update({pair: known + index for index, pair in enumerate(pairs)})
        self.table = np.append(self.table, [unit for unit, _ in pairs])
        self.width = np.append(self.width, [width for _, width in pairs])
        self.bytes = np.append(self.bytes, sizes)
        self.cost = np.append(self.cost, quantised(costs))
        self.embedding = np.concatenate([self.embedding, embeddings]) if known else embeddings
