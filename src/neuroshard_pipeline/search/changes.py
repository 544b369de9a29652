"""The best single change that a plan does not make: what its explanation tells of the road not taken.

Shapes: P moves, N shards.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.moves import (
    NONE,
    Layout,
    Loads,
    Moves,
    constraints_allow,
    feasible,
    layout_of,
    loads_after,
    propose,
)
from neuroshard_pipeline.search.plan import Plan, RejectedChange
from neuroshard_pipeline.search.refine import (
    MAX_MOVES,
    column_price_ms,
    exact_costs,
    potential_gain,
)
from neuroshard_pipeline.search.simulator import COST_UNITS_PER_MS, IntArray, Models

#: Busiest ranks that changes start from, and idlest ranks that they lead to, where there are more of them.
_MAX_SOURCES, _MAX_TARGETS = 8, 16

#: Changes whose exact cost is predicted, of those allowed and of those not allowed each.
_NUM_EXACT = 64


def with_rejected_changes(plan: Plan, models: Models) -> Plan:
    """The same plan, knowing the cheapest single change that it could make, and a cheaper one that is not allowed.

    Changes are those of the local search: moves, swaps, splits, shifts of columns and merges that take something off
    the busiest ranks. Those that promise most are priced exactly.
    """
    kinds = ShardKinds(plan.task, models, plan.memory)
    layout = _layout_of_plan(plan, kinds)
    price = column_price_ms(layout, kinds)
    load = layout.compute_ms + price * layout.dims
    order = np.argsort(-load, kind="stable")
    rng = np.random.default_rng(0)
    moves = propose(layout, kinds, order[:_MAX_SOURCES], order[-_MAX_TARGETS:], MAX_MOVES, rng)
    if not len(moves):
        return plan
    loads, allowed = loads_after(layout, moves, kinds), feasible(layout, moves, kinds)
    gain = potential_gain(load, moves, loads, price)
    best = _cheapest(np.flatnonzero(allowed), gain, layout, moves, loads, kinds)
    blocked = _cheapest(np.flatnonzero(~allowed), gain, layout, moves, loads, kinds)
    changes = [] if best is None else [best]
    if blocked is not None and blocked.cost_ms < layout.cost / COST_UNITS_PER_MS:
        changes.append(blocked)
    return dataclasses.replace(plan, rejected=tuple(changes))


def _layout_of_plan(plan: Plan, kinds: ShardKinds) -> Layout:
    """Tables that are kept together become one shard again."""
    unit_of = {
        plan.task.tables[i].name: (number, unit) for number, unit in enumerate(kinds.units) for i in unit.members
    }
    pairs, ranks = [], []
    for shard, rank in zip(plan.shards, plan.ranks, strict=True):
        number, unit = unit_of[shard.table.name]
        if shard.table.name == plan.task.tables[unit.members[0]].name:
            pairs.append((number, shard.embedding_dim if len(unit.members) == 1 else unit.width))
            ranks.append(rank)
    return layout_of(kinds.numbers(pairs), np.array(ranks, dtype=np.int64), kinds)


def _cheapest(
    which: IntArray, gain: np.ndarray, layout: Layout, moves: Moves, loads: Loads, kinds: ShardKinds
) -> RejectedChange | None:
    """The cheapest of the moves `which`."""
    promising = which[np.argsort(gain[which], kind="stable")[:_NUM_EXACT]]
    if not len(promising):
        return None
    costs = exact_costs(layout, moves, loads, [np.array([move]) for move in promising.tolist()], kinds)
    move = moves.take(promising[[int(costs.argmin())]])
    return RejectedChange(
        _described(move, layout, kinds), float(costs.min()) / COST_UNITS_PER_MS, _hindrance(move, layout, kinds)
    )


def _described(move: Moves, layout: Layout, kinds: ShardKinds) -> str:
    """One move in words."""
    source, target = int(move.source[0]), int(move.target[0])
    leaving, other = int(layout.kinds[move.shard[0]]), int(move.other[0])
    stays, lands = int(move.to_source[0]), int(move.to_target[0])
    if other == NONE and stays == NONE:
        return f"move {_named(leaving, kinds)} from rank {source} to rank {target}"
    if other == NONE:
        return f"split {_named(leaving, kinds)} on rank {source} and move {kinds.width[lands]} columns to rank {target}"
    partner = int(layout.kinds[other])
    if kinds.table[partner] != kinds.table[leaving] or stays == partner:
        return f"swap {_named(leaving, kinds)} on rank {source} with {_named(partner, kinds)} on rank {target}"
    if stays == NONE:
        return f"merge {_named(leaving, kinds)} on rank {source} into the shard on rank {target}"
    columns = int(kinds.width[leaving] - kinds.width[stays])
    return f"hand {columns} columns of {_named(leaving, kinds)} on rank {source} to the shard on rank {target}"


def _named(kind: int, kinds: ShardKinds) -> str:
    unit = kinds.units[int(kinds.table[kind])]
    return unit.name if kinds.width[kind] == unit.width else f"{unit.name} ({kinds.width[kind]} columns)"


def _hindrance(move: Moves, layout: Layout, kinds: ShardKinds) -> str:
    """Which rank lacks how many bytes, and whether constraints forbid the move; empty where it is allowed."""
    if feasible(layout, move, kinds)[0]:
        return ""
    sizes = np.append(kinds.bytes, 0)
    shard_kinds = np.append(layout.kinds, NONE)
    source, target = int(move.source[0]), int(move.target[0])
    added = dict.fromkeys((source, target), 0)
    added[target] += int((sizes[move.to_target] - sizes[shard_kinds[move.other]])[0])
    added[source] += int((sizes[move.to_source] - sizes[shard_kinds[move.shard]])[0])
    reasons = [
        f"rank {rank} lacks {more - int(layout.free[rank])} bytes for it"
        for rank, more in added.items()
        if more > layout.free[rank]
    ]
    if not constraints_allow(move, kinds)[0]:
        reasons.append("constraints forbid it")
    return " and ".join(reasons)
