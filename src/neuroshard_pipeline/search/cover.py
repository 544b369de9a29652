"""Conditions on shards and ranks: every table is covered as its sharding type says, and constraints are kept."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from neuroshard_pipeline.tables.constraints import TableConstraint, type_violation
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask

Placed = list[tuple[Shard, int]]


def cover_problems(task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int]) -> Iterator[str]:
    """Describes tables that the shards do not cover as their sharding type requires, and tables unknown to the task."""
    placed: dict[str, Placed] = defaultdict(list)
    for shard, rank in zip(shards, ranks, strict=True):
        placed[shard.table.name].append((shard, rank))
    unknown = set(placed) - {table.name for table in task.tables}
    if unknown:
        yield f"table {min(unknown)!r} is in the plan but not in the task"
    for table in task.tables:
        for problem in _table_problems(table, placed[table.name], task):
            yield f"table {table.name!r} {problem}"


def _table_problems(table: Table, placed: Placed, task: ShardingTask) -> Iterator[str]:
    types = sorted({shard.sharding_type for shard, _ in placed})
    if len(types) > 1:
        yield f"has shards of several sharding types ({', '.join(types)}); TorchRec gives a table one type"
    elif types == ["data_parallel"]:
        if table.is_in_host_memory:
            yield f"is data_parallel, but its compute_kernel is {table.compute_kernel}; replicas are in GPU memory"
        if sorted(rank for _, rank in placed) != list(range(task.world_size)):
            yield f"is data_parallel, but has shards on ranks {sorted(rank for _, rank in placed)}; give every rank one"
    elif types == ["host_row_wise"]:
        for host in range(task.num_hosts):
            own = [entry for entry in placed if entry[1] // task.ranks_per_host == host]
            for problem in (*_rectangle_problems(table, own), *(_rank_problems(own, task) if own else ())):
                yield f"on host {host} {problem}"
    else:
        yield from _rectangle_problems(table, placed)
        yield from _rank_problems(placed, task)


def _rectangle_problems(table: Table, placed: Placed) -> Iterator[str]:
    """Problems unless the column blocks cover all columns once, and the shards of each block cover all rows once."""
    blocks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for shard, _ in placed:
        block = (shard.column_offset, shard.column_offset + shard.embedding_dim)
        blocks[block].append((shard.row_offset, shard.row_offset + shard.num_rows))
    cuts_rows = any(shard.sharding_type != "column_wise" for shard, _ in placed)
    blocks_once = blocks if cuts_rows else [block for block, rows in blocks.items() for _ in rows]
    yield from _gaps("columns", blocks_once, table.embedding_dim)
    if cuts_rows:
        for rows in blocks.values():
            yield from _gaps("rows", rows, table.num_embeddings)


def _gaps(word: str, spans: Iterable[tuple[int, int]], end: int) -> Iterator[str]:
    at = 0
    for start, stop in sorted(spans):
        if start != at:
            yield f"has {word} {'covered twice' if start < at else 'not covered'} at {min(start, at)}"
        at = stop
    if at != end:
        yield f"has {word} not covered from {at}"


def _rank_problems(placed: Placed, task: ShardingTask) -> Iterator[str]:
    """Problems unless the ranks have the row shards that `row_shards` makes; ids are sent to ranks by the same rule."""
    sharding_type = placed[0][0].sharding_type
    if sharding_type == "column_wise":
        return
    blocks: dict[tuple[int, int], Placed] = defaultdict(list)
    for shard, rank in placed:
        blocks[shard.column_offset, shard.embedding_dim].append((shard, rank))
    for (column_offset, width), block in blocks.items():
        ranks = [rank for _, rank in block]
        count = task.world_size if sharding_type == "row_wise" else task.ranks_per_host
        first = 0 if sharding_type == "row_wise" else min(ranks) // count * count
        expected = row_shards(placed[0][0].table, sharding_type, count, column_offset, width)
        if sorted(block, key=lambda entry: entry[1]) != list(zip(expected, range(first, first + count), strict=False)):
            where = "all ranks" if sharding_type == "row_wise" else f"the {count} ranks of one host"
            reader = "tiered modules" if sharding_type == "host_row_wise" else "TorchRec"
            yield (
                f"is {sharding_type}, but its row shards on ranks {sorted(ranks)} are wrong; give {where} blocks of "
                f"{expected[0].num_rows} rows in order, because {reader} would look up wrong rows otherwise"
            )


def constraint_violations(task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int]) -> Iterator[str]:
    """Descriptions of all violations of the task's constraints by shards on these ranks."""
    if not task.constraints:
        return
    placed: dict[str, Placed] = defaultdict(list)
    for shard, rank in zip(shards, ranks, strict=True):
        placed[shard.table.name].append((shard, rank))
    for table in task.tables:
        for problem in _table_violations(task.constraints.of(table.name), placed[table.name], task.world_size):
            yield f"table {table.name!r} {problem}"
    for group in task.constraints.together:
        where = sorted({rank for name in group for _, rank in placed[name]})
        if len(where) > 1:
            yield f"tables {', '.join(map(repr, group))} must be kept together, but lie on ranks {where}"
        for name in group:
            if len(placed[name]) > 1:
                yield f"tables kept together must stay whole, but {name!r} is split into {len(placed[name])} shards"


def _table_violations(constraint: TableConstraint, placed: Placed, world_size: int) -> Iterator[str]:
    problem = type_violation(constraint, placed[0][0].sharding_type)
    if problem:
        yield problem
    allowed = constraint.allowed_ranks(world_size)
    for _, rank in placed:
        if rank not in allowed:
            yield f"lies on rank {rank}, but may only lie on {list(allowed)}"
    columns = {shard.column_offset: shard.embedding_dim for shard, _ in placed}
    if len(columns) > 1 and min(columns.values()) < constraint.min_width:
        yield f"has a shard of {min(columns.values())} columns, but its shards need at least {constraint.min_width}"
    if constraint.max_shards is not None and len(columns) > constraint.max_shards:
        yield f"has its columns cut into {len(columns)} parts, but may have at most {constraint.max_shards}"
