"""The best single changes that could be made to a plan, for the explanation of the plan.

Shapes: P moves, W ranks, Y kinds.
"""

import numpy as np

from neuroshard_pipeline.search.explain import LEAST_SHOWN_MS
from neuroshard_pipeline.search.local_search import MAX_MOVES, cheapest_set, column_price_ms, potential_gain
from neuroshard_pipeline.search.moves import (
    NONE,
    Layout,
    Moves,
    apply_moves,
    bytes_added,
    constraints_allow,
    feasible,
    layout_of,
    loads_after,
    propose,
)
from neuroshard_pipeline.search.plan import Placement, RejectedChange
from neuroshard_pipeline.search.price import placement_cost_ms
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import column_part, column_problem, joined, spread_of

#: Changes take shards from at most this many of the busiest ranks, and put them on at most this many of the idlest.
#: Only shifts of columns and merges may put them on any rank (`moves.propose`).
_MAX_SOURCES, _MAX_TARGETS = 8, 16

#: Largest number of allowed changes whose embedding cost is predicted; the same limit holds for forbidden changes.
_NUM_EXACT = 64

#: Largest product of the number of predicted changes (the allowed or the forbidden ones) and the number of ranks,
#: because a prediction takes 4 us per rank. The explanation of a plan with more ranks than this contains no changes.
_NUM_EXACT_RANKS = 2**19


def rejected_changes(problem: Problem, placement: Placement) -> tuple[RejectedChange, ...]:
    """The cheapest allowed change of a placement, and the cheapest forbidden one if it saves `LEAST_SHOWN_MS` or more.

    Changes are the moves of the local search that take load off the busiest ranks: relocations, swaps, splits, shifts
    of columns and merges. Tables that are not column-wise stay as they are. Only for the most promising changes is a
    cost predicted, and the cheapest of these is chosen. This cost is that of the local search, which leaves out the
    second wait of `price.predicted_cost`; the costs in the result contain it.
    """
    problem = problem.of(placement)
    count, spread = min(_NUM_EXACT, _NUM_EXACT_RANKS // problem.task.world_size), spread_of(placement)
    columns = column_problem(problem, spread) if count else None
    if columns is None:
        return ()
    layout = layout_of(*columns.kinds_of(column_part(placement)), columns)

    def cost_ms(moves: Moves) -> float:
        changed = apply_moves(layout, moves, columns)
        return placement_cost_ms(problem, joined(problem, columns.placement(changed.kinds, changed.ranks), spread))

    return tuple(
        RejectedChange(_text(move, layout, columns), found_ms, hindrance)
        for move in _changes_of(layout, columns, count)
        for hindrance in [_hindrance(move, layout, columns)]
        if (found_ms := cost_ms(move)) - placement_cost_ms(problem, placement) <= -LEAST_SHOWN_MS or not hindrance
    )


def _changes_of(layout: Layout, problem: Problem, count: int) -> list[Moves]:
    """The cheapest of the `count` most promising allowed moves, and the cheapest of as many forbidden ones."""
    price = column_price_ms(layout, problem)
    load = layout.compute_ms + price * layout.dims
    order = np.argsort(-load, kind="stable")
    rng = np.random.default_rng(0)
    moves = propose(layout, problem, order[:_MAX_SOURCES], order[-_MAX_TARGETS:], MAX_MOVES, rng)
    if not len(moves):
        return []
    allowed = feasible(layout, moves, problem)
    loads = loads_after(layout, moves, problem)
    gain = potential_gain(load, moves, loads, price)
    found = []
    for which in (np.flatnonzero(allowed), np.flatnonzero(~allowed)):
        promising = which[np.argsort(gain[which], kind="stable")[:count]]
        if len(promising):
            best, _ = cheapest_set(layout, moves, loads, list(promising[:, None]), problem)
            found.append(moves.take(promising[[best]]))
    return found


def _text(move: Moves, layout: Layout, problem: Problem) -> str:
    """One move in words."""
    source, target = int(move.source[0]), int(move.target[0])
    leaving, other = int(layout.kinds[move.shard[0]]), int(move.other[0])
    stays, lands = int(move.to_source[0]), int(move.to_target[0])
    if other == NONE and stays == NONE:
        return f"move {_name(problem, leaving)} from rank {source} to rank {target}"
    if other == NONE:
        columns = problem.width[lands]
        return f"split {_name(problem, leaving)} on rank {source} and move {columns} columns to rank {target}"
    partner = int(layout.kinds[other])
    if problem.unit[partner] != problem.unit[leaving] or stays == partner:
        return f"swap {_name(problem, leaving)} on rank {source} with {_name(problem, partner)} on rank {target}"
    if stays == NONE:
        return f"merge {_name(problem, leaving)} on rank {source} into the shard on rank {target}"
    columns = problem.width[leaving] - problem.width[stays]
    return f"move {columns} columns of {_name(problem, leaving)} on rank {source} to the shard on rank {target}"


def _name(problem: Problem, kind: int) -> str:
    unit, width = problem.units[int(problem.unit[kind])], problem.width[kind]
    return unit.name if width == unit.width else f"{unit.name} ({width} columns)"


def _hindrance(move: Moves, layout: Layout, problem: Problem) -> str:
    """Why the move is forbidden: missing bytes of each rank, and constraints. Empty if the move is allowed."""
    source, target, reasons = int(move.source[0]), int(move.target[0]), list[str]()
    memories = (("", problem.bytes, layout.free), (" of host memory", problem.host_bytes, layout.host_free))
    for of, sizes, free in memories:
        to_source, to_target = bytes_added(layout, move, sizes)
        added = dict.fromkeys((source, target), 0)
        added[target] += int(to_target[0])
        added[source] += int(to_source[0])
        reasons += [
            f"rank {rank} would need {more - int(free[rank])} bytes{of} more than it has"
            for rank, more in added.items()
            if more > free[rank]
        ]
    if not constraints_allow(move, problem)[0]:
        reasons.append("constraints forbid it")
    return " and ".join(reasons)
