"""The search over all sharding types: it minimises the predicted cost of a whole step.

It tries the most promising sets of spread tables (`search.spread_choice`). For each set, a beam search splits and
places the other tables as columns. The local search improves the best result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.beam import beam_search
from neuroshard_pipeline.search.local_search import local_search
from neuroshard_pipeline.search.params import LocalSearchParams, SearchParams
from neuroshard_pipeline.search.placement import PlacedState
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import Spread, column_problem, joined, spread_tables
from neuroshard_pipeline.search.spread_choice import Candidate, best_cut, candidates
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.table import ShardingType

#: Number of sets of spread tables that are searched, and the same for tasks with more tables times ranks than `_LARGE`.
_NUM_SETS, _NUM_SETS_OF_LARGE_TASKS, _LARGE = 4, 1, 50_000

#: A set is searched only if its estimated cost is at most this multiple of the lowest estimate.
_MOST_ABOVE_BEST = 1.1


@dataclass(frozen=True)
class _Solved:
    """A set of spread tables, the problem of the other tables (None if there are none), and its placed states."""

    spread: Spread
    columns: Problem | None
    states: list[PlacedState]

    def placement(self, problem: Problem, state: PlacedState | None) -> Placement:
        """The placement of all tables, with the column-wise ones as in `state`."""
        found = None if self.columns is None or state is None else self.columns.placement(state.kinds, state.ranks)
        return joined(problem, found, self.spread)


def whole_step_placements(
    problem: Problem, search: SearchParams, local: LocalSearchParams, rng: np.random.Generator, count: int
) -> list[Placement]:
    """At most `count` placements in ascending order of predicted cost; the first is the best that was found.

    Raises:
        DoesNotFitError: no way to shard the tables was found that fits the memory of the ranks.
    """
    best = min(_solved(problem, search), key=lambda solved: solved.states[0].cost if solved.states else 0.0)
    if best.columns is None:
        return [best.placement(problem, None)]
    states = local_search(best.states[0], best.columns, local, rng)
    return [best.placement(problem, state) for state in states[:count]]


def _solved(problem: Problem, search: SearchParams) -> list[_Solved]:
    """The most promising sets of spread tables with the placed states of the others; at least one."""
    task = problem.task
    found: list[_Solved] = []
    refusal: DoesNotFitError | None = None
    ranked = candidates(problem, usable_types)
    is_large = len(task.tables) * task.world_size > _LARGE
    limit_ms = ranked[0].estimate_ms * _MOST_ABOVE_BEST
    for candidate in _distinct(ranked, limit_ms, _NUM_SETS_OF_LARGE_TASKS if is_large else _NUM_SETS):
        try:
            found.append(_solve(problem, candidate.types, search))
        except DoesNotFitError as error:
            refusal = refusal or error
    if found:
        return found
    assert refusal is not None
    return [_with_more_cuts(problem, dict(ranked[0].types), search, refusal)]


def _distinct(ranked: Sequence[Candidate], limit_ms: float, count: int) -> list[Candidate]:
    """The best `count` candidates within the limit, each with at least a fifth more or fewer spread tables."""
    chosen: list[Candidate] = []
    for candidate in ranked:
        sizes = [len(other.types) for other in chosen]
        if candidate.estimate_ms <= limit_ms and all(abs(len(candidate.types) - size) > size / 5 for size in sizes):
            chosen.append(candidate)
    return chosen[:count]


def _solve(problem: Problem, types: Mapping[str, ShardingType], search: SearchParams) -> _Solved:
    """Search the other tables as columns beside spread tables of these types."""
    spread = spread_tables(types, problem.task, problem.memory)
    columns = column_problem(problem, spread)
    return _Solved(spread, columns, [] if columns is None else beam_search(columns, search))


def _with_more_cuts(
    problem: Problem, types: dict[str, ShardingType], search: SearchParams, refusal: DoesNotFitError
) -> _Solved:
    """Cut the rows of ever more tables, the largest first, until the others fit as columns."""
    task = problem.task
    largest = sorted((t for t in task.tables if t.name not in types), key=lambda table: -table.weight_bytes)
    for table in largest:
        cut = best_cut(table, usable_types(table, problem), task, problem.memory)
        if cut is None:
            continue
        types[table.name] = cut
        try:
            return _solve(problem, types, search)
        except DoesNotFitError:
            continue
    raise refusal
