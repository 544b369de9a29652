"""Units of placement: a table, or tables that are kept together and move as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: More shards than any table can have.
UNLIMITED = 2**31


@dataclass(frozen=True)
class Unit:
    """What a search places as one, and splits as one.

    Attributes:
        members: indices of its tables in the task; several are never split.
        name: the tables' names, for messages.
        width: columns of all its tables.
        ranks: the only ranks that it may lie on, ascending, or None for all.
        min_width: columns of its narrowest shard at least, a multiple of 4 and at most `width`.
        max_shards: most shards that it may have.
    """

    members: tuple[int, ...]
    name: str
    width: int
    ranks: tuple[int, ...] | None = None
    min_width: int = COLUMN_GRANULARITY
    max_shards: int = UNLIMITED

    @property
    def finest(self) -> list[int]:
        """Widths of its shards when it is split as far as allowed, as evenly as possible, the widest first."""
        steps = self.width // COLUMN_GRANULARITY
        parts = min(self.max_shards, self.width // self.min_width)
        return [COLUMN_GRANULARITY * (steps // parts + (part < steps % parts)) for part in range(parts)]

    def bytes(self, width: int, task: ShardingTask, memory: MemoryModel) -> int:
        """Memory of a shard of the unit that is `width` columns wide."""
        if len(self.members) > 1:
            tables = (task.tables[index] for index in self.members)  # all of them: `width` has no choice
            return sum(memory.table_bytes(table, table.embedding_dim, task) for table in tables)
        return memory.table_bytes(task.tables[self.members[0]], width, task)


def units_of(task: ShardingTask) -> tuple[Unit, ...]:
    """Units in the order of their first tables; without groups, unit i is table i."""
    if not task.constraints:
        return tuple(Unit((i,), table.name, table.embedding_dim) for i, table in enumerate(task.tables))
    index = {table.name: i for i, table in enumerate(task.tables)}
    grouped = {index[name]: group for group in task.constraints.together for name in group}
    units = []
    for i, table in enumerate(task.tables):
        if i not in grouped:
            units.append(_single(i, table, task))
        elif i == min(index[name] for name in grouped[i]):
            units.append(_group(sorted(index[name] for name in grouped[i]), task))
    return tuple(units)


def allowed_ranks(units: tuple[Unit, ...], world_size: int) -> np.ndarray | None:
    """(U, W) whether a unit may lie on a rank; None where all may lie anywhere."""
    if all(unit.ranks is None for unit in units):
        return None
    allowed = np.ones((len(units), world_size), dtype=bool)
    for row, unit in zip(allowed, units, strict=True):
        if unit.ranks is not None:
            row[:] = np.isin(np.arange(world_size), unit.ranks)
    return allowed


def ranks_of_tables(units: tuple[Unit, ...], ranks: list[int]) -> tuple[int, ...]:
    """The rank of every table of the task when `units[i]` lies whole on `ranks[i]`."""
    rank_of = {index: rank for unit, rank in zip(units, ranks, strict=True) for index in unit.members}
    return tuple(rank_of[index] for index in range(len(rank_of)))


def _single(index: int, table: Table, task: ShardingTask) -> Unit:
    constraint = task.constraints.of(table.name)
    least = -(-constraint.min_width // COLUMN_GRANULARITY) * COLUMN_GRANULARITY
    return Unit(
        members=(index,),
        name=table.name,
        width=table.embedding_dim,
        ranks=_ranks({*constraint.allowed_ranks(task.world_size)}, task),
        min_width=min(least, table.embedding_dim),
        max_shards=constraint.max_shards or UNLIMITED,
    )


def _group(members: list[int], task: ShardingTask) -> Unit:
    tables = [task.tables[index] for index in members]
    width = sum(table.embedding_dim for table in tables)
    ranks = set.intersection(*({*task.constraints.of(table.name).allowed_ranks(task.world_size)} for table in tables))
    name = " + ".join(table.name for table in tables)
    return Unit(tuple(members), name, width, _ranks(ranks, task), min_width=width, max_shards=1)


def _ranks(allowed: set[int], task: ShardingTask) -> tuple[int, ...] | None:
    return None if len(allowed) == task.world_size else tuple(sorted(allowed))
