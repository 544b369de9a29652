"""Estimates the cost of a step from the sharding types of its tables, as if all ranks could be balanced.

    cost = lookups and own work of a rank + all-to-alls + reductions + costs that all ranks share

A column-wise table that alone costs more than a balanced rank is split into halves, quarters and so on; each shard
receives the ids of the whole table. Replicas load all ranks equally, tables with cut rows all ranks or those of a host.

Shapes: T tables, L levels (2**level column shards), W ranks, H numbers: those that describe a shard's cost (shard
embedding) and, as the last number, the *own ms*, which input dist and TorchRec's own work for the shard add to the cost
of its rank (`step_prices`). S shards, Q quantities of work, N choices of sharding types.
"""

from collections.abc import Sequence

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray
from neuroshard_pipeline.cost_models.comm import ranks_per_host_of
from neuroshard_pipeline.search.parts import outputs_per_sample
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.shard_cache import shard_embeddings
from neuroshard_pipeline.search.spread import largest_row_shards
from neuroshard_pipeline.search.step_prices import step_prices
from neuroshard_pipeline.tables.constraints import SEQUENCE_TYPES, TIER_TYPES
from neuroshard_pipeline.tables.replica_groups import groups_on_host
from neuroshard_pipeline.tables.samples import Reduction
from neuroshard_pipeline.tables.step_work import QUANTITIES, shard_work
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, ShardingType, Table, first_part, whole

_LEVELS = 5
#: A table is split further while one of its shards costs more than this multiple of the cost of a balanced rank.
_TOO_LARGE = 1.1
#: Largest number of shard counts (N, T, L) that are considered at once.
_AT_ONCE = 2_000_000
#: Number of points between which the cost of an all-to-all is interpolated.
_POINTS = 16
_BYTES_PER_FLOAT, _MILLION = 4.0, 1e6
#: The types that cut rows.
_CUTS: tuple[ShardingType, ...] = ("row_wise", "table_row_wise", "grid_shard")


class SpreadEstimate:
    """Costs of the tables of one task if they are column-wise, are replicas, or have cut rows.

    For every whole table, its cost alone on a rank and its memory, and the memory of a replica, (T,) each.
    """

    def __init__(self, problem: Problem, tables: Sequence[Table]) -> None:
        self._task, self._models, self._step = problem.task, problem.models, problem.step
        self._prices = problem.step_prices or step_prices(problem.step, problem.task)
        self._add_columns(tables)
        self._add_replicas(tables)
        self._rows = {kind: self._row_sums(tables, kind) for kind in _CUTS}
        memory, task = problem.memory, problem.task
        self.alone_ms = self._alone[:, 0]
        self.bytes = np.array([memory.table_bytes(table, table.embedding_dim, task) for table in tables], dtype=float)
        self.replica_bytes = np.array(
            [memory.shard_bytes(whole(t, "data_parallel"), task) for t in tables], dtype=float
        )

    def order(self, which: IntArray) -> IntArray:
        """Positions in `which`, in descending order of the ms that a replica of a table saves per ms that it costs."""
        if not len(which):
            return which
        world = self._task.world_size
        total = self._columns[:, 0].sum(axis=0)
        saved = float(self._compute_ms(total / world)) - self._compute_ms(
            np.maximum(total - self._columns[which, 0], 0.0) / world
        )
        mean = float(self._dims.sum()) / world
        less_ms, mean_ms = self._exchange_ms(np.array([0.8 * mean, mean]))
        slope = (mean_ms - less_ms) / max(0.2 * mean, 1e-9)
        saved = saved + max(slope, 0.0) * self._dims[which] / world + self._shared[which, 0]
        usual = self._replica[which].mean(axis=0) * np.sqrt(len(which))
        added = self._compute_ms(usual + self._replica[which]) - float(self._compute_ms(usual))
        size = _BYTES_PER_FLOAT * float(np.median(self._gradients[which]))
        one_ms, four_ms = self._gradients_ms(np.array([size, 4 * size]))
        per_byte = max(four_ms - one_ms, 0.0) / (3 * size)
        added = added + self._replica_ms[which] + per_byte * _BYTES_PER_FLOAT * self._gradients[which]
        return np.argsort(-saved / np.maximum(added, 1e-12), kind="stable")

    def costs_ms(self, replicas: BoolArray, cut: BoolArray, kind: ShardingType) -> FloatArray:
        """(N,) estimated costs of a step with the tables `replicas` and `cut`, (N, T) each; all others are column-wise.

        The type of the cut tables is one of `_CUTS`.
        """
        some, costs = max(1, _AT_ONCE // (_LEVELS * len(self._dims))), np.empty(len(cut))
        for start in range(0, len(cut), some):
            part = slice(start, start + some)
            costs[part] = self._costs_ms(replicas[part], cut[part], kind)
        return costs

    def _costs_ms(self, replicas: BoolArray, cut: BoolArray, kind: ShardingType) -> FloatArray:
        columns = ~(replicas | cut)
        has_columns, has_replicas, has_cut = (which.any(axis=1) for which in (columns, replicas, cut))
        groups = has_columns.astype(int) + has_cut
        costs = self._prices.exchanges_ms(np.minimum(groups, 1), groups)
        costs[groups + has_replicas > 1] += self._joined_ms
        costs[has_columns] += self._columns_ms(columns[has_columns])
        costs[has_replicas] += self._replicas_ms(replicas[has_replicas])
        costs[has_cut] += self._cut_ms(cut[has_cut], kind)
        return costs

    def _columns_ms(self, which: BoolArray) -> FloatArray:
        """(N,) costs of the column-wise tables `which` (N, T)."""
        world, level, tables = self._task.world_size, np.zeros(which.shape, dtype=np.int64), np.arange(which.shape[1])
        for _ in range(_LEVELS):
            shards = (level[..., None] == np.arange(_LEVELS)) * (2.0**level * which)[..., None]  # (N, T, L)
            balanced_ms = self._compute_ms(np.tensordot(shards, self._columns) / world)
            large = which & (self._alone[tables, level] > _TOO_LARGE * balanced_ms[:, None])
            large &= level < self._most_levels
            if not large.any():
                break
            level = level + large
        most_ms = (self._alone[tables, level] * which).max(axis=1)
        shared_ms = np.tensordot(shards, self._shared) + np.tensordot(shards, self._reorder_ms) * level.any(axis=1)
        largest = (self._dims / 2.0**level * (which & self._is_sequence)).max(axis=1)
        exchange_ms = self._exchange_ms(np.maximum(which @ self._dims / world, largest))
        return np.asarray(np.maximum(balanced_ms, most_ms) + shared_ms + exchange_ms)

    def _replicas_ms(self, which: BoolArray) -> FloatArray:
        """(N,) costs of the replicas `which` (N, T)."""
        gradients_ms = self._gradients_ms(_BYTES_PER_FLOAT * (which @ self._gradients))
        own_ms = self._compute_ms(which @ self._replica) + which @ self._replica_ms
        return np.asarray(own_ms + gradients_ms + self._any_replica_ms)

    def _cut_ms(self, cut: BoolArray, kind: ShardingType) -> FloatArray:
        """(N,) costs of tables `cut` (N, T) over all ranks, or into column blocks that each lie on one host."""
        task = self._task
        sums, shared, blocks = self._rows[kind]
        dims = (cut & ~self._is_sequence) @ self._dims
        if kind == "row_wise":
            costs = self._compute_ms(cut @ sums)
            costs = costs + self._exchange_ms((cut & self._is_sequence) @ self._dims / task.world_size)
            buffer, members = dims, task.world_size
        else:
            mean, dearest = (cut * blocks) @ sums / task.num_hosts, np.where(cut, self.alone_ms, -1.0).argmax(axis=1)
            costs = self._compute_ms(np.maximum(mean, sums[dearest]))
            costs = costs + (self._exchange_ms(dims / task.world_size) if task.num_hosts > 1 else 0.0)
            widest = (self._dims / blocks * cut).max(axis=1)
            buffer, members = np.maximum(dims / task.num_hosts, widest), task.ranks_per_host
        size = _BYTES_PER_FLOAT * task.comm_share * task.batch_size * buffer
        both = self._reduce_ms("reduce_scatter", size, members) + self._reduce_ms("all_gather", size, members)
        return np.asarray(costs + both + cut @ shared)

    def _add_columns(self, tables: Sequence[Table]) -> None:
        """Embeddings (T, L, H), costs alone (T, L) and shared costs (T, L) of column shards of every level."""
        shards = [first_part(table, level) for table in tables for level in range(_LEVELS)]
        place = np.arange(len(shards)).reshape(-1, _LEVELS)  # (T, L) in `shards`
        self._columns = self._sums(shards)[place]
        self._alone = self._compute_ms(self._columns)
        self._shared, self._reorder_ms = self._prices.shared_ms(shards)[place], self._prices.reorder_ms(shards)[place]
        self._dims = np.array([outputs_per_sample(whole(table), self._task) for table in tables])
        self._is_sequence = np.array([table.pooling == "none" for table in tables])
        constraints = [self._task.constraints.of(table.name) for table in tables]
        widest = [max(c.min_width, COLUMN_GRANULARITY) for c in constraints]
        by_width = [int(np.log2(max(t.embedding_dim // least, 1))) for t, least in zip(tables, widest, strict=True)]
        by_count = [_LEVELS if c.max_shards is None else int(np.log2(c.max_shards)) for c in constraints]
        self._most_levels = np.minimum(np.minimum(by_width, by_count), _LEVELS - 1)
        pooled = [whole(table) for table in tables if table.pooling != "none"]
        self._joined_ms = self._prices.joined_at_most_ms(pooled)
        whole_dims = float(self._dims[self._is_sequence].max(initial=0.0))
        dims = max(float(self._dims.sum()) / self._task.world_size, whole_dims) * np.linspace(0.0, 1.0, _POINTS)
        self._points = dims, self._even_exchange_ms(dims)

    def _add_replicas(self, tables: Sequence[Table]) -> None:
        """Embeddings (T, H), own ms (T,) and numbers of gradients (T,) of replicas."""
        replicas = [whole(table, "data_parallel") for table in tables]
        self._replica = self._sums(replicas)
        self._replica[:, -1] = 0.0
        parts = (shard_work(replica, self._task) for replica in replicas)
        work = np.array([own + self._task.world_size * everywhere for own, everywhere in parts])
        dense = self._step.prices_of("dense", self._task.world_size)
        self._any_replica_ms = float(dense[list(QUANTITIES).index("replicas")])
        self._replica_ms = work @ (self._prices.per_unit + dense)
        self._gradients = work[:, list(QUANTITIES).index("gradients")] * _MILLION

    def _row_sums(self, tables: Sequence[Table], kind: ShardingType) -> tuple[FloatArray, FloatArray, IntArray]:
        """Embeddings (T, H) of one row shard of every table, what all its shards add to every rank in ms, and blocks.

        The last two are (T,); `blocks` are the numbers of column blocks.
        """
        shards = [largest_row_shards(table, self._task)[kind] for table in tables]
        blocks = np.array([-(-shard.table.embedding_dim // shard.embedding_dim) for shard in shards])
        counts = blocks * [-(-shard.table.num_embeddings // shard.num_rows) for shard in shards]
        return self._sums(shards), counts * self._prices.shared_ms(shards), blocks

    def _sums(self, shards: Sequence[Shard]) -> FloatArray:
        """Embeddings with own ms (S, H); 0 for shards of types that their tables cannot have."""
        possible = [number for number, shard in enumerate(shards) if _is_possible(shard)] or [0]
        own = [shards[number] for number in possible]
        found = np.column_stack([shard_embeddings(own, self._task, self._models), self._prices.own_ms(own)])
        sums = np.zeros((len(shards), found.shape[1]))
        sums[possible] = found
        return sums

    def _compute_ms(self, sums: FloatArray) -> FloatArray:
        costs = self._models.compute.costs_from_sums(sums[..., :-1], self._task.batch_size).sum(axis=-1)
        return np.asarray(costs + sums[..., -1])

    def _exchange_ms(self, dims: FloatArray) -> FloatArray:
        """(...) costs of both all-to-alls if every rank sends `dims` (...) floats per sample; 0 for none."""
        return np.where(dims > 0.0, np.interp(dims, *self._points), 0.0)

    def _even_exchange_ms(self, dims: FloatArray) -> FloatArray:
        """As `_exchange_ms`, without interpolation."""
        each = np.repeat(self._task.comm_share * dims[:, None], self._task.world_size, axis=1)
        comm, batch_size = self._models.comm, self._task.batch_size
        both = comm.forward_ms(each, np.zeros_like(each), batch_size) + comm.backward_ms(each, batch_size)
        return np.asarray(both.max(axis=-1))

    def _reduce_ms(self, collective: Reduction, size_bytes: FloatArray, ranks: int) -> FloatArray:
        return self._step.reductions.predict_ms(collective, size_bytes, ranks, self._task.ranks_per_host)

    def _gradients_ms(self, size_bytes: FloatArray) -> FloatArray:
        """All_reduce of dense gradients (...) among the ranks of all replica groups."""
        on_host = groups_on_host(self._task, ranks_per_host_of(self._step.provenance))
        ranks = self._task.num_replica_groups * self._task.world_size
        return self._step.reductions.predict_ms("all_reduce", size_bytes, ranks, on_host * self._task.ranks_per_host)


def _is_possible(shard: Shard) -> bool:
    """Whether the table can have shards of this type; constraints are ignored."""
    table = shard.table
    kinds = SEQUENCE_TYPES if table.tier is None else TIER_TYPES[table.tier.kind]
    return table.pooling != "none" or shard.sharding_type in kinds
