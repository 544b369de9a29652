"""The search over all sharding types: it minimises the predicted cost of a whole step.

Tables that are replicated or cut by rows are *spread*. The search tries the most promising sets of spread tables
(`search.spread_choice`). For each set, it places the other tables, whole or split by columns. Beam searches start from
the best of these placements, and a local search improves the results. Another one cuts tables that lie on one host each
into column blocks and moves these. The last ones balance both halves of the step, and change single tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.beam import beam_search, first_state
from neuroshard_pipeline.search.halves import balanced_halves
from neuroshard_pipeline.search.host_blocks import improved_on_hosts
from neuroshard_pipeline.search.host_load import host_loads_ms
from neuroshard_pipeline.search.local_search import local_search
from neuroshard_pipeline.search.params import LocalSearchParams, SearchParams
from neuroshard_pipeline.search.placement import PlacedState, placed_state
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.polish import polished
from neuroshard_pipeline.search.presplit import presplit_states
from neuroshard_pipeline.search.price import placement_cost_ms, placement_costs
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import Spread, column_part, column_problem, joined, spread_of, spread_tables
from neuroshard_pipeline.search.spread_choice import Candidate, SpreadChoice, best_cut
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.table import ShardingType

#: Tasks with more tables times ranks than this are large: their search is limited to the most promising choices.
_LARGE = 20_000

#: Number of sets of spread tables from which the search starts. Up to `_MOST_TRIED` times as many are tried, because
#: the other tables may not fit beside a set.
_NUM_SETS, _NUM_SETS_IF_LARGE = 8, 3
_MOST_TRIED = 4

#: Number of starting points from which a beam search runs (3 instead of 2 lowered predicted costs of 250 random tasks
#: by 0.3 %, at most by 38 %). Small tasks have one more, without spread tables. Large tasks have none: no cost fell.
_NUM_SEARCHED = 3

#: Tasks with at most this many tables times ranks have several beam searches whose results are improved.
_SMALL = 500

#: Tasks with at most this many end with `search.polish` (predicted costs of random tasks fall by up to a fifth), after
#: half the rounds of local search (a fifth less time; on 745 random tasks, predicted costs rise by 0.01 % on average).
#: The fewer tables times ranks, the more results it improves: first of all the best, then the best `given` one.
_TINY = 400

#: The local search improves a beam search's result only if its cost is at most this multiple of the lowest one. On the
#: 16 tasks of `make run`, this takes a third less time than improving all; predicted costs rise by 0.03 % on average.
_MOST_ABOVE_BEST_RESULT = 1.1

#: So many of the states that a search over columns found are priced as a whole step: the cheapest by its own estimate,
#: which knows only one all-to-all, however many modules there are.
_NUM_PRICED = 8

#: Tiny tasks with more hosts also get starting points whose grid-sharded tables have at most so many column blocks.
_FEW_BLOCKS = 2
#: They also start from all combinations of sharding types for tables, or else for modules, if there are so few.
_MOST_COMBINATIONS = 128

#: In each of at most this many rounds, the type of one table of the cheapest starting point is changed; the second
#: number is the most changes that are tried in a round.
_MOST_CHANGES, _NUM_NEIGHBOURS = 6, 8


@dataclass(frozen=True)
class _Start:
    """A starting point: a set of spread tables, and the other tables with a first placement.

    Attributes:
        spread: the spread tables and their shards.
        columns: the problem of the other tables; None if there are none.
        state: a placement of the other tables, whole or split by columns; None if there are none.
        cost_ms: predicted cost; not a number until it is priced.
    """

    spread: Spread
    columns: Problem | None
    state: PlacedState | None
    cost_ms: float = np.nan


def whole_step_placement(
    problem: Problem,
    search: SearchParams,
    local: LocalSearchParams,
    rng: np.random.Generator,
    given: Sequence[Placement] = (),
) -> Placement:
    """The placement of lowest predicted cost that the search finds; none of the placements `given` is cheaper.

    The local search minimises the sum of both halves of a step, without waits between them. Except in large tasks,
    `search.host_blocks` and `search.halves` improve the placement further. In tiny tasks, `search.polish` does, too,
    and several results are improved. The search also starts from the cheapest placement `given`; it is one of these.

    Raises:
        DoesNotFitError: no way to shard the tables was found that fits the memory of the ranks.
        ConstraintError: a table has no usable sharding type (`usable_types`).
    """
    given = [each for each in given if problem.fits_host_memory(each)]
    best_given = [given[int(np.argmin([ms for ms, _ in placement_costs(problem, given)]))]] if given else []
    found = _searched_placements(problem, search, local, rng, best_given)
    if not _is_large(problem):
        results = [*found[:1], *best_given, *found[1:]]
        results = results[: max(1, _TINY // _size(problem))]
        found = [_improved_step(problem, each) for each in dict.fromkeys(results)]
    return min([*found, *best_given], key=partial(placement_cost_ms, problem))


def _improved_step(problem: Problem, placement: Placement) -> Placement:
    found = balanced_halves(problem, improved_on_hosts(problem, placement, usable_types))
    return polished(problem, found, usable_types) if _size(problem) <= _TINY else found


def _searched_placements(
    problem: Problem, search: SearchParams, local: LocalSearchParams, rng: np.random.Generator, given: list[Placement]
) -> list[Placement]:
    choice = SpreadChoice(problem, usable_types)
    starts = _starts(problem, choice, search, given)
    searched = starts[:1]
    if not _is_large(problem):
        starts = _refined(problem, choice, starts, search)
        searched = [_searched(problem, start, search) for start in starts[:_NUM_SEARCHED]]
    if _size(problem) > _SMALL:
        searched = _in_order(searched)[:1]
    else:
        further = [start for start in starts[_NUM_SEARCHED:] if not start.spread.types]
        searched += [_searched(problem, start, search) for start in further[:1]]
    return [_placement(problem, start) for start in _in_order(list(_improved(problem, searched, local, rng)))]


def _searched(problem: Problem, start: _Start, search: SearchParams) -> _Start:
    """The cheapest of the starting point and the states that a beam search finds from it."""
    if start.columns is None:
        return start
    return _cheapest(problem, start, beam_search(start.columns, search, start.state))


def _cheapest(problem: Problem, start: _Start, found: Sequence[PlacedState]) -> _Start:
    """The cheapest of `start` and the first states `found`."""
    others = _priced(problem, [replace(start, state=state) for state in found[:_NUM_PRICED]])
    return min([start, *others], key=lambda each: each.cost_ms)


def _improved(
    problem: Problem, found: Sequence[_Start], local: LocalSearchParams, rng: np.random.Generator
) -> Iterator[_Start]:
    """All results; a local search has improved those within `_MOST_ABOVE_BEST_RESULT` times the lowest cost."""
    limit_ms = min(start.cost_ms for start in found) * _MOST_ABOVE_BEST_RESULT
    if _size(problem) <= _TINY:
        local = local.model_copy(update={"max_rounds": (local.max_rounds + 1) // 2})
    for start in _in_order(found):
        if start.columns is None or start.state is None or start.cost_ms > limit_ms:
            yield start
        else:
            yield _cheapest(problem, start, local_search(start.state, start.columns, local, rng))


def _placement(problem: Problem, start: _Start) -> Placement:
    """The placement of all tables."""
    columns, state = start.columns, start.state
    found = None if columns is None or state is None else columns.placement(state.kinds, state.ranks)
    return joined(problem, found, start.spread)


def _refined(problem: Problem, choice: SpreadChoice, starts: list[_Start], search: SearchParams) -> list[_Start]:
    """The starting points and further ones, found by changing types of single tables while that lowers the cost."""
    for _ in range(_MOST_CHANGES):
        tried: list[_Start] = []
        for candidate in choice.neighbours(starts[0].spread.types)[:_NUM_NEIGHBOURS]:
            with suppress(DoesNotFitError):
                tried.append(_start(problem, candidate.types, search))
        tried = _priced(problem, tried)
        if not tried or min(start.cost_ms for start in tried) >= starts[0].cost_ms:
            break
        starts = _in_order([*starts, *tried])
    return starts


def _starts(problem: Problem, choice: SpreadChoice, search: SearchParams, given: Sequence[Placement]) -> list[_Start]:
    """Starting points of the column search, the cheapest first: promising sets of spread tables, and `given`."""
    ranked = choice.candidates()
    found = _starts_that_fit(problem, ranked, search, _NUM_SETS_IF_LARGE if _is_large(problem) else _NUM_SETS)
    if not found:
        try:
            fewest = min(ranked, key=lambda candidate: len(candidate.types))
            found = [_with_more_cuts(problem, fewest.types, search)]
        except DoesNotFitError:
            if not given:
                raise
    few = choice.combinations(_MOST_COMBINATIONS) if _size(problem) <= _TINY else []
    combined = _starts_that_fit(problem, few, search, len(few))
    for starts in (found, combined) if _size(problem) <= _TINY and problem.task.num_hosts > _FEW_BLOCKS else ():
        for types in [start.spread.types for start in starts if "grid_shard" in start.spread.types.values()]:
            with suppress(DoesNotFitError):
                starts.append(_start(problem, types, search, _FEW_BLOCKS))
    found += [_start_at(problem, placement) for placement in given]
    found = _in_order([*_priced(problem, found), *_in_order(_priced(problem, combined))[:_NUM_SEARCHED]])
    halves = []
    for start in found[: 1 if _is_large(problem) else None]:
        if start.columns is not None and start.state is not None:
            states = presplit_states(start.columns, search, start.state)
            halves += [replace(start, state=state) for state in states]
    return _in_order([*found, *_priced(problem, halves)])


def _in_order(starts: Sequence[_Start]) -> list[_Start]:
    """The starting points in ascending order of cost; of equal costs, only the first."""
    found: dict[float, _Start] = {}
    for start in sorted(starts, key=lambda start: start.cost_ms):
        found.setdefault(round(start.cost_ms, 9), start)
    return list(found.values())


def _size(problem: Problem) -> int:
    return len(problem.task.tables) * problem.task.world_size


def _is_large(problem: Problem) -> bool:
    return _size(problem) > _LARGE


def _starts_that_fit(problem: Problem, ranked: Sequence[Candidate], search: SearchParams, count: int) -> list[_Start]:
    """Starting points at the `count` candidates with the lowest estimates that fit; every two of them `_differ`."""
    found: list[_Start] = []
    tried: list[Mapping[str, ShardingType]] = []
    for types in (candidate.types for candidate in ranked):
        if len(found) == count or len(tried) == count * _MOST_TRIED:
            break
        if types not in tried and all(_differ(types, start.spread.types) for start in found):
            tried.append(types)
            with suppress(DoesNotFitError):
                found.append(_start(problem, types, search))
    return found


def _differ(types: Mapping[str, ShardingType], others: Mapping[str, ShardingType]) -> bool:
    """Whether the tables with cut rows or their types differ, or the numbers of spread tables by more than a fifth."""
    cut, other_cut = ({n: t for n, t in of.items() if t != "data_parallel"} for of in (types, others))
    return cut != other_cut or abs(len(types) - len(others)) > len(others) / 5


def _start(
    problem: Problem, types: Mapping[str, ShardingType], search: SearchParams, most_blocks: int = 2**30
) -> _Start:
    """The starting point with spread tables of these types. Other tables are split only if they do not fit whole."""
    spread = spread_tables(types, problem.task, problem.memory, partial(host_loads_ms, problem), most_blocks)
    columns = column_problem(problem, spread)
    return _Start(spread, columns, None if columns is None else first_state(columns, search))


def _priced(problem: Problem, starts: Sequence[_Start]) -> list[_Start]:
    costs = placement_costs(problem, [_placement(problem, start) for start in starts])
    return [replace(start, cost_ms=cost_ms) for start, (cost_ms, _) in zip(starts, costs, strict=True)]


def _start_at(problem: Problem, placement: Placement) -> _Start:
    """The starting point at a placement."""
    spread = spread_of(placement)
    columns, state = column_problem(problem, spread), None
    if columns is not None:
        kinds, ranks = columns.kinds_of(column_part(placement))
        state = placed_state(kinds, ranks.tolist(), columns)
    return _Start(spread, columns, state)


def _with_more_cuts(problem: Problem, types: Mapping[str, ShardingType], search: SearchParams) -> _Start:
    """The starting point in which the rows of more tables are cut, the largest first, until all others fit.

    Tables whose row shards have no room on some rank stay as they are. The others do not fit beside those in `types`.

    Raises:
        DoesNotFitError: cutting rows does not help.
    """
    task = problem.task
    uncut = (table for table in task.tables if types.get(table.name, "data_parallel") == "data_parallel")
    for table in sorted(uncut, key=lambda table: -table.weight_bytes):
        cut = best_cut(table, usable_types(table, problem), task, problem.memory)
        if cut is None:
            continue
        with suppress(DoesNotFitError):
            spread_tables({**types, table.name: cut}, task, problem.memory)
            types = {**types, table.name: cut}
            return _start(problem, types, search)
    return _start(problem, types, search)
