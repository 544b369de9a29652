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
from neuroshard_pipeline.search.progress import with_progress
from neuroshard_pipeline.search.simulator import (
    TRUSTING,
    Caution,
    FloatArray,
    IntArray,
    cautious_cost_ms,
    communication_ms,
    quantised,
)

#: Exponent of the potential: high enough that lowering the busiest rank outweighs what that costs elsewhere. With 16,
#: a search of 0.8 s gained half as much.
_POWER = 4.0

#: Moves start from so many of the busiest ranks, and lead to so many of the idlest: at least, and as a share of all.
#: Only what is taken off the slowest ranks counts, and few ranks let a round look at all their moves.
_LEAST_SOURCES, _SOURCES_SHARE = 2, 1 / 16
_LEAST_TARGETS, _TARGETS_SHARE = 4, 1 / 8

#: Moves of every sort looked at in a round.
MAX_MOVES = 1500


def refine(start: Placement, kinds: ShardKinds, params: PlusParams, rng: np.random.Generator) -> Placement:
    """Improve `start` within the budget of `params`.

    Returns:
        A placement whose predicted cost is at most that of `start`, and whose cautious cost is the lowest met.
    """
    return refined_placements(start, kinds, params, rng)[0]


def refined_placements(
    start: Placement, kinds: ShardKinds, params: PlusParams, rng: np.random.Generator
) -> list[Placement]:
    """`refine`'s placement and the runners-up that rounds ended at, none predicted dearer than `start`.

    Returns:
        Placements in ascending order of cautious cost, of equal ones the first met; `start` is among them.
    """
    deadline = time.perf_counter() + (params.time_budget_seconds or float("inf"))
    best = current = layout_of(start.kinds, start.ranks, kinds, params.distrust)
    met = {best.judged: start}
    for _ in with_progress(params.max_rounds, "local search"):
        if time.perf_counter() >= deadline:
            break
        better = _improved(current, kinds, params, rng)
        if better is not None:
            current = better
            if current.cost <= start.cost:
                met.setdefault(current.judged, Placement(current.kinds, current.ranks, current.cost))
                best = min(best, current, key=lambda layout: layout.judged)
        else:
            current = _perturbed(best, kinds, params, rng)
    return [met[judged] for judged in sorted(met)]


def _improved(layout: Layout, kinds: ShardKinds, params: PlusParams, rng: np.random.Generator) -> Layout | None:
    """A cheaper layout one round away, or None where the round found none."""
    price = column_price_ms(layout, kinds)
    load = layout.compute_ms + price * layout.dims
    moves = propose(layout, kinds, *busiest_and_idlest(load), MAX_MOVES, rng)
    moves = moves.take(np.flatnonzero(feasible(layout, moves, kinds)))
    if not len(moves):
        return None
    loads = loads_after(layout, moves, kinds, params.distrust)
    gain = potential_gain(load, moves, loads, price)
    chosen = np.argsort(gain, kind="stable")[: params.moves_per_round]
    sets = _sets_to_try(moves, chosen, kinds.table[layout.kinds] if kinds.limits_shards else None)
    cost = exact_costs(layout, moves, loads, sets, kinds, params.distrust)
    best = int(cost.argmin())
    if cost[best] >= layout.judged:
        return None
    better = apply_moves(layout, moves.take(sets[best]), kinds, params.distrust)
    return better if better.judged < layout.judged else None


def busiest_and_idlest(load: FloatArray) -> tuple[IntArray, IntArray]:
    """The ranks (...) that moves start from, and those that they lead to."""
    order = np.argsort(-load, kind="stable")
    sources = max(_LEAST_SOURCES, round(len(load) * _SOURCES_SHARE))
    targets = max(_LEAST_TARGETS, round(len(load) * _TARGETS_SHARE))
    return order[:sources], order[-targets:]


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
    layout: Layout, moves: Moves, loads: Loads, sets: list[IntArray], kinds: ShardKinds, caution: Caution = TRUSTING
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
            layout = apply_moves(layout, moves.take(rng.choice(allowed, size=1)), kinds, params.distrust)
    return layout
