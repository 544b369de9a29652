"""Units of placement: a table, or tables that a constraint keeps together on one rank."""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

#: More shards than any table can have.
UNLIMITED = 2**31


@dataclass(frozen=True)
class Unit:
    """A table that a search places as a whole or splits, or tables that it keeps together on one rank.

    Attributes:
        members: indices of the tables in the task; a unit of several tables is never split.
        name: the tables' names, for messages.
        width: columns of all its tables.
        ranks: the ranks that it may be placed on, ascending, or None for all.
        min_width: columns of the narrowest shard allowed, a multiple of 4 and at most `width`.
        max_shards: largest number of shards allowed; 1 for a sequence table (pooling `none`), which is not cut alone.
        group: the group of a sequence table that may be cut (`sequence_group`), None for other units. TorchRec needs
            column shards of one width in a group, beside whole tables (`search.halving`).
        most_blocks: largest number of equal column blocks that the tables of the group may be cut into.
    """

    members: tuple[int, ...]
    name: str
    width: int
    ranks: tuple[int, ...] | None = None
    min_width: int = COLUMN_GRANULARITY
    max_shards: int = UNLIMITED
    group: tuple[object, ...] | None = None
    most_blocks: int = 1

    @property
    def finest(self) -> list[int]:
        """Widths of the shards, widest first, if the unit is split as far as allowed and as evenly as possible."""
        steps = self.width // COLUMN_GRANULARITY
        parts = max(self.most_blocks, min(self.max_shards, self.width // self.min_width))
        return [COLUMN_GRANULARITY * (steps // parts + (part < steps % parts)) for part in range(parts)]

    def bytes(self, width: int, task: ShardingTask, memory: MemoryModel) -> int:
        """Memory of a shard of the unit that is `width` columns wide."""
        if len(self.members) > 1:
            tables = (task.tables[index] for index in self.members)  # never split, so `width` plays no role
            return sum(memory.table_bytes(table, table.embedding_dim, task) for table in tables)
        return memory.table_bytes(task.tables[self.members[0]], width, task)

    def host_bytes(self, width: int, task: ShardingTask, memory: MemoryModel) -> int:
        """Host memory of a shard of the unit that is `width` columns wide, to which it is proportional."""
        of_all = sum(memory.host_bytes(whole(task.tables[index]), task) for index in self.members)
        return of_all if len(self.members) > 1 else of_all * width // self.width


def units_of(task: ShardingTask) -> tuple[Unit, ...]:
    """Units in the order of their first tables; without tables kept together, unit i is table i."""
    if not task.constraints and all(table.pooling != "none" for table in task.tables):
        return tuple(Unit((i,), table.name, table.embedding_dim) for i, table in enumerate(task.tables))
    index = {table.name: i for i, table in enumerate(task.tables)}
    grouped = {index[name]: group for group in task.constraints.together for name in group}
    blocks, units = _most_blocks(task), list[Unit]()
    for i, table in enumerate(task.tables):
        if i not in grouped:
            units.append(_single(i, table, task, blocks.get(table.name, 1)))
        elif i == min(index[name] for name in grouped[i]):
            units.append(_group(sorted(index[name] for name in grouped[i]), task))
    return tuple(units)


def sequence_group(table: Table) -> tuple[object, ...]:
    """What sequence tables have in common of which TorchRec needs column shards of one width."""
    return table.embedding_module, table.pooling, table.embedding_dim


def allowed_ranks(units: tuple[Unit, ...], world_size: int) -> np.ndarray | None:
    """Whether each of U units may be placed on each of W ranks: (U, W), or None if every unit may be on every rank."""
    if all(unit.ranks is None for unit in units):
        return None
    ranks = np.arange(world_size)
    return np.array([np.isin(ranks, ranks if unit.ranks is None else unit.ranks) for unit in units])


def _most_blocks(task: ShardingTask) -> dict[str, int]:
    """The most equal column blocks that each sequence table and others of its group may be cut into (`block_counts`).

    Tables that may not be cut do not limit the others; the result does not have them.
    """
    own = {table.name: _own_blocks(table, task) for table in task.tables if table.pooling == "none"}
    cut = {table.name: sequence_group(table) for table in task.tables if own.get(table.name, 1) > 1}
    return {name: min(own[other] for other, its in cut.items() if its == group) for name, group in cut.items()}


def _own_blocks(table: Table, task: ShardingTask) -> int:
    own = task.constraints.of(table.name)
    most = 1 if task.constraints.is_grouped(table.name) else own.max_shards or UNLIMITED
    most = max(1, min(most, table.embedding_dim // own.min_width))
    return max(count for count in block_counts(table.embedding_dim) if count <= most)


def block_counts(width: int) -> list[int]:
    """Numbers of equal column blocks, from 1 on: each block is cut into the fewest equal parts again and again."""
    counts = [1]
    while (steps := width // COLUMN_GRANULARITY // counts[-1]) > 1:
        counts.append(counts[-1] * next(parts for parts in range(2, steps + 1) if steps % parts == 0))
    return counts


def _single(index: int, table: Table, task: ShardingTask, most_blocks: int) -> Unit:
    constraint = task.constraints.of(table.name)
    least = -(-constraint.min_width // COLUMN_GRANULARITY) * COLUMN_GRANULARITY
    return Unit(
        members=(index,),
        name=table.name,
        width=table.embedding_dim,
        ranks=_ranks({*constraint.allowed_ranks(task.world_size)}, task),
        min_width=min(least, table.embedding_dim),
        max_shards=1 if table.pooling == "none" else constraint.max_shards or UNLIMITED,
        group=sequence_group(table) if most_blocks > 1 else None,
        most_blocks=most_blocks,
    )


def _group(members: list[int], task: ShardingTask) -> Unit:
    tables = [task.tables[index] for index in members]
    width = sum(table.embedding_dim for table in tables)
    ranks = set.intersection(*({*task.constraints.of(table.name).allowed_ranks(task.world_size)} for table in tables))
    name = " + ".join(table.name for table in tables)
    return Unit(tuple(members), name, width, _ranks(ranks, task), min_width=width, max_shards=1)


def _ranks(allowed: set[int], task: ShardingTask) -> tuple[int, ...] | None:
    return None if len(allowed) == task.world_size else tuple(sorted(allowed))
