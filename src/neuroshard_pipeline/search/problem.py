"""A sharding problem: a task, cost models, a memory model, and the shard embeddings that were computed so far.

A *shard embedding* is not a row of a table: it is the numbers by which the compute cost model describes a shard. Two
shards of one table with the same width have the same cost, wherever their columns begin. A search therefore works with
*kinds*, the distinct (unit, width) pairs; `Problem.placement` assigns columns at the end. A unit is a table, or the
tables that a constraint keeps together, which are never split. A *state* holds the kind of every shard of a plan.

Shapes: Y kinds, U units, W ranks, N shards, H numbers of a shard embedding.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.search.cover import constraint_violations
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.models import Models, ModelsWith, quantised
from neuroshard_pipeline.search.parts import outputs_per_sample
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.room import PLAN_BYTES_PER_RANK, PLAN_BYTES_PER_TABLE, require_room
from neuroshard_pipeline.search.shard_cache import ShardCache, ShardKey, each_once
from neuroshard_pipeline.search.step_prices import StepPrices, WholeStepCompute, step_prices
from neuroshard_pipeline.search.units import UNLIMITED, allowed_ranks, sequence_group, units_of
from neuroshard_pipeline.tables.step_work import torchrec_type
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, whole
from neuroshard_pipeline.tables.task import ShardingTask


class Problem:
    """Everything that sharders know about a task. Kinds are numbered from 0 in the order of their first use.

    Only embeddings, and the costs and orders computed from them, need the cost models. A sharder that considers nothing
    but memory uses none of these.

    Attributes:
        task: the sharding task.
        models: the cost models; with `prices`, their compute costs include `StepPrices.own_ms`.
        memory: the memory model.
        background_ms: (W,) further costs of every rank: of shards that are not part of the problem, and fixed costs of
            groups of tables (`spread.column_problem`).
        prices: prices of the whole step, or None if the cost is the published one: lookups and all-to-all.
        known: embeddings and work of shards of any type (`parts.step_parts`).
        limits: (W,) bytes that shards may use on each rank.
        units: the units of the task, in the order of their first tables.
        rank_allowed: (U, W) whether a unit may be placed on a rank, or None if no constraint names ranks.
        min_width: (U,) columns of the narrowest shard allowed.
        max_shards: (U,) largest number of shards allowed.
        limits_shards: whether the number of shards of any unit is limited.
        group: (U,) number of every unit's group of sequence tables (`Unit.group`); -1 for other units.
        host_memory: (W,) bytes of host memory that shards may use on each rank.
        uses_host_memory: whether a table is in host memory.
        has_room: whether `packing.check_room` has accepted the task.
        unit: (Y,) index of every kind's unit; equal to the table's index in the task if no tables are kept together.
        width: (Y,) columns of every kind.
        dims: (Y,) 4-byte words that a sample gets from every kind; equal to `width` for pooled tables of one feature
            and fp32 communication.
        bytes: (Y,) memory that every kind takes on a rank.
        host_bytes: (Y,) host memory that every kind takes on a rank.
        whole_tables: (U,) the kind of every unit at its full width.

    Raises:
        TooLargeError: a plan of the task would need more memory than this machine has left.
    """

    def __init__(
        self,
        task: ShardingTask,
        models: Models,
        memory: MemoryModel,
        background_ms: FloatArray | None = None,
        prices: StepPrices | None = None,
        embedded_columns: dict[ShardKey, FloatArray] | None = None,
        host_memory: IntArray | None = None,
    ) -> None:
        require_room(task, "a plan", PLAN_BYTES_PER_RANK, PLAN_BYTES_PER_TABLE * len(task.tables))
        self.task = task
        self.models = models
        self.memory = memory
        self.background_ms = np.zeros(task.world_size) if background_ms is None else background_ms
        self.prices = prices
        if prices is not None:
            self.models = ModelsWith(WholeStepCompute(models, prices), models)
        self.known = ShardCache(task, self.models)
        self.limits: IntArray = np.array(memory.limits(task), dtype=np.int64)
        self.host_memory = np.full(task.world_size, task.host_memory_bytes or 0) if host_memory is None else host_memory
        self.uses_host_memory = any(table.is_in_host_memory for table in task.tables)
        self.has_room = False
        self.units = units_of(task)
        self.rank_allowed = allowed_ranks(self.units, task.world_size)
        self.min_width: IntArray = np.array([unit.min_width for unit in self.units], dtype=np.int64)
        self.max_shards: IntArray = np.array([unit.max_shards for unit in self.units], dtype=np.int64)
        self.limits_shards = bool((self.max_shards < UNLIMITED).any())
        groups = list(dict.fromkeys(unit.group for unit in self.units if unit.group))
        self.group: IntArray = np.array([groups.index(unit.group) if unit.group else -1 for unit in self.units])
        nothing: IntArray = np.empty(0, dtype=np.int64)
        self.unit = self.width = self.dims = self.bytes = self.host_bytes = nothing
        self._cost = self._shared_ms = self._reorder_ms = np.empty(0)
        self._embedding: FloatArray = np.empty((0, 0))
        self._number: dict[tuple[int, int], int] = {}
        self._embedded = {} if embedded_columns is None else embedded_columns
        self._embedded_columns: dict[ShardKey, FloatArray] = {}
        self._sizes: dict[ShardKey, FloatArray] = {}
        self.whole_tables = self.numbers((index, unit.width) for index, unit in enumerate(self.units))

    def of(self, placement: Placement) -> "Problem":
        """The problem that a placement solves: this one, or the problem of the placement's own variant of the task."""
        if placement.task is None or placement.task is self.task:
            return self
        return Problem(placement.task, self.models, self.memory)

    @property
    def step(self) -> StepCostModel:
        """The step cost model, which a caller has found to be there."""
        assert self.models.step is not None
        return self.models.step

    @cached_property
    def step_prices(self) -> StepPrices | None:
        """Prices of a step of the task; None if the models price no steps."""
        return None if self.models.step is None else step_prices(self.models.step, self.task)

    def of_columns(
        self, task: ShardingTask, memory: MemoryModel, background_ms: FloatArray, host_memory: IntArray
    ) -> "Problem":
        """The problem of some tables of the task, which are column-wise; all these problems share shard embeddings."""
        return Problem(task, self.models, memory, background_ms, self.step_prices, self._embedded_columns, host_memory)

    @property
    def shared_ms(self) -> FloatArray:
        """(Y,) ms that a shard of every kind adds to all ranks, for example for the ids that every rank sends."""
        self._embed_new_kinds()
        return self._shared_ms

    def added_to_all_ms(self, states: IntArray) -> FloatArray:
        """(...) ms that the shards of each of `states` (..., N) add to every rank, with the reordering of outputs."""
        added: FloatArray = self.shared_ms[states].sum(axis=-1)
        return added + self.reorder_ms[states].sum(axis=-1) * self.is_cut[states].any(axis=-1)

    @property
    def is_cut(self) -> BoolArray:
        """(Y,) whether a kind has only some of its unit's columns."""
        return self.width < self.width[self.whole_tables][self.unit]

    @property
    def reorder_ms(self) -> FloatArray:
        """(Y,) ms that all ranks need to reorder the outputs of a shard of every kind, once any table is cut."""
        self._embed_new_kinds()
        return self._reorder_ms

    @property
    def embedding(self) -> FloatArray:
        """(Y, H) embedding of every kind, summed over its tables; with `prices`, `StepPrices.own_ms` comes last."""
        self._embed_new_kinds()
        return self._embedding

    @property
    def cost(self) -> FloatArray:
        """(Y,) predicted cost of every kind alone on a rank, in 1e-9 ms, without collectives or `shared_ms`."""
        self._embed_new_kinds()
        return self._cost

    def fits_host_memory(self, placement: Placement) -> bool:
        """Whether a placement fits into host memory."""
        if not self.uses_host_memory:
            return True
        used = self.memory.host_bytes_of_ranks(placement.shards, placement.ranks, self.task)
        return bool((used <= self.host_memory).all())

    def allows(self, placement: Placement) -> bool:
        """Whether a placement fits into the memory of the ranks, and keeps to the constraints and to TorchRec's own."""
        shards, ranks = placement.shards, placement.ranks
        placed, size = self.known.placed(shards, ranks), self.memory.shard_bytes
        sizes = each_once(self._sizes, placed.shards, lambda new: np.array([size(each, self.task) for each in new]))
        fits = (placed.per_rank(sizes) <= self.limits).all() and self.fits_host_memory(placement)
        sequences = [shard for shard in placed.shards if shard.table.pooling == "none"]
        cut = {(sequence_group(s.table), s.embedding_dim) for s in sequences if torchrec_type(s) == "column_wise"}
        fits = fits and len(cut) == len({group for group, _ in cut})
        return bool(fits) and not any(constraint_violations(self.task, shards, ranks))

    def embeddings_of(self, shards: Sequence[Shard]) -> FloatArray:
        """(N, H) shard embeddings; one call of the model computes all that are not yet known."""
        compute, task = self.models.compute, self.task
        return each_once(
            self._embedded, shards, lambda new: compute.shard_embeddings(new, task.batch_size, task.optimizer)
        )

    def numbers(self, pairs: Iterable[tuple[int, int]]) -> IntArray:
        """Kind numbers of (unit index, width) pairs."""
        wanted, task = list(pairs), self.task
        new = list(dict.fromkeys(pair for pair in wanted if pair not in self._number))
        if new:
            self._number.update({pair: len(self.unit) + index for index, pair in enumerate(new)})
            self.unit = np.append(self.unit, [unit for unit, _ in new])
            self.width = np.append(self.width, [width for _, width in new])
            outputs = [sum(outputs_per_sample(shard, task) for shard in self._shards(u, 0, w)) for u, w in new]
            self.dims = np.append(self.dims, [round(task.comm_share * each) for each in outputs])  # words of 4 bytes
            self.bytes = np.append(self.bytes, [self.units[u].bytes(w, task, self.memory) for u, w in new])
            on_host = [self.units[u].host_bytes(w, task, self.memory) if self.uses_host_memory else 0 for u, w in new]
            self.host_bytes = np.append(self.host_bytes, on_host)
        return np.array([self._number[pair] for pair in wanted], dtype=np.int64)

    def halves(self, kinds: Sequence[int]) -> IntArray:
        """(N, 2) kinds of both halves of each of `kinds`; the first is wider if half the width is no multiple of 4."""
        unit, width = self.unit[list(kinds)], self.width[list(kinds)]
        narrow = width // (2 * COLUMN_GRANULARITY) * COLUMN_GRANULARITY
        widths = np.stack([width - narrow, narrow], axis=1)
        return self.numbers(zip(unit.repeat(2).tolist(), widths.ravel().tolist(), strict=True)).reshape(-1, 2)

    @property
    def can_halve(self) -> BoolArray:
        """(Y,) whether the narrower of two halves, whose widths are multiples of 4, is as wide as the unit demands."""
        return self.width // (2 * COLUMN_GRANULARITY) * COLUMN_GRANULARITY >= self.min_width[self.unit]

    def may_split(self, state: IntArray) -> BoolArray:
        """(N,) whether the unit of each shard may have one more shard; `state` (N,) holds all shards' kinds."""
        if not self.limits_shards:
            return np.ones(len(state), dtype=bool)
        unit = self.unit[state]
        return np.bincount(unit, minlength=len(self.units))[unit] < self.max_shards[unit]

    def allowed_on(self, state: IntArray) -> BoolArray | None:
        """(N, W) whether each shard of `state` may be placed on a rank, or None if no constraint names ranks."""
        return None if self.rank_allowed is None else self.rank_allowed[self.unit[state]]

    def in_placement_order(self, states: IntArray) -> IntArray:
        """Each row of `states` (..., N) sorted by descending cost; ties by unit index, then wider kinds first."""
        order = np.lexsort((-self.width, self.unit, -self.cost))
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        return order[np.sort(position[states], axis=-1)]

    def placement(self, kinds: IntArray, ranks: IntArray) -> Placement:
        """The placement with a shard of `kinds[i]` on `ranks[i]`; columns of a table are assigned in this order."""
        next_column = [0] * len(self.units)
        shards: list[Shard] = []
        where: list[int] = []
        units, widths = self.unit[kinds].tolist(), self.width[kinds].tolist()
        for unit, width, rank in zip(units, widths, ranks.tolist(), strict=True):
            added = self._shards(unit, next_column[unit], width)
            shards += added
            where += [rank] * len(added)
            next_column[unit] += width
        return Placement(tuple(shards), tuple(where))

    def whole_placement(self, ranks: Sequence[int]) -> Placement:
        """The placement of whole tables with unit u on `ranks[u]`."""
        rank_of = {index: rank for unit, rank in zip(self.units, ranks, strict=True) for index in unit.members}
        tables = self.task.tables
        return Placement(tuple(map(whole, tables)), tuple(rank_of[index] for index in range(len(tables))))

    def kinds_of(self, placement: Placement) -> tuple[IntArray, IntArray]:
        """(N,) kinds and (N,) ranks of a placement, the reverse of `placement`."""
        unit_of = {
            self.task.tables[member].name: (number, unit)
            for number, unit in enumerate(self.units)
            for member in unit.members
        }
        pairs, ranks = [], []
        for shard, rank in zip(placement.shards, placement.ranks, strict=True):
            number, unit = unit_of[shard.table.name]
            if shard.table.name == self.task.tables[unit.members[0]].name:
                pairs.append((number, shard.embedding_dim if len(unit.members) == 1 else unit.width))
                ranks.append(rank)
        return self.numbers(pairs), np.array(ranks, dtype=np.int64)

    def _shards(self, unit: int, column: int, width: int) -> list[Shard]:
        """The shards of a kind: one shard, or all whole tables of a unit with several tables."""
        tables = [self.task.tables[index] for index in self.units[unit].members]
        return [Shard(tables[0], column, width)] if len(tables) == 1 else [whole(table) for table in tables]

    def _embed_new_kinds(self) -> None:
        """Embed and price the kinds that were numbered since the last call."""
        known = len(self._embedding)
        if known == len(self.unit):
            return
        new = zip(self.unit[known:].tolist(), self.width[known:].tolist(), strict=True)
        kinds = [self._shards(unit, 0, width) for unit, width in new]
        shards, starts = [shard for kind in kinds for shard in kind], np.cumsum([0, *map(len, kinds[:-1])])
        embedding = np.add.reduceat(self.embeddings_of(shards), starts, axis=0)
        cost_ms = self.models.compute.costs_from_sums(embedding, self.task.batch_size).sum(axis=-1)
        self._cost = np.append(self._cost, quantised(cost_ms))
        added_ms = np.zeros((2, len(shards)))
        if self.prices is not None:
            added_ms = np.stack([self.prices.shared_ms(shards), self.prices.reorder_ms(shards)])
        added_ms = np.add.reduceat(added_ms, starts, axis=1)
        self._shared_ms, self._reorder_ms = np.concatenate([(self._shared_ms, self._reorder_ms), added_ms], axis=1)
        self._embedding = np.concatenate([self._embedding, embedding]) if known else embedding
