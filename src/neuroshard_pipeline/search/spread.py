"""Spread tables: tables that are not column-wise.

Every rank has a replica of the table, or the rows are cut over ranks: over all ranks, over the ranks of one host (the
whole table, or a block of its columns), or over the ranks of every host, so that every host has all rows.

A `Spread` gives such tables their shards and ranks. All other tables are column-wise. A search places the column-wise
tables, and takes into account the costs and the memory of the spread tables (`column_problem`).

Shapes: W ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.parts import Parts, step_parts
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import predicted_cost
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.row_blocks import ranks_together, row_shards, shards_together
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask


@dataclass(frozen=True)
class Spread:
    """The shards of spread tables with `ranks[i]` for `shards[i]`, and the sharding type by table."""

    types: Mapping[str, ShardingType]
    shards: tuple[Shard, ...] = ()
    ranks: tuple[int, ...] = ()


def spread_of(placement: Placement) -> Spread:
    """The tables of a placement that are not column-wise."""
    pairs = zip(placement.shards, placement.ranks, strict=True)
    placed = [(shard, rank) for shard, rank in pairs if shard.sharding_type != "column_wise"]
    types = {shard.table.name: shard.sharding_type for shard, _ in placed}
    return Spread(types, tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed))


def column_part(placement: Placement) -> Placement:
    """The column-wise tables of a placement."""
    pairs = zip(placement.shards, placement.ranks, strict=True)
    placed = [(shard, rank) for shard, rank in pairs if shard.sharding_type == "column_wise"]
    return Placement(tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed))


def spread_tables(
    types: Mapping[str, ShardingType],
    task: ShardingTask,
    memory: MemoryModel,
    load_ms: Callable[[Sequence[Shard]], FloatArray] | None = None,
    most_blocks: int = 2**30,
) -> Spread:
    """Give tables of these types their shards and ranks.

    Replicas lie on all ranks. The rows of a row-wise table are cut over all ranks. Every host has all rows of a
    host-row-wise table, cut over its ranks. A table-row-wise table lies on one host, as does every column block of a
    grid-sharded one, at most one per host. They go, by descending bytes, to the host whose fullest rank has most room.
    With `load_ms`, which gives costs of shards, the dearest block comes first, on the least loaded host with room for
    it. A table has at most `most_blocks` blocks.

    Raises:
        DoesNotFitError: a rank has too little memory.
    """
    tables = {table.name: table for table in task.tables}
    shards, ranks = _everywhere(types, tables, task)
    used = [memory.bytes_of_ranks(shards, ranks, task), memory.host_bytes_of_ranks(shards, ranks, task)]
    free = np.array([memory.limits(task), [task.host_memory_bytes or 0] * task.world_size], dtype=np.int64) - used
    blocks = _host_blocks(types, tables, task, most_blocks)
    bytes_of = np.array([sum(shard.weight_bytes for shard in block) for block in blocks], dtype=np.float64)
    loads = bytes_of if load_ms is None or not blocks else load_ms([block[0] for block in blocks])
    hosts = _HostRoom(free.reshape(2, task.num_hosts, task.ranks_per_host), task, memory, load_ms is not None)
    for number in np.argsort(-loads, kind="stable").tolist():
        first = hosts.place(blocks[number], float(loads[number])) * task.ranks_per_host
        shards += blocks[number]
        ranks += range(first, first + len(blocks[number]))
    if (free < 0).any():
        of, rank = np.unravel_index(free.argmin(), free.shape)
        missing = f"{-int(free.min())} bytes{' of host memory' * int(of)}"
        raise DoesNotFitError(f"{task.task_id}: rank {rank} lacks {missing} for its parts of spread tables")
    return Spread(dict(types), tuple(shards), tuple(ranks))


class _HostRoom:
    """Chooses a host for one column block after another: the one with most memory left.

    `free` (2, hosts, ranks per host) are bytes of GPU and host memory left; it is changed in place. With `by_load`, the
    least loaded host with enough memory comes first.
    """

    def __init__(self, free: IntArray, task: ShardingTask, memory: MemoryModel, by_load: bool) -> None:
        self._free, self._task, self._memory, self._by_load = free, task, memory, by_load
        self._loads = np.zeros(task.num_hosts)

    def place(self, block: Sequence[Shard], load: float) -> int:
        """Choose a host for the row shards of a block, and take their memory from it."""
        needed = np.zeros((2, 1, self._task.ranks_per_host), dtype=np.int64)
        needed[0, 0, : len(block)] = [self._memory.shard_bytes(shard, self._task) for shard in block]
        needed[1, 0, : len(block)] = [self._memory.host_bytes(shard, self._task) for shard in block]
        left = np.where(needed.any(axis=2, keepdims=True), self._free - needed, np.iinfo(np.int64).max).min(axis=(0, 2))
        own = self._task.constraints.of(block[0].table.name).allowed_ranks(self._task.world_size)
        allowed = np.isin(np.arange(self._task.world_size), own).reshape(self._task.num_hosts, -1).all(axis=1)
        fits = allowed & (left >= 0)
        if self._by_load and fits.any():
            host = int(np.where(fits, self._loads, np.inf).argmin())
        else:
            host = int(np.where(allowed, left, np.iinfo(np.int64).min).argmax())
        self._free[:, host] -= needed[:, 0]
        self._loads[host] += load
        return host


def _everywhere(
    types: Mapping[str, ShardingType], tables: Mapping[str, Table], task: ShardingTask
) -> tuple[list[Shard], list[int]]:
    """Shards and ranks of the tables that lie on all ranks."""
    placed = [
        pair
        for name, sharding_type in types.items()
        if sharding_type in ("data_parallel", "row_wise", "host_row_wise")
        for ranks in ranks_together(sharding_type, task)
        for pair in zip(shards_together(whole(tables[name]), sharding_type, len(ranks)), ranks, strict=False)
    ]
    return [shard for shard, _ in placed], [rank for _, rank in placed]


def column_problem(problem: Problem, spread: Spread) -> Problem | None:
    """The problem of the column-wise tables, with the spread tables as background; None if all tables are spread.

    Its costs are the costs of the whole step if the models price it; otherwise lookups and all-to-all, as in [Zha2023].

    Raises:
        DoesNotFitError: the spread tables leave a rank without memory.
    """
    task, prices = problem.task, problem.step_prices
    tables = [table for table in task.tables if table.name not in spread.types]
    group_ms = 0.0 if prices is None else prices.groups_ms([whole(table) for table in tables], spread.shards)
    if not spread.types:
        return problem.of_columns(task, problem.memory, np.full(task.world_size, group_ms), problem.host_memory)
    if not tables:
        return None
    left = problem.limits - problem.memory.bytes_of_ranks(spread.shards, spread.ranks, task)
    host_left = problem.host_memory - problem.memory.host_bytes_of_ranks(spread.shards, spread.ranks, task)
    if (left < 1).any():
        raise DoesNotFitError(f"{task.task_id}: rank {int(left.argmin())} has no memory left beside spread tables")
    rest = replace(
        task,
        tables=tables,
        memory_bytes=tuple(left.tolist()),
        constraints=_constraints_of({table.name for table in tables}, task.constraints),
    )
    memory = problem.memory.model_copy(update={"reserve_fraction": 0.0})
    return problem.of_columns(rest, memory, _background_ms(problem, spread) + group_ms, host_left)


def joined(problem: Problem, found: Placement | None, spread: Spread) -> Placement:
    """The placement of all tables of `problem`, in the order of its tables."""
    order = {table.name: number for number, table in enumerate(problem.task.tables)}
    shards = (*(found.shards if found else ()), *spread.shards)
    ranks = (*(found.ranks if found else ()), *spread.ranks)
    numbers = np.fromiter((order[shard.table.name] for shard in shards), dtype=np.int64, count=len(shards))
    ordered = np.argsort(numbers, kind="stable").tolist()
    return Placement(tuple(shards[index] for index in ordered), tuple(ranks[index] for index in ordered))


def largest_row_shards(table: Table, task: ShardingTask) -> dict[ShardingType, Shard]:
    """The largest shard of a table for every type that cuts rows, in the order in which `best_cut` prefers them."""
    width, block = table.embedding_dim, _grid_width(table, task)
    kinds: tuple[ShardingType, ...] = ("table_row_wise", "grid_shard", "row_wise", "host_row_wise")
    ranks = {kind: task.world_size if kind == "row_wise" else task.ranks_per_host for kind in kinds}
    rows = {kind: -(-table.num_embeddings // ranks[kind]) for kind in kinds}
    return {kind: Shard(table, 0, block if kind == "grid_shard" else width, 0, rows[kind], kind) for kind in kinds}


def _grid_width(table: Table, task: ShardingTask) -> int:
    """Columns of the widest block of a grid-sharded table: one per host, or fewer as constraints demand."""
    width, own = table.embedding_dim, task.constraints.of(table.name)
    for parts in range(min(task.num_hosts, own.max_shards or width), 1, -1):
        block = -(-width // parts // COLUMN_GRANULARITY) * COLUMN_GRANULARITY
        if (width % block or block) >= own.min_width:
            return block
    return width


def _host_blocks(
    types: Mapping[str, ShardingType], tables: Mapping[str, Table], task: ShardingTask, most_blocks: int
) -> list[list[Shard]]:
    """The row shards of every column block that lies on one host."""
    blocks = []
    for name, sharding_type in types.items():
        if sharding_type in ("table_row_wise", "grid_shard"):
            table, width = tables[name], largest_row_shards(tables[name], task)[sharding_type].embedding_dim
            width = max(width, -(-table.embedding_dim // most_blocks // COLUMN_GRANULARITY) * COLUMN_GRANULARITY)
            for at in range(0, table.embedding_dim, width):
                columns = min(width, table.embedding_dim - at)
                blocks.append(row_shards(table, sharding_type, task.ranks_per_host, at, columns))
    return blocks


def _background_ms(problem: Problem, spread: Spread) -> FloatArray:
    """(W,) costs of the spread tables. All ranks are assumed to enter their all-to-alls together."""
    task, models = problem.task, problem.models
    parts = step_parts(task, spread.shards, spread.ranks, models, problem.known)
    if not parts.dim_sums:
        return parts.own_ms
    nothing = np.zeros((task.world_size, 2))
    exchange = predicted_cost(Parts(nothing, dim_sums=parts.dim_sums), models, task.batch_size)
    return parts.own_ms + np.array(exchange.forward_comm_ms) + np.array(exchange.backward_comm_ms)


def _constraints_of(names: set[str], constraints: Constraints) -> Constraints:
    """The constraints of some of the tables."""
    if not constraints:
        return constraints
    own = [entry for entry in constraints.tables if entry.table in names]
    return replace(constraints, tables=own, together=[group for group in constraints.together if group[0] in names])
