"""Beam search over column-wise splits [Zha2023] §3.3.

A state is a multiset of kinds, each of which is a table and a width (see `problem`). The first state holds the whole
tables. If the whole tables have no placement, `packing.make_room` finds the first state, or `exact_fit.fit_exactly` if
that fails. One step halves one shard of a state. Only distinct shards that can be halved within the constraints are
considered. The candidates among them are the `num_candidates` largest in bytes and the `num_candidates` most expensive
when alone on a rank (ties: the table that comes first in the task, then the wider shard). They are tried in the order
of tables; shards of one table are tried from wide to narrow. A state with two parents is tried once. The `beam_width`
states of lowest cost are the next beam (ties: the state tried first). After `max_steps` steps, or when no shard can be
halved or no new state has a placement, the cheapest placed state of all steps wins (ties: the state met first).

Shapes: S states of N shards each.
"""

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.halving import make_room
from neuroshard_pipeline.search.packing import check_room_of
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.placement import PlacedState, dimension_caps, place, placed_state
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.room import require_room

#: Bytes that a greedy run needs for a rank beside its sum of shard embeddings: five numbers in `greedy_runs.Runs` and
#: in the price of the run.
_OTHER_BYTES_PER_RUN_AND_RANK = 8 * 5

#: Largest number of ranks that is searched. 10 tables on 10,000 ranks took half a minute on one core.
_MOST_RANKS = 2**14


def beam_search(problem: Problem, params: SearchParams, start: PlacedState | None = None) -> list[PlacedState]:
    """Every placed state that the beam held in some step, in ascending order of cost (ties: the state met first).

    The search begins with `start`, by default with `first_state`.

    Raises:
        DoesNotFitError: no first state within the memory of the ranks was found.
        TooLargeError: the search would need more memory than this machine has left, or take too long.
    """
    beam = [start or first_state(problem, params)]
    held = list(beam)
    for _ in range(params.max_steps):
        states = _expansions(beam, problem, params.num_candidates)
        if not len(states):
            break
        placed = [state for state in place(states, problem, dimension_caps(problem, params)) if state is not None]
        beam = sorted(placed, key=lambda state: state.cost)[: params.beam_width]
        if not beam:
            break
        held += beam
    return sorted(held, key=lambda state: state.cost)


def _require_room_for_runs(problem: Problem, params: SearchParams) -> None:
    """Refuse a task that needs too much memory or time: a step has up to one greedy run per state and column cap."""
    num_shards, size = len(problem.units) + params.max_steps, problem.embedding.shape[1]
    num_states = params.beam_width * min(2 * params.num_candidates, num_shards) if params.max_steps else 1
    num_runs = num_states * params.num_caps
    of_rank = 8 * size + _OTHER_BYTES_PER_RUN_AND_RANK
    others = 8 * num_runs * (num_shards + size)
    require_room(problem.task, "a search with cost models", num_runs * of_rank, others, _MOST_RANKS)


def first_state(problem: Problem, params: SearchParams) -> PlacedState:
    """The placed state of the whole tables or, if these have no placement, another placed state.

    Raises:
        DoesNotFitError: no placed state within the memory of the ranks was found.
        TooLargeError: the search would need more memory than this machine has left, or take too long.
    """
    check_room_of(problem)
    _require_room_for_runs(problem, params)
    caps = dimension_caps(problem, params)
    placed = place(problem.whole_tables[None], problem, caps)[0]
    if placed is not None:
        return placed
    try:
        state = make_room(problem)
    except DoesNotFitError as error:
        return _exactly_fitted(problem, error)
    placed = place(state[None], problem, caps)[0]
    assert placed is not None, "a state that packs by size has a placement"
    return placed


def _exactly_fitted(problem: Problem, refusal: DoesNotFitError) -> PlacedState:
    """A placed state that integer programming finds after packing failed with the error `refusal`."""
    from neuroshard_pipeline.search.exact_fit import fit_exactly  # imported late: SciPy takes a third of a second

    host_limits = problem.host_memory.tolist() if problem.uses_host_memory else None
    fit = fit_exactly(problem.task, problem.memory, host_limits)
    if fit.impossible:
        raise DoesNotFitError(f"{refusal} (integer programming proves that no arrangement exists)") from refusal
    if fit.shards is None:
        raise refusal
    state = problem.numbers((unit, width) for unit, width, _ in fit.shards)
    return placed_state(state, [rank for *_, rank in fit.shards], problem)


def _expansions(beam: list[PlacedState], problem: Problem, num_candidates: int) -> IntArray:
    """Distinct states (S, N) that are one split away from a state of the beam, in the order in which they are tried."""
    states: dict[bytes, IntArray] = {}
    for placed in beam:
        state = np.sort(placed.kinds)
        halved, halves = _candidates(state, problem, num_candidates)
        children = np.repeat(np.append(state, 0)[None], len(halved), axis=0)
        children[:, -1], children[np.arange(len(halved)), np.searchsorted(state, halved)] = halves.T
        children.sort(axis=1)
        states |= {key: child for child in children if (key := child.tobytes()) not in states}
    return np.array(list(states.values()), dtype=np.int64)


def _candidates(state: IntArray, problem: Problem, num_candidates: int) -> tuple[IntArray, IntArray]:
    """The kinds of `state` to halve, and the kinds of both halves of each."""
    distinct = np.unique(state[problem.may_split(state)])
    distinct = distinct[problem.can_halve[distinct]]
    distinct = distinct[np.lexsort((-problem.width[distinct], problem.unit[distinct]))]
    largest = np.argsort(-problem.bytes[distinct], kind="stable")[:num_candidates]
    most_expensive = np.argsort(-problem.cost[distinct], kind="stable")[:num_candidates]
    chosen = distinct[np.union1d(largest, most_expensive)]
    return chosen, problem.halves(chosen.tolist())
