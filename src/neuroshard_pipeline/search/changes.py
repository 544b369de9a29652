"""The best single changes that a plan does not make, for its explanation.

Shapes: P moves, W ranks.
"""

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.search.local_search import MAX_MOVES, column_price_ms, exact_costs, potential_gain
from neuroshard_pipeline.search.models import COST_UNITS_PER_MS
from neuroshard_pipeline.search.moves import (
    NONE,
    Layout,
    Loads,
    Moves,
    bytes_added,
    constraints_allow,
    feasible,
    layout_of,
    loads_after,
    propose,
)
from neuroshard_pipeline.search.plan import Placement, RejectedChange
from neuroshard_pipeline.search.problem import Problem

#: Largest number of the busiest ranks that changes start from, and of the idlest ranks that they lead to.
_MAX_SOURCES, _MAX_TARGETS = 8, 16

#: Number of allowed changes whose exact cost is predicted, and the same number of those not allowed.
_NUM_EXACT = 64


def rejected_changes(problem: Problem, placement: Placement) -> tuple[RejectedChange, ...]:
    """The cheapest allowed change of a placement, and the cheapest other one that is cheaper than the placement.

    Changes are the moves of the local search that take load off the busiest ranks: relocations, swaps, splits, shifts
    of columns and merges. The most promising ones are priced exactly.
    """
    layout = layout_of(*problem.kinds_of(placement), problem)
    price = column_price_ms(layout, problem)
    load = layout.compute_ms + price * layout.dims
    order = np.argsort(-load, kind="stable")
    rng = np.random.default_rng(0)
    moves = propose(layout, problem, order[:_MAX_SOURCES], order[-_MAX_TARGETS:], MAX_MOVES, rng)
    if not len(moves):
        return ()
    loads, allowed = loads_after(layout, moves, problem), feasible(layout, moves, problem)
    gain = potential_gain(load, moves, loads, price)
    search = _Changes(problem, layout, moves, loads, gain)
    best, blocked = search.cheapest(np.flatnonzero(allowed)), search.cheapest(np.flatnonzero(~allowed))
    changes = [] if best is None else [best]
    if blocked is not None and blocked.cost_ms < layout.cost / COST_UNITS_PER_MS:
        changes.append(blocked)
    return tuple(changes)


class _Changes:
    """The moves away from a layout, with what is known about them."""

    def __init__(self, problem: Problem, layout: Layout, moves: Moves, loads: Loads, gain: FloatArray):
        self.problem, self.layout, self.moves, self.loads, self.gain = problem, layout, moves, loads, gain

    def cheapest(self, which: IntArray) -> RejectedChange | None:
        """The cheapest of the moves `which`, or None where there are none."""
        promising = which[np.argsort(self.gain[which], kind="stable")[:_NUM_EXACT]]
        if not len(promising):
            return None
        alone = [np.array([move]) for move in promising.tolist()]
        costs = exact_costs(self.layout, self.moves, self.loads, alone, self.problem)
        move = self.moves.take(promising[[int(costs.argmin())]])
        return RejectedChange(self._text(move), float(costs.min()) / COST_UNITS_PER_MS, self._hindrance(move))

    def _text(self, move: Moves) -> str:
        """One move in words."""
        problem, source, target = self.problem, int(move.source[0]), int(move.target[0])
        leaving, other = int(self.layout.kinds[move.shard[0]]), int(move.other[0])
        stays, lands = int(move.to_source[0]), int(move.to_target[0])
        if other == NONE and stays == NONE:
            return f"move {self._name(leaving)} from rank {source} to rank {target}"
        if other == NONE:
            columns = problem.width[lands]
            return f"split {self._name(leaving)} on rank {source} and move {columns} columns to rank {target}"
        partner = int(self.layout.kinds[other])
        if problem.unit[partner] != problem.unit[leaving] or stays == partner:
            return f"swap {self._name(leaving)} on rank {source} with {self._name(partner)} on rank {target}"
        if stays == NONE:
            return f"merge {self._name(leaving)} on rank {source} into the shard on rank {target}"
        columns = problem.width[leaving] - problem.width[stays]
        return f"move {columns} columns of {self._name(leaving)} on rank {source} to the shard on rank {target}"

    def _name(self, kind: int) -> str:
        unit, width = self.problem.units[int(self.problem.unit[kind])], self.problem.width[kind]
        return unit.name if width == unit.width else f"{unit.name} ({width} columns)"

    def _hindrance(self, move: Moves) -> str:
        """The missing bytes of each rank, and whether constraints forbid the move; empty where it is allowed."""
        problem, layout = self.problem, self.layout
        if feasible(layout, move, problem)[0]:
            return ""
        source, target = int(move.source[0]), int(move.target[0])
        to_source, to_target = bytes_added(layout, move, problem)
        added = dict.fromkeys((source, target), 0)
        added[target] += int(to_target[0])
        added[source] += int(to_source[0])
        reasons = [
            f"rank {rank} lacks {more - int(layout.free[rank])} bytes for it"
            for rank, more in added.items()
            if more > layout.free[rank]
        ]
        if not constraints_allow(move, problem)[0]:
            reasons.append("constraints forbid it")
        return " and ".join(reasons)
