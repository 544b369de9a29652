"""Beam search over column-wise splits [Zha2023] §3.3.

A state is a multiset of shard kinds. The first state holds the whole tables; where it has no placement, it is the state
that `packing.make_room` finds, or `exact_fit.fit_exactly` where that finds none. A step halves one shard of a state.
Candidates are, among the distinct shards that can still be halved (constraints allowing), the N largest in bytes and
the N most expensive alone (ties: the table that comes first in the task, then the wider shard); they are tried in the
order of tables, the wider first. States met twice in one step are tried once. The K states of lowest cost go on (ties:
tried first); states without a placement do not. After L steps, or when nothing can be halved, the best placement seen
anywhere wins (ties: seen first).
"""

from __future__ import annotations

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.exact_fit import fit_exactly
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.packing import check_room, make_room
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.placement import Placement, dimension_caps, place, placement_costs
from neuroshard_pipeline.search.progress import with_progress
from neuroshard_pipeline.search.simulator import IntArray


def beam_search(kinds: ShardKinds, params: SearchParams) -> Placement:
    """Best placement over column splits.

    Raises:
        DoesNotFitError: the task does not fit the memory of its ranks.
    """
    return beam_placements(kinds, params)[0]


def beam_placements(kinds: ShardKinds, params: SearchParams) -> list[Placement]:
    """Every placement that some step's beam held, the cheapest first (ties: seen first): the best and its runners-up.

    Raises:
        DoesNotFitError: the task does not fit the memory of its ranks.
    """
    beam = [_first_placement(kinds, params)]
    held = list(beam)
    for _ in with_progress(params.max_steps, "column splits"):
        states = _expansions(beam, kinds, params.num_candidates)
        if not len(states):
            break
        placements = place(states, kinds, dimension_caps(kinds, params))
        placed = [placement for placement in placements if placement is not None]
        beam = sorted(placed, key=lambda placement: placement.cost)[: params.beam_width]
        if not beam:
            break
        held += beam
    return sorted(held, key=lambda placement: placement.cost)


def _first_placement(kinds: ShardKinds, params: SearchParams) -> Placement:
    """Placement of the whole tables, or of the state that makes room."""
    check_room(kinds.task, kinds.memory)
    caps = dimension_caps(kinds, params)
    placement = place(kinds.whole_tables[None], kinds, caps)[0]
    if placement is not None:
        return placement
    try:
        state = make_room(kinds)
    except DoesNotFitError as error:
        return _exactly_fitted(kinds, error)
    placement = place(state[None], kinds, caps)[0]
    assert placement is not None, "a state that packs by size has a placement"
    return placement


def _exactly_fitted(kinds: ShardKinds, refusal: DoesNotFitError) -> Placement:
    """A placement found by integer programming where packing gave up."""
    fit = fit_exactly(kinds.task, kinds.memory)
    if fit.impossible:
        raise DoesNotFitError(f"{refusal} (there is no arrangement at all: integer programming shows it)") from refusal
    if fit.shards is None:
        raise refusal
    state = kinds.numbers((unit, width) for unit, width, _ in fit.shards)
    ranks = np.array([rank for *_, rank in fit.shards], dtype=np.int64)
    return Placement(state, ranks, float(placement_costs(state[None], ranks[None], kinds)[0]))


def _expansions(beam: list[Placement], kinds: ShardKinds, num_candidates: int) -> IntArray:
    """(S, N) distinct states one split away from the beam's, in the order in which they are tried."""
    states: dict[bytes, IntArray] = {}
    for placement in beam:
        state = np.sort(placement.kinds)
        halved, halves = _candidates(state, kinds, num_candidates)
        children = np.repeat(np.append(state, 0)[None], len(halved), axis=0)
        children[:, -1] = children[np.arange(len(halved)), np.searchsorted(state, halved)] = halves
        children.sort(axis=1)
        states |= {key: child for child in children if (key := child.tobytes()) not in states}
    return np.array(list(states.values()), dtype=np.int64)


def _candidates(state: IntArray, kinds: ShardKinds, num_candidates: int) -> tuple[IntArray, IntArray]:
    """The kinds of `state` to halve, and the kinds of their halves."""
    distinct = np.unique(state[kinds.may_split(state)])
    distinct = distinct[kinds.can_halve[distinct]]
    distinct = distinct[np.lexsort((-kinds.width[distinct], kinds.table[distinct]))]
    largest = np.argsort(-kinds.bytes[distinct], kind="stable")[:num_candidates]
    most_expensive = np.argsort(-kinds.cost[distinct], kind="stable")[:num_candidates]
    chosen = distinct[np.union1d(largest, most_expensive)]
    return chosen, kinds.halves(chosen.tolist())
