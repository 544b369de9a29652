"""Chooses the tables that are spread: which ones become replicas, and which ones have their rows cut.

Three kinds of tables are spread:

- Tables that columns cannot hold, because their narrowest column shard exceeds every rank, have their rows cut.
- The few most expensive tables, or all, may have their rows cut: column shards would receive all their ids again.
- Tables that cost least as replicas for what they save become replicas. They are ordered by this ratio, and every
  prefix of the order is a candidate.

`SpreadEstimate` estimates the cost of every candidate. The search then solves the best ones, so that the estimate only
has to rank them. A step has fixed costs for every type of table that occurs; therefore whole sets are compared, and not
single tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread_estimate import SpreadEstimate
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, ShardingType, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: Sharding types that a table may have in a problem.
Usable = Callable[[Table, Problem], tuple[ShardingType, ...]]

#: Number of prefixes whose cost is estimated in each of two passes: over all sizes, and around the best one.
_NUM_PREFIXES = 16

#: Numbers of the most expensive tables whose rows may be cut; another choice is all tables.
_CUT_COUNTS = (1, 2, 3, 5, 8, 13)

_REPLICA: ShardingType = "data_parallel"


@dataclass(frozen=True)
class Candidate:
    """Sharding types of spread tables, and the estimated cost of a step in ms without the tables that must be cut."""

    types: Mapping[str, ShardingType]
    estimate_ms: float


def candidates(problem: Problem, usable: Usable) -> list[Candidate]:
    """Candidates in ascending order of estimated cost, several for every set of tables with cut rows."""
    task, step = problem.task, problem.models.step
    if step is None:
        return [Candidate({}, 0.0)]
    types = {table.name: usable(table, problem) for table in task.tables}
    must = cut_tables(problem, types)
    rest = [table for table in task.tables if table.name not in must]
    if not rest:
        return [Candidate(must, 0.0)]
    estimate = SpreadEstimate(problem, step, rest)
    found = []
    for cut in _cuts(problem, rest, types, estimate):
        found += _with_replicas(problem, rest, types, estimate, cut)
    found = [replace(candidate, types={**must, **candidate.types}) for candidate in found]
    return sorted(found, key=lambda candidate: candidate.estimate_ms)


def _cuts(
    problem: Problem, tables: Sequence[Table], types: Mapping[str, tuple[ShardingType, ...]], estimate: SpreadEstimate
) -> list[tuple[ShardingType, IntArray]]:
    """Types and indices of the tables whose rows may be cut: none, the few most expensive ones, or all."""
    kinds: tuple[ShardingType, ...] = ("row_wise",) if problem.task.num_hosts == 1 else ("table_row_wise", "row_wise")
    found: list[tuple[ShardingType, IntArray]] = [(kinds[0], np.empty(0, dtype=np.int64))]
    for kind in kinds:
        usable = [
            number for number, table in enumerate(tables) if kind in types[table.name] and table.pooling != "none"
        ]
        heaviest = np.array(sorted(usable, key=lambda number: -estimate.alone_ms[number]), dtype=np.int64)
        sizes = sorted({*(count for count in _CUT_COUNTS if count < len(heaviest)), len(heaviest)} - {0})
        found += [(kind, heaviest[:count]) for count in sizes]
    return found


def _with_replicas(
    problem: Problem,
    tables: Sequence[Table],
    types: Mapping[str, tuple[ShardingType, ...]],
    estimate: SpreadEstimate,
    cut: tuple[ShardingType, IntArray],
) -> list[Candidate]:
    """Candidates with these tables' rows cut and more or fewer replicas among the others."""
    kind, rows = cut
    may_replicate = np.array([problem.task.world_size > 1 and "data_parallel" in types[t.name] for t in tables])
    must_replicate = may_replicate & np.array(["column_wise" not in types[table.name] for table in tables])
    if len(rows) > len(tables) / 2:  # nearly all may be cut: replicas are taken out of them
        pool = np.flatnonzero(may_replicate & ~must_replicate)
    else:
        pool = np.setdiff1d(np.flatnonzero(may_replicate & ~must_replicate), rows)
    ranked = np.concatenate([np.flatnonzero(must_replicate), pool[estimate.order(pool)]])
    counts = _counts_that_fit(problem, estimate, ranked, int(must_replicate.sum()))

    def priced(count: int) -> Candidate:
        replicas = ranked[:count]
        left = np.setdiff1d(rows, replicas)
        of = {tables[i].name: kind for i in left} | {tables[i].name: _REPLICA for i in replicas}
        return Candidate(of, estimate.cost_ms(replicas, left, kind))

    places = np.unique(np.geomspace(1, len(counts), _NUM_PREFIXES).astype(int) - 1)
    found = {int(place): priced(int(counts[place])) for place in places}
    best = min(found, key=lambda place: found[place].estimate_ms)
    at = int(np.searchsorted(places, best))
    around = np.linspace(places[max(at - 1, 0)], places[min(at + 1, len(places) - 1)], _NUM_PREFIXES).astype(int)
    found |= {int(place): priced(int(counts[place])) for place in np.unique(around) if int(place) not in found}
    return list(found.values())


def _counts_that_fit(problem: Problem, estimate: SpreadEstimate, ranked: IntArray, least: int) -> IntArray:
    """Numbers of replicas, taken from `ranked`, that leave memory for the other tables; at least `least`."""
    counts = np.arange(least, len(ranked) + 1)
    replicas = np.append(0.0, np.cumsum(estimate.replica_bytes[ranked]))[counts]
    others = estimate.bytes.sum() - np.append(0.0, np.cumsum(estimate.bytes[ranked]))[counts]
    fits = replicas + others / problem.task.world_size <= problem.limits.min()
    return counts[fits | (counts == least)]


def cut_tables(problem: Problem, types: Mapping[str, tuple[ShardingType, ...]]) -> dict[str, ShardingType]:
    """The tables that cannot be column-wise and are not replicas, and the type that cuts their rows."""
    narrowest = problem.numbers((index, unit.finest[-1]) for index, unit in enumerate(problem.units))
    least_bytes = dict(zip((unit.name for unit in problem.units), problem.bytes[narrowest].tolist(), strict=True))
    found: dict[str, ShardingType] = {}
    for table in problem.task.tables:
        own = types[table.name]
        fits = "column_wise" in own and least_bytes.get(table.name, 0) <= problem.limits.max()
        if fits or ("column_wise" not in own and "data_parallel" in own):
            continue
        cut = best_cut(table, own, problem.task, problem.memory)
        if cut is not None:
            found[table.name] = cut
    return found


def best_cut(
    table: Table, types: Sequence[ShardingType], task: ShardingTask, memory: MemoryModel
) -> ShardingType | None:
    """How to cut the rows of a table: on one host if they fit there, else on hosts by column blocks, else on all ranks.

    Returns:
        None if no possible type makes the shards small enough for a rank.
    """
    most = max(memory.limits(task))
    block = -(-table.embedding_dim // task.num_hosts // COLUMN_GRANULARITY) * COLUMN_GRANULARITY
    trials: dict[ShardingType, tuple[int, int]] = {
        "table_row_wise": (task.ranks_per_host, table.embedding_dim),
        "grid_shard": (task.ranks_per_host, block),
        "row_wise": (task.world_size, table.embedding_dim),
    }
    for sharding_type, (ranks, columns) in trials.items():
        if sharding_type in types:
            first = row_shards(table, sharding_type, ranks, 0, columns)[0]
            if memory.shard_bytes(first, task) <= most:
                return sharding_type
    return None
