"""Constraints that plans must meet besides the memory limits: allowed ranks, limits on splits, tables kept together."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY


@dataclass(frozen=True, slots=True)
class TableConstraint:
    """Constraint on the shards of one table.

    Attributes:
        table: name of the table.
        ranks: the only ranks that may hold its shards, or None if all ranks may.
        forbidden_ranks: ranks that may not hold its shards.
        min_width: smallest number of columns of a shard; a narrower table is not split.
        max_shards: largest number of shards, or None for any number.
        split: whether the table may be split.
    """

    table: str
    ranks: Sequence[int] | None = None
    forbidden_ranks: Sequence[int] = ()
    min_width: int = COLUMN_GRANULARITY
    max_shards: int | None = None
    split: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "forbidden_ranks", tuple(self.forbidden_ranks))
        if self.ranks is not None:
            object.__setattr__(self, "ranks", tuple(self.ranks))
        for problem in _own_problems(self):
            raise TaskError(f"constraint on table {self.table!r}: {problem}")

    def allowed_ranks(self, world_size: int) -> tuple[int, ...]:
        """Ranks that may hold shards of the table, in ascending order."""
        pinned = range(world_size) if self.ranks is None else sorted(set(self.ranks))
        forbidden = set(self.forbidden_ranks)
        return tuple(rank for rank in pinned if rank not in forbidden)


@dataclass(frozen=True)
class Constraints:
    """Constraints of a sharding task; none by default.

    Attributes:
        tables: at most one `TableConstraint` per table.
        together: groups of tables; all tables of a group must be on one rank, and none of them may be split.
        min_width: smallest number of columns of any shard; a narrower table is not split. If a table also has its own
            constraint, the stricter of the two applies. The same holds for `max_shards`.
        max_shards: largest number of shards of any table, or None for any number.
    """

    tables: Sequence[TableConstraint] = ()
    together: Sequence[Sequence[str]] = ()
    min_width: int = COLUMN_GRANULARITY
    max_shards: int | None = None
    _by_table: dict[str, TableConstraint] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(self.tables))
        object.__setattr__(self, "together", tuple(tuple(group) for group in self.together))
        object.__setattr__(self, "_by_table", {entry.table: entry for entry in self.tables})
        for problem in (*_split_problems(self.min_width, self.max_shards), *_repetitions(self)):
            raise TaskError(f"constraints: {problem}")

    def __bool__(self) -> bool:
        return self != UNCONSTRAINED

    def of(self, table: str) -> TableConstraint:
        """The constraint of `table` itself, combined with the limits for all tables but not with `together`."""
        own = self._by_table.get(table, TableConstraint(table))
        limits = [limit for limit in (own.max_shards, self.max_shards, None if own.split else 1) if limit is not None]
        return TableConstraint(
            table,
            own.ranks,
            own.forbidden_ranks,
            max(own.min_width, self.min_width),
            min(limits, default=None),
            own.split,
        )


def constraint_problems(constraints: Constraints, tables: Iterable[str], world_size: int) -> Iterator[str]:
    """Descriptions of the constraints that these tables cannot meet on `world_size` ranks."""
    names = set(tables)
    mentioned = [entry.table for entry in constraints.tables]
    for name in (*mentioned, *(name for group in constraints.together for name in group)):
        if name not in names:
            yield f"a constraint names the table {name!r}, which the task does not have; correct the name or delete it"
    for entry in constraints.tables:
        for rank in (*(entry.ranks or ()), *entry.forbidden_ranks):
            if not 0 <= rank < world_size:
                yield f"the constraint on table {entry.table!r} names rank {rank}, outside 0..{world_size - 1}"
        if not entry.allowed_ranks(world_size):
            yield f"the constraint on table {entry.table!r} allows no rank; allow one of 0..{world_size - 1}"
    for group in constraints.together:
        ranks = set(range(world_size))
        for name in group:
            ranks &= set(constraints.of(name).allowed_ranks(world_size))
        if not ranks:
            yield f"tables {', '.join(map(repr, group))} are kept together, but no rank is allowed for all of them"


def _own_problems(constraint: TableConstraint) -> Iterator[str]:
    if constraint.ranks is not None and not constraint.ranks:
        yield "ranks is empty; name at least one rank or delete the key"
    for rank in (*(constraint.ranks or ()), *constraint.forbidden_ranks):
        if isinstance(rank, bool) or not isinstance(rank, int):
            yield f"rank {rank!r} is not a whole number"
    yield from _split_problems(constraint.min_width, constraint.max_shards)


def _split_problems(min_width: int, max_shards: int | None) -> Iterator[str]:
    if isinstance(min_width, bool) or not isinstance(min_width, int) or min_width < 1:
        yield f"min_width {min_width!r} must be a whole number of columns, at least 1"
    if max_shards is not None and (isinstance(max_shards, bool) or not isinstance(max_shards, int) or max_shards < 1):
        yield f"max_shards {max_shards!r} must be a whole number of at least 1"


def _repetitions(constraints: Constraints) -> Iterator[str]:
    for name, count in Counter(entry.table for entry in constraints.tables).items():
        if count > 1:
            yield f"table {name!r} has {count} constraints; merge them"
    for group in constraints.together:
        if len(group) < 2:
            yield f"a group of tables to keep together needs at least two, not {list(group)}"
    for name, count in Counter(name for group in constraints.together for name in group).items():
        if count > 1:
            yield f"table {name!r} occurs {count} times in groups kept together; merge these groups"


#: Constraints that every plan meets.
UNCONSTRAINED = Constraints()
