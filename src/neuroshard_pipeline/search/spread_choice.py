"""Chooses the tables that are spread: which ones become replicas, and which ones have their rows cut.

Three kinds of tables are spread:

- Tables that may be neither column-wise nor replicas have their rows cut, as do tables that have a shard beyond the
  memory of every rank, however their columns are split. Host tiers, the popular rows of sequence tables that every host
  has, are cut by rows over the ranks of each host.
- The few most expensive tables, or all tables, may have their rows cut, because each column shard would receive all ids
  of its table.
- Some tables become replicas: in each candidate, the first tables of an order. There are two orders of tables: by what
  a replica costs relative to what it saves, and by number of rows.

`SpreadEstimate` estimates the cost of candidates. The estimate only has to order them, because the search then solves
the best ones. A step has fixed costs for every sharding type that occurs; therefore whole sets of tables are compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.parts import step_parts
from neuroshard_pipeline.search.price import predicted_cost
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import largest_row_shards, spread_tables
from neuroshard_pipeline.search.spread_estimate import SpreadEstimate
from neuroshard_pipeline.tables.table import ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

#: Sharding types that a table may have in a problem.
Usable = Callable[[Table, Problem], tuple[ShardingType, ...]]

#: Replicas are prefixes of an order of tables. Two passes estimate the cost of up to this many prefixes each: the first
#: pass covers all sizes of prefixes, and the second pass the sizes around the best one.
_NUM_PREFIXES = 16

#: Numbers of the most expensive tables whose rows may be cut; another choice is all tables.
_CUT_COUNTS = (1, 2, 3, 5, 8, 13)

#: Estimated costs are compared in ms with so many decimals: last bits depend on how many are estimated at once.
_DECIMALS = 9

_REPLICA: ShardingType = "data_parallel"


@dataclass(frozen=True)
class Candidate:
    """Sharding types of spread tables, and the estimated cost of a step in ms without the tables that must be cut."""

    estimate_ms: float
    make_types: Callable[[], Mapping[str, ShardingType]]

    @cached_property
    def types(self) -> Mapping[str, ShardingType]:
        """The types of the spread tables; made when they are needed, because most candidates are dear."""
        return self.make_types()


class SpreadChoice:
    """The tables of a problem that may be spread, and estimates of the cost of a step with spread tables."""

    def __init__(self, problem: Problem, usable: Usable) -> None:
        self._problem = problem
        self._types = {table.name: usable(table, problem) for table in problem.task.tables}
        self._must = cut_tables(problem, self._types)
        self._tables = [table for table in problem.task.tables if table.name not in self._must]
        self._estimate = SpreadEstimate(problem, self._tables) if self._tables else None
        on_hosts: tuple[ShardingType, ...] = ("table_row_wise", "grid_shard") if problem.task.num_hosts > 1 else ()
        self._cuts: tuple[ShardingType, ...] = (*on_hosts, "row_wise")

    def estimate_ms(self) -> float:
        """The lowest estimated cost of a step, with the tables that must be cut.

        Raises:
            DoesNotFitError: a rank has too little memory for the tables that must be cut.
        """
        return self._must_ms() + self.candidates()[0].estimate_ms

    def _must_ms(self) -> float:
        """What the tables that must be cut cost alone."""
        if not self._must:
            return 0.0
        task, models = self._problem.task, self._problem.models
        spread = spread_tables(self._must, task, self._problem.memory)
        parts = step_parts(task, spread.shards, spread.ranks, models)
        return predicted_cost(parts, models, task.batch_size).embedding_cost_ms

    def candidates(self) -> list[Candidate]:
        """Candidates in ascending order of estimated cost, several for every set of tables with cut rows."""
        if self._estimate is None:
            return [Candidate(0.0, lambda: self._must)]
        none = np.empty(0, dtype=np.int64)
        found = self._with_replicas(self._estimate, self._cuts[0], none)
        for kind in self._cuts:
            usable = np.flatnonzero([self._may_be(table, kind) for table in self._tables])
            heaviest = usable[np.argsort(-self._estimate.alone_ms[usable], kind="stable")]
            for count in sorted({*(n for n in _CUT_COUNTS if n < len(heaviest)), len(heaviest)} - {0}):
                found += self._with_replicas(self._estimate, kind, heaviest[:count])
        return sorted(found, key=lambda candidate: candidate.estimate_ms)

    def combinations(self, most: int) -> list[Candidate]:
        """Candidates without estimates: all combinations of types of tables, or else of modules, if at most `most`.

        A table that may not have the type of its module has the first one that it may have.
        """
        tables, kinds = self._problem.task.tables, ("column_wise", _REPLICA, *self._cuts)
        alone, found = len(kinds) ** len(tables) <= most, list[Candidate]()
        group = {table.name: table.name if alone else table.embedding_module for table in tables}
        groups = dict.fromkeys(group.values())
        for each in product(kinds, repeat=len(groups)) if len(kinds) ** len(groups) <= most else ():
            of = dict(zip(groups, each, strict=True))
            own = {name: (of[group[name]], self._must.get(name), *self._types[name]) for name in group}
            first = {name: next(kind for kind in by if kind in self._types[name]) for name, by in own.items()}
            spread = {name: kind for name, kind in first.items() if kind != "column_wise"}
            found.append(Candidate(np.nan, partial(dict, {**self._must, **spread})))
        return found

    def neighbours(self, types: Mapping[str, ShardingType]) -> list[Candidate]:
        """Candidates with another sharding type for one of the tables, in ascending order of estimated cost."""
        if self._estimate is None:
            return []
        kinds: list[ShardingType] = ["column_wise", _REPLICA, *self._cuts]  # numbers: 0, 1, and above 1 if rows are cut
        own = [types.get(table.name, "column_wise") for table in self._tables]
        now = np.array([kinds.index(kind) if kind in kinds else len(kinds) for kind in own], dtype=np.int8)
        changes = [
            (at, number)
            for at, table in enumerate(self._tables)
            for number, kind in enumerate(kinds)
            if kind != own[at] and self._may_be(table, kind)
        ]
        tables, new = np.array(changes, dtype=np.int64).reshape(-1, 2).T
        numbers = np.tile(now, (len(changes), 1))
        numbers[np.arange(len(changes)), tables] = new
        is_cut = (numbers >= kinds.index(self._cuts[0])) & (numbers < len(kinds))
        # If tables are cut in several ways, the estimate assumes the way of the first one for all.
        first = numbers[np.arange(len(changes)), is_cut.argmax(axis=1)]
        of_cut = np.where(is_cut.any(axis=1), first, kinds.index(self._cuts[0]))
        costs = np.empty(len(changes))
        for number in np.unique(of_cut):
            some = of_cut == number
            costs[some] = self._estimate.costs_ms(numbers[some] == 1, numbers[some] > 1, kinds[number])
        names, order = [table.name for table in self._tables], np.argsort(costs.round(_DECIMALS), kind="stable")
        return [
            Candidate(costs[at], partial(self._changed, types, names[tables[at]], kinds[new[at]]))
            for at in order.tolist()
        ]

    def _changed(self, types: Mapping[str, ShardingType], name: str, kind: ShardingType) -> Mapping[str, ShardingType]:
        """The types of the spread tables after the table `name` has become `kind`."""
        changed = {**types, name: kind}
        return {**self._must, **{table: own for table, own in changed.items() if own != "column_wise"}}

    def _may_be(self, table: Table, kind: ShardingType) -> bool:
        return kind in self._types[table.name]

    def _with_replicas(self, estimate: SpreadEstimate, kind: ShardingType, rows: IntArray) -> list[Candidate]:
        """Candidates in which the rows of some tables are cut, with different numbers of replicas.

        `rows` are the indices of the tables with cut rows. Replicas are chosen among all other tables, or among all
        tables if `rows` are more than half of them; a replica is not cut.
        """
        may = np.array([self._may_be(table, _REPLICA) for table in self._tables])
        must = may & np.array([not self._may_be(table, "column_wise") for table in self._tables])
        must[rows] = False
        pool = np.flatnonzero(may & ~must)
        if len(rows) <= len(self._tables) / 2:
            pool = np.setdiff1d(pool, rows)
        rows_of = np.array([table.num_embeddings for table in self._tables])
        orders = (pool[estimate.order(pool)], pool[np.argsort(rows_of[pool], kind="stable")])
        ranked = [np.concatenate([np.flatnonzero(must), order]) for order in orders]
        return [found for order in ranked for found in self._prefixes(estimate, kind, rows, order, int(must.sum()))]

    def _prefixes(
        self, estimate: SpreadEstimate, kind: ShardingType, rows: IntArray, ranked: IntArray, least: int
    ) -> list[Candidate]:
        """Candidates: the first tables of `ranked`, at least `least`, are replicas, and the rest of `rows` is cut."""
        counts = _counts_that_fit(self._problem, estimate, ranked, least)
        place_of, is_row = np.full(len(self._tables), len(ranked)), np.zeros(len(self._tables), dtype=bool)
        place_of[ranked], is_row[rows] = np.arange(len(ranked)), True

        def types(count: int) -> Mapping[str, ShardingType]:
            names: dict[str, ShardingType] = {self._tables[i].name: kind for i in np.setdiff1d(rows, ranked[:count])}
            return {**self._must, **names, **{self._tables[i].name: _REPLICA for i in ranked[:count]}}

        def priced(places: IntArray) -> dict[int, Candidate]:
            replicas = place_of < counts[places, None]
            costs = estimate.costs_ms(replicas, is_row & ~replicas, kind).round(_DECIMALS).tolist()
            made = [partial(types, count) for count in counts[places].tolist()]
            return dict(zip(places.tolist(), map(Candidate, costs, made), strict=True))

        places = np.unique(np.geomspace(1, len(counts), _NUM_PREFIXES).astype(int) - 1)
        found = priced(places)
        at = int(np.argmin([found[place].estimate_ms for place in places.tolist()]))
        around = np.linspace(places[max(at - 1, 0)], places[min(at + 1, len(places) - 1)], _NUM_PREFIXES).astype(int)
        return list((found | priced(np.setdiff1d(around, places))).values())


def _counts_that_fit(problem: Problem, estimate: SpreadEstimate, ranked: IntArray, least: int) -> IntArray:
    """Numbers of replicas, taken from `ranked`, that leave memory for the other tables; at least `least`."""
    counts = np.arange(least, len(ranked) + 1)
    replicas = np.append(0.0, np.cumsum(estimate.replica_bytes[ranked]))[counts]
    others = estimate.bytes.sum() - np.append(0.0, np.cumsum(estimate.bytes[ranked]))[counts]
    fits = replicas + others / problem.task.world_size <= problem.limits.min()
    return counts[fits | (counts == least)]


def cut_tables(problem: Problem, types: Mapping[str, tuple[ShardingType, ...]]) -> dict[str, ShardingType]:
    """The tables whose rows must be cut, and the type that cuts them.

    They are host tiers, tables of which even the narrowest column shard fits no rank, and tables that may not be
    column-wise and of which a replica is not allowed or does not fit every rank. A table that may be column-wise is
    left out if no other type cuts it into shards that fit a rank.

    Raises:
        DoesNotFitError: a table fits as none of the types that it may have.
    """
    finest = problem.numbers((index, unit.finest[0]) for index, unit in enumerate(problem.units))
    fits_rank = (problem.bytes[finest] <= problem.limits.max()) & (
        problem.host_bytes[finest] <= problem.host_memory.max()
    )
    has_room = dict(zip((unit.name for unit in problem.units), fits_rank.tolist(), strict=True))
    found: dict[str, ShardingType] = {}
    for table in problem.task.tables:
        own = types[table.name]
        if own == ("host_row_wise",):
            found[table.name] = own[0]
            continue
        replica_bytes = problem.memory.shard_bytes(whole(table, _REPLICA), problem.task)
        if "column_wise" in own:
            fits = has_room.get(table.name, True)
        else:
            fits = _REPLICA in own and replica_bytes <= problem.limits.min()
        if fits:
            continue
        cut = best_cut(table, own, problem.task, problem.memory)
        if cut is not None:
            found[table.name] = cut
        elif "column_wise" not in own:
            raise DoesNotFitError(f"{problem.task.task_id}: table {table.name!r} fits no rank as {' or '.join(own)}")
    return found


def best_cut(
    table: Table, types: Sequence[ShardingType], task: ShardingTask, memory: MemoryModel
) -> ShardingType | None:
    """How to cut the rows of a table: over one host if they fit, else over hosts in column blocks, else over all ranks.

    Returns:
        None if no possible type makes the shards small enough for a rank.
    """
    most, most_host = max(memory.limits(task)), task.host_memory_bytes or 0
    for sharding_type, largest in largest_row_shards(table, task).items():
        fits = memory.shard_bytes(largest, task) <= most and memory.host_bytes(largest, task) <= most_host
        if sharding_type in types and fits:
            return sharding_type
    return None
