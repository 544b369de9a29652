"""Constraints on plans besides memory: ranks and sharding types of tables, limits on splits, groups of tables."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from neuroshard_pipeline.errors import TaskError, did_you_mean
from neuroshard_pipeline.tables.kinds import TierKind
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, SHARDING_TYPES, ShardingType, Table, count_problems

#: TorchRec's name for a column-wise table with a single shard. Constraints may name it beside `SHARDING_TYPES`.
TABLE_WISE = "table_wise"

#: Types that TorchRec can hold a sequence table in. TorchRec's sharded `EmbeddingCollection` refuses `table_row_wise`
#: and `grid_shard`, and its forward pass fails for `data_parallel` (TorchRec 1.8).
SEQUENCE_TYPES: tuple[ShardingType, ...] = ("column_wise", "row_wise")

#: Types that each tier of a sequence table (a part of its rows by popularity, `tables.tiers`) can have.
#: `torchrec_bridge.tiered` trains them.
TIER_TYPES: dict[TierKind, tuple[ShardingType, ...]] = {
    "hot": ("data_parallel",),
    "host": ("host_row_wise",),
    "cold": SEQUENCE_TYPES,
}

#: Upper limit of counts such as the world size.
MOST = 2**31

_CUTS_ROWS = ("row_wise", "table_row_wise", "grid_shard", "host_row_wise")
_USES_EVERY_RANK = ("row_wise", "data_parallel", "host_row_wise")
_USES_A_HOST = ("table_row_wise", "grid_shard")


@dataclass(frozen=True, slots=True)
class TableConstraint:
    """Constraint on the shards of one table.

    Attributes:
        table: name of the table.
        ranks: the only ranks that may hold its shards, or None if all ranks may.
        forbidden_ranks: ranks that may not hold its shards.
        min_width: smallest number of columns of a shard; the columns of a narrower table are not split.
        max_shards: largest number of shards that the columns are split into, or None for any number. The number of
            shards that the rows are split into has no limit.
        split: whether columns or rows of the table may be split. A table that is not split may still be replicated.
        sharding_types: the only types that the table may have: `SHARDING_TYPES` or `TABLE_WISE`. None allows any type.
        in_gpu_memory: whether a search must not move the table to host memory.
    """

    table: str
    ranks: Sequence[int] | None = None
    forbidden_ranks: Sequence[int] = ()
    min_width: int = COLUMN_GRANULARITY
    max_shards: int | None = None
    split: bool = True
    sharding_types: Sequence[str] | None = None
    in_gpu_memory: bool = False

    def __post_init__(self) -> None:
        for name in ("ranks", "forbidden_ranks", "sharding_types"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        for problem in _own_problems(self):
            raise TaskError(f"constraint on table {self.table!r}: {problem}")

    def allowed_ranks(self, world_size: int) -> tuple[int, ...]:
        """Ranks that may hold shards of the table, in ascending order."""
        pinned = range(world_size) if self.ranks is None else sorted(set(self.ranks))
        forbidden = set(self.forbidden_ranks)
        return tuple(rank for rank in pinned if rank not in forbidden)

    def allows_type(self, sharding_type: ShardingType) -> bool:
        """Whether `sharding_types` and `split` allow this type."""
        if sharding_type in _CUTS_ROWS and not self.split:
            return False
        names = {sharding_type, TABLE_WISE} if sharding_type == "column_wise" else {sharding_type}
        return self.sharding_types is None or not names.isdisjoint(self.sharding_types)


@dataclass(frozen=True)
class Constraints:
    """Constraints of a sharding task; none by default.

    Attributes:
        tables: at most one `TableConstraint` per table.
        together: groups of tables; all tables of a group must be on one rank, and none of them may be split.
        min_width: smallest number of columns of any shard; the columns of a narrower table are not split. If a table
            also has its own constraint, the stricter of the two applies. The same holds for `max_shards`.
        max_shards: largest number of shards that the columns of any table are split into, or None for any number.
        sharding_types: the only types that any table may have, as in `TableConstraint`. A table whose own constraint
            names types, too, may have the types that both allow.
        where: prefix of a task's error messages about these constraints: the file that they come from, or empty.
    """

    tables: Sequence[TableConstraint] = ()
    together: Sequence[Sequence[str]] = ()
    min_width: int = COLUMN_GRANULARITY
    max_shards: int | None = None
    sharding_types: Sequence[str] | None = None
    where: str = field(default="", compare=False)
    _by_table: dict[str, TableConstraint] = field(init=False, repr=False, compare=False)
    _grouped: frozenset[str] = field(init=False, repr=False, compare=False)
    _combined: dict[str, TableConstraint] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(self.tables))
        object.__setattr__(self, "together", tuple(tuple(group) for group in self.together))
        object.__setattr__(self, "sharding_types", _as_tuple(self.sharding_types))
        object.__setattr__(self, "_by_table", {entry.table: entry for entry in self.tables})
        object.__setattr__(self, "_grouped", frozenset(name for group in self.together for name in group))
        limits = self.min_width, self.max_shards, self.sharding_types
        for problem in chain(_limit_problems(*limits), _repetitions(self), _contradictions(self)):
            raise TaskError(f"constraints: {problem}")

    def __bool__(self) -> bool:
        return self != UNCONSTRAINED

    def of(self, table: str) -> TableConstraint:
        """The constraint of `table` itself, combined with the limits for all tables but not with `together`.

        `TABLE_WISE` without `column_wise`, and `split` of False, become a `max_shards` of 1.
        """
        if table not in self._combined:
            self._combined[table] = self._combine(table)
        return self._combined[table]

    def _combine(self, table: str) -> TableConstraint:
        own = self._by_table.get(table) or TableConstraint(table)
        types = _common_types(own.sharding_types, self.sharding_types)
        is_whole = not own.split or (types is not None and TABLE_WISE in types and "column_wise" not in types)
        limits = [limit for limit in (own.max_shards, self.max_shards, 1 if is_whole else None) if limit is not None]
        width = max(own.min_width, self.min_width)
        return replace(own, min_width=width, max_shards=min(limits, default=None), sharding_types=types)

    def is_grouped(self, table: str) -> bool:
        """Whether the table is in a group of `together`."""
        return table in self._grouped


def type_violation(constraint: TableConstraint, sharding_type: ShardingType) -> str:
    """Why a table with this constraint (`Constraints.of`) may not have this type; empty if it may."""
    if constraint.allows_type(sharding_type):
        return ""
    allowed = [name for name in SHARDING_TYPES if constraint.allows_type(name)]
    return f"is {sharding_type}, but may only be {' or '.join(allowed)}"


def possible_types(
    constraints: Constraints, table: Table, world_size: int, ranks_per_host: int
) -> tuple[ShardingType, ...]:
    """The sharding types that a table can have, in the order of `SHARDING_TYPES`.

    A sequence table has one of `SEQUENCE_TYPES`, and a tier one of its `TIER_TYPES`. A table with mean pooling is not
    cut by rows (see `torchrec_plan.writer`). A table that is kept together with other tables is column-wise. A table in
    host memory is not data-parallel. A row-wise, host-row-wise or data-parallel table must be allowed on every rank,
    and a table-row-wise or grid-sharded table on every rank of some host.
    """
    own, hindrances = constraints.of(table.name), type_hindrances(constraints, table, world_size, ranks_per_host)
    return tuple(name for name, why in hindrances.items() if not why and own.allows_type(name))


def constraint_problems(
    constraints: Constraints, tables: Sequence[Table], world_size: int, ranks_per_host: int
) -> Iterator[str]:
    """Descriptions of the constraints that these tables cannot meet on `world_size` ranks."""
    names = {table.name for table in tables}
    for name in (*(entry.table for entry in constraints.tables), *chain(*constraints.together)):
        if name not in names:
            advice = did_you_mean(name, names) or "; correct the name or delete it"
            yield f"a constraint names the table {name!r}, which the task does not have{advice}"
    for entry in constraints.tables:
        for rank in (*(entry.ranks or ()), *entry.forbidden_ranks):
            if not 0 <= rank < world_size:
                yield f"the constraint on table {entry.table!r} names rank {rank}, outside 0..{world_size - 1}"
        if not entry.allowed_ranks(world_size):
            yield f"the constraint on table {entry.table!r} allows no rank; allow one of 0..{world_size - 1}"
    for group in constraints.together:
        allowed = (set(constraints.of(name).allowed_ranks(world_size)) for name in group)
        if not set.intersection(*allowed):
            yield f"tables {', '.join(map(repr, group))} are kept together, but no rank is allowed for all; allow one"
    for table in tables:
        if not possible_types(constraints, table, world_size, ranks_per_host):
            yield no_type_left(constraints, table, type_hindrances(constraints, table, world_size, ranks_per_host))


def no_type_left(constraints: Constraints, table: Table, hindrances: Mapping[ShardingType, str]) -> str:
    """Says why a table can have none of the types that its constraints allow, and which other types it could have."""
    listed = constraints.of(table.name).sharding_types
    reasons = "; ".join(f"{name}: {why}" for name, why in hindrances.items() if listed is None or name in listed)
    free = " or ".join(name for name, why in hindrances.items() if not why)
    problem = f"table {table.name!r} can have none of the sharding_types that its constraints allow ({reasons})"
    return f"{problem}; allow {free}" if free else problem


def type_hindrances(
    constraints: Constraints, table: Table, world_size: int, ranks_per_host: int
) -> dict[ShardingType, str]:
    """For each sharding type, why the table cannot have it, whatever `sharding_types` allow; empty if it can."""
    own = constraints.of(table.name)
    is_anywhere, has_host = _allowed_ranges(own, world_size, ranks_per_host)

    def hindrance(name: ShardingType) -> str:
        if name in _CUTS_ROWS and not own.split:
            return "it splits the rows, but split is false"
        if table.tier is not None and name not in TIER_TYPES[table.tier.kind]:
            return f"the {table.tier.kind} tier of a sequence table cannot be sharded in this way"
        if table.tier is None and name == "host_row_wise":
            return "only the host tier of a sequence table can be sharded in this way"
        if table.tier is None and table.pooling == "none" and name not in SEQUENCE_TYPES:
            return "TorchRec cannot hold a sequence table (pooling none) in this way"
        if table.pooling == "mean" and name in (*_USES_A_HOST, "row_wise"):
            return "TorchRec may compute wrong outputs if rows of a table with mean pooling are cut"
        if table.is_in_host_memory and name == "data_parallel":
            return "replicas are in GPU memory, but the table's compute_kernel keeps it in host memory"
        if constraints.is_grouped(table.name) and name != "column_wise":
            return "tables that are kept together are column_wise"
        if name in _USES_EVERY_RANK and not is_anywhere:
            return "it needs every rank, and some ranks are not allowed"
        if name in _USES_A_HOST and not has_host:
            return "it needs all ranks of a host, and no host has all of its ranks allowed"
        return ""

    return {name: hindrance(name) for name in SHARDING_TYPES}


def _allowed_ranges(own: TableConstraint, world_size: int, ranks_per_host: int) -> tuple[bool, bool]:
    """Whether all ranks are allowed, and whether all ranks of some host are allowed."""
    if own.ranks is None and not own.forbidden_ranks:
        return True, True
    allowed = set(own.allowed_ranks(world_size))
    hosts = (range(first, first + ranks_per_host) for first in range(0, world_size, ranks_per_host))
    return len(allowed) == world_size, any(allowed.issuperset(host) for host in hosts)


def _as_tuple(values: Sequence[Any] | None) -> Sequence[Any] | None:
    return values if values is None or isinstance(values, str) else tuple(values)


def _common_types(own: Sequence[str] | None, general: Sequence[str] | None) -> tuple[str, ...] | None:
    """The types that both arguments allow; `column_wise` allows `TABLE_WISE`, too. None if neither names a type."""
    given = [names for names in (own, general) if names is not None]
    if len(given) < 2:
        return tuple(given[0]) if given else None
    first, second = ({*names, TABLE_WISE} if "column_wise" in names else {*names} for names in given)
    return tuple(name for name in ("column_wise", TABLE_WISE, *SHARDING_TYPES[1:]) if name in first & second)


def _own_problems(constraint: TableConstraint) -> Iterator[str]:
    if constraint.ranks is not None and not constraint.ranks:
        yield "ranks is empty; name at least one rank or delete the key"
    for rank in (*(constraint.ranks or ()), *constraint.forbidden_ranks):
        yield from count_problems("rank", rank, MOST, least=0)
    yield from _limit_problems(constraint.min_width, constraint.max_shards, constraint.sharding_types)
    if not any(map(constraint.allows_type, SHARDING_TYPES)):
        types = ", ".join(constraint.sharding_types or ())
        yield f"split is false, but {types} splits the rows; allow {TABLE_WISE} or data_parallel, or delete split"


def _limit_problems(min_width: int, max_shards: int | None, sharding_types: Sequence[str] | None) -> Iterator[str]:
    yield from count_problems("min_width", min_width, MOST)
    yield from () if max_shards is None else count_problems("max_shards", max_shards, MOST)
    if sharding_types is not None and (isinstance(sharding_types, str) or not sharding_types):
        yield f"sharding_types {sharding_types!r} must be a list of at least one type; delete the key to allow any type"
    known = (TABLE_WISE, *SHARDING_TYPES)
    for name in (name for name in sharding_types or () if name not in known):
        yield f"sharding type {name!r} is unknown; use {', '.join(known)}{did_you_mean(name, known)}"


def _contradictions(constraints: Constraints) -> Iterator[str]:
    """Descriptions of tables that cannot have any type, whatever the task is."""
    for entry in constraints.tables:
        if _common_types(entry.sharding_types, constraints.sharding_types) == ():
            own, general = (" or ".join(of.sharding_types or ()) for of in (entry, constraints))
            yield f"table {entry.table!r} may be {own}, but all tables may only be {general}; allow a common type"
    for group in constraints.together:
        for name in group:
            if not constraints.of(name).allows_type("column_wise"):
                yield f"table {name!r} is kept together with others and so not split; allow {TABLE_WISE} for it"


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
