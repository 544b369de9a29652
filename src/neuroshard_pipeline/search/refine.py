"""Local search that improves a placement, and never returns a worse one.

A round looks at moves that take load off the busiest ranks. What a move does to the compute cost of its two ranks is
exact; how much that matters is first guessed with a potential, the sum over ranks of (load / largest load)**p, where
load is compute plus a price per column that stands for communication. The moves that lower it most are then priced
exactly (with the caution asked for, `simulator.cautious_cost_ms`), one by one and the best ones that share no rank
together, and the cheapest layout is taken if it is cheaper. At a local optimum, a few random moves lead elsewhere, and
the search returns to the best layout known before it does so again.

Shapes: P moves or plans, W ranks.
"""

from __future__ import annotations

import time

import numpy as np

from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.moves import (
    Layout,
    Loads,
    Moves,
    apply_moves,
    feasible,
    layout_of,
    loads_after,
    propose,
)
from neuroshard_pipeline.search.params import PlusParams
from neuroshard_pipeline.search.placement import Placement
from neuroshard_pipeline.search.simulator import FloatArray, IntArray, cautious_cost_ms, communication_ms, quantised

#: Exponent of the potential: high enough that lowering the busiest rank outweighs what that costs elsewhere.
_POWER = 16.0

#: Busiest ranks that moves start from, and idlest ranks that they lead to, where there are more of them.
MAX_SOURCES, MAX_TARGETS = 8, 16

#: Moves of every sort looked at in a round.
MAX_MOVES = 1500


def refine(start: Placement, kinds: ShardKinds, params: PlusParams, rng: np.random.Generator) -> Placement:
    """Improve `start` within the budget of `params`.

    Returns:
        A placement whose predicted cost is at most that of `start`, and whose cautious cost is the lowest met.
    """
    deadline = time.perf_counter() + (params.time_budget_seconds or float("inf"))
    first = best = current = layout_of(start.kinds, start.ranks, kinds, params.caution)
    for _ in range(params.max_rounds):
        if time.perf_counter() >= deadline:
            break
        better = _improved(current, kinds, params, rng)
        if better is not None:
            current = better
            if current.judged < best.judged and current.cost <= start.cost:
                best = current
        else:
            current = _perturbed(best, kinds, params, rng)
    if best is first:
        return start
    return Placement(best.kinds, best.ranks, best.cost)


def _improved(layout: Layout, kinds: ShardKinds, params: PlusParams, rng: np.random.Generator) -> Layout | None:
    """A cheaper layout one round away, or None where the round found none."""
    price = column_price_ms(layout, kinds)
    load = layout.compute_ms + price * layout.dims
    order = np.argsort(-load, kind="stable")
    moves = propose(layout, kinds, order[:MAX_SOURCES], order[-MAX_TARGETS:], MAX_MOVES, rng)
    moves = moves.take(np.flatnonzero(feasible(layout, moves, kinds)))
    if not len(moves):
        return None
    loads = loads_after(layout, moves, kinds)
    gain = potential_gain(load, moves, loads, price)
    chosen = np.argsort(gain, kind="stable")[: params.moves_per_round]
    sets = _sets_to_try(moves, chosen, kinds.table[layout.kinds] if kinds.limits_shards else None)
    cost = exact_costs(layout, moves, loads, sets, kinds, params.caution)
    best = int(cost.argmin())
    if cost[best] >= layout.judged:
        return None
    better = apply_moves(layout, moves.take(sets[best]), kinds, params.caution)
    return better if better.judged < layout.judged else None


def column_price_ms(layout: Layout, kinds: ShardKinds) -> float:
    """What one column more on every rank adds to the communication cost of a rank, at the present volumes."""
    batch_size = kinds.task.batch_size
    more = max(1.0, 0.1 * layout.dims.mean())
    dims = np.stack([layout.dims, layout.dims + more])
    level = np.full(dims.shape, layout.compute_ms.mean())
    forward_ms, backward_ms = communication_ms(kinds.models, level, dims, batch_size)
    total = (forward_ms + backward_ms).mean(axis=-1)
    return max(float(total[1] - total[0]) / more, 0.0)


def potential_gain(load: FloatArray, moves: Moves, loads: Loads, price: float) -> FloatArray:
    """(P,) change of the potential; negative is better."""
    top = max(float(load.max()), 1e-12)
    after = ((loads.compute_ms + price * loads.dims) / top) ** _POWER  # (P, 2)
    before = (load / top) ** _POWER
    within = moves.source == moves.target
    change_at_source = after[:, 0] - before[moves.source]
    return change_at_source + np.where(within, 0.0, after[:, 1] - before[moves.target])


def _sets_to_try(moves: Moves, chosen: IntArray, unit_of_shard: IntArray | None) -> list[IntArray]:
    """Every chosen move alone, and the first 2, 4, 8 ... of those that share no rank together.

    Where the number of a unit's shards is limited, they share no unit either: two splits may be one too many.
    """
    disjoint: list[int] = []
    used: set[tuple[str, int]] = set()
    for move in chosen.tolist():
        touched = {("rank", int(moves.source[move])), ("rank", int(moves.target[move]))}
        if unit_of_shard is not None:
            touched.add(("unit", int(unit_of_shard[moves.shard[move]])))
        if not touched & used:
            disjoint.append(move)
            used |= touched
    sets = [np.array([move]) for move in chosen.tolist()]
    count = 2
    while count < 2 * len(disjoint):
        sets.append(np.array(disjoint[:count]))
        count *= 2
    return sets


def exact_costs(
    layout: Layout, moves: Moves, loads: Loads, sets: list[IntArray], kinds: ShardKinds, caution: float = 0.0
) -> FloatArray:
    """Embedding cost of every set of moves, judged with `caution`, in units of 1e-9 ms."""
    compute_ms = np.repeat(layout.compute_ms[None], len(sets), axis=0)  # (P, W)
    dims = np.repeat(layout.dims[None], len(sets), axis=0)
    plan = np.repeat(np.arange(len(sets)), [len(members) for members in sets])
    move = np.concatenate(sets)
    for column, rank in ((1, moves.target[move]), (0, moves.source[move])):
        compute_ms[plan, rank] = loads.compute_ms[move, column]
        dims[plan, rank] = loads.dims[move, column]
    return quantised(cautious_cost_ms(kinds.models, compute_ms, dims, kinds.task.batch_size, caution))


def _perturbed(layout: Layout, kinds: ShardKinds, params: PlusParams, rng: np.random.Generator) -> Layout:
    """The layout after a few random moves."""
    for _ in range(params.perturbation_moves):
        source = rng.integers(kinds.task.world_size, size=1)
        targets = rng.integers(kinds.task.world_size, size=2)
        moves = propose(layout, kinds, source, targets, MAX_MOVES, rng)
        allowed = np.flatnonzero(feasible(layout, moves, kinds))
        if len(allowed):
            layout = apply_moves(layout, moves.take(rng.choice(allowed, size=1)), kinds, params.caution)
    return layout
