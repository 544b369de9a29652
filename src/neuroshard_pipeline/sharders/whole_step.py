"""The search over all sharding types: it minimises the predicted cost of a whole step.

It tries the most promising sets of spread tables (`search.spread_choice`). For each set, a beam search splits and
places the other tables as columns. The local search improves the best result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.beam import beam_search, first_state
from neuroshard_pipeline.search.local_search import local_search
from neuroshard_pipeline.search.params import LocalSearchParams, SearchParams
from neuroshard_pipeline.search.placement import PlacedState
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.presplit import presplit_states
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import Spread, column_problem, joined, spread_tables
from neuroshard_pipeline.search.spread_choice import Candidate, best_cut, candidates
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.table import ShardingType

#: Number of sets of spread tables that are tried, and of starting points from which a beam search runs. In tasks with
#: more tables times ranks than `_LARGE`, a beam search runs from the best one only.
_NUM_SETS, _NUM_SEARCHED, _LARGE = 4, 3, 20_000

#: A set is tried only if its estimated cost is at most this multiple of the lowest estimate.
_MOST_ABOVE_BEST = 1.1


@dataclass(frozen=True)
class _Start:
    """A set of spread tables, and the problem of the others with a placed state; both None if there are no others."""

    spread: Spread
    columns: Problem | None
    state: PlacedState | None


def whole_step_placements(
    problem: Problem, search: SearchParams, local: LocalSearchParams, rng: np.random.Generator, count: int
) -> list[Placement]:
    """At most `count` placements in ascending order of predicted cost; the first is the best that was found.

    Raises:
        DoesNotFitError: no way to shard the tables was found that fits the memory of the ranks.
    """
    most = 1 if len(problem.task.tables) * problem.task.world_size > _LARGE else _NUM_SEARCHED
    searched = [(started, _searched(started, search)) for started in _starts(problem, search)[:most]]
    best, states = min(searched, key=lambda entry: _cost(entry[1]))
    if best.columns is None:
        return [joined(problem, None, best.spread)]
    states = local_search(states[0], best.columns, local, rng)
    return [joined(problem, best.columns.placement(of.kinds, of.ranks), best.spread) for of in states[:count]]


def _searched(started: _Start, search: SearchParams) -> list[PlacedState]:
    return [] if started.columns is None else beam_search(started.columns, search, started.state)


def _cost(states: Sequence[PlacedState]) -> float:
    return states[0].cost if states else 0.0


def _starts(problem: Problem, search: SearchParams) -> list[_Start]:
    """Starting points of the column search for the most promising sets of spread tables, the cheapest first."""
    found: list[_Start] = []
    refusal: DoesNotFitError | None = None
    ranked = candidates(problem, usable_types)
    for candidate in _distinct(ranked, ranked[0].estimate_ms * _MOST_ABOVE_BEST, _NUM_SETS):
        try:
            found += _starts_of(problem, candidate.types, search)
        except DoesNotFitError as error:
            refusal = refusal or error
    if not found:
        assert refusal is not None
        found = _with_more_cuts(problem, dict(ranked[0].types), search, refusal)
    return sorted(found, key=lambda start: 0.0 if start.state is None else start.state.cost)


def _distinct(ranked: Sequence[Candidate], limit_ms: float, count: int) -> list[Candidate]:
    """The best `count` candidates within the limit, each with at least a fifth more or fewer spread tables."""
    chosen: list[Candidate] = []
    for candidate in ranked:
        sizes = [len(other.types) for other in chosen]
        if candidate.estimate_ms <= limit_ms and all(abs(len(candidate.types) - size) > size / 5 for size in sizes):
            chosen.append(candidate)
    return chosen[:count]


def _starts_of(problem: Problem, types: Mapping[str, ShardingType], search: SearchParams) -> list[_Start]:
    """Starting points beside spread tables of these types: whole tables, and tables that are split beforehand."""
    spread = spread_tables(types, problem.task, problem.memory)
    columns = column_problem(problem, spread)
    if columns is None:
        return [_Start(spread, None, None)]
    states = [first_state(columns, search), *presplit_states(columns, search)]
    return [_Start(spread, columns, state) for state in states]


def _with_more_cuts(
    problem: Problem, types: dict[str, ShardingType], search: SearchParams, refusal: DoesNotFitError
) -> list[_Start]:
    """Cut the rows of ever more tables, the largest first, until the others fit as columns."""
    task = problem.task
    largest = sorted((t for t in task.tables if t.name not in types), key=lambda table: -table.weight_bytes)
    for table in largest:
        cut = best_cut(table, usable_types(table, problem), task, problem.memory)
        if cut is None:
            continue
        types[table.name] = cut
        try:
            return _starts_of(problem, types, search)
        except DoesNotFitError:
            continue
    raise refusal
