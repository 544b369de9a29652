"""Local search that improves a placed state (column shards and their ranks), and never returns a worse one.

A round considers moves that take load off the busiest ranks. The load of a rank is its predicted compute cost plus a
price per column that approximates communication. Moves are ranked by how much they lower a potential, the sum over
ranks of (load / largest load)**p. For the best-ranked moves, the embedding cost is predicted: for each move alone, and
for sets of moves that share no rank. The cheapest resulting layout replaces the current one if it is cheaper.
Otherwise the search returns to the best layout found so far and applies a few random moves to it.

Shapes: P moves or sets of moves, W ranks.
"""

import time

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.search.column_costs import cheapest_plans, communication_ms
from neuroshard_pipeline.search.moves import (
    Layout,
    Loads,
    Moves,
    apply_moves,
    feasible,
    layout_of,
    loads_after,
    propose,
    shared_ms_added,
)
from neuroshard_pipeline.search.params import LocalSearchParams
from neuroshard_pipeline.search.placement import PlacedState
from neuroshard_pipeline.search.problem import Problem

#: Exponent of the potential. It is high enough that a lower load of the busiest rank outweighs higher loads elsewhere;
#: with 16 instead, a search of 0.8 s lowered the cost half as much.
_POWER = 4.0

#: Moves start from the busiest ranks and lead to the idlest: this share of all ranks, but at least this number. Only
#: shifts and merges may lead to any rank. Few sources suffice, because only moves that take load off the slowest ranks
#: lower the cost.
_LEAST_SOURCES, _SOURCES_SHARE = 2, 1 / 16
_LEAST_TARGETS, _TARGETS_SHARE = 4, 1 / 8

#: The search ends early if so large a share of its rounds brings no cheaper state. On 90 random tasks, this saves 14 %
#: of the time of `neuroshard_plus`; predicted costs rise by 0.006 % on average, and by 0.3 % at most.
_PATIENCE = 0.5

#: Largest number of moves of each type that a round considers (see `moves.propose`).
MAX_MOVES = 1500


def local_search(
    start: PlacedState, problem: Problem, params: LocalSearchParams, rng: np.random.Generator
) -> list[PlacedState]:
    """Improve `start` within the budget of `params`.

    Returns:
        `start` and the improved states in which rounds ended, in ascending order of cost. States more expensive than
        `start` are left out, and of states with equal costs only the first one is kept.
    """
    deadline = time.perf_counter() + (params.time_budget_seconds or float("inf"))
    best = current = layout_of(start.kinds, start.ranks, problem)
    met = {best.cost: start}
    improved_in = 0
    for number in range(params.max_rounds):
        if time.perf_counter() >= deadline or number - improved_in > _PATIENCE * params.max_rounds:
            break
        better = _improved(current, problem, params, rng)
        if better is None:
            current = _perturbed(best, problem, params, rng)
            continue
        current = better
        if current.cost <= start.cost:
            met.setdefault(current.cost, PlacedState(current.kinds, current.ranks, current.cost))
            if current.cost < best.cost:
                best, improved_in = current, number
    return [met[cost] for cost in sorted(met)]


def column_price_ms(layout: Layout, problem: Problem) -> float:
    """Price of a column: increase in ms of the ranks' mean communication cost if every rank gets one more column."""
    batch_size = problem.task.batch_size
    more = max(1.0, 0.1 * layout.dims.mean())
    dims = np.stack([layout.dims, layout.dims + more])
    level = np.full(dims.shape, layout.compute_ms.mean())
    forward_ms, backward_ms = communication_ms(problem.models, level, dims, batch_size)
    total = (forward_ms + backward_ms).mean(axis=-1)
    return max(float(total[1] - total[0]) / more, 0.0)


def potential_gain(load: FloatArray, moves: Moves, loads: Loads, price: float) -> FloatArray:
    """(P,) change of the potential; negative is better.

    Args:
        load: (W,) loads before the moves.
        moves: P moves.
        loads: compute costs and dimension sums after each move.
        price: price of one column, as `column_price_ms` returns it.
    """
    top = max(float(load.max()), 1e-12)
    after = ((loads.compute_ms + price * loads.dims) / top) ** _POWER  # (P, 2)
    before = (load / top) ** _POWER
    within = moves.source == moves.target
    change_at_source = after[:, 0] - before[moves.source]
    return change_at_source + np.where(within, 0.0, after[:, 1] - before[moves.target])


def cheapest_set(
    layout: Layout, moves: Moves, loads: Loads, sets: list[IntArray], problem: Problem, limit: float = np.inf
) -> tuple[int, float]:
    """Index of the best of `sets` (each holds indices of moves), and the embedding cost after its moves, in 1e-9 ms.

    The index is -1 if the moves of no set make the cost lower than `limit`.
    """
    compute_ms = np.repeat(layout.compute_ms[None], len(sets), axis=0)  # (P, W)
    dims = np.repeat(layout.dims[None], len(sets), axis=0)
    plan = np.repeat(np.arange(len(sets)), [len(members) for members in sets])
    move = np.concatenate(sets)
    for column, rank in ((1, moves.target[move]), (0, moves.source[move])):
        compute_ms[plan, rank] = loads.compute_ms[move, column]
        dims[plan, rank] = loads.dims[move, column]
    shared_ms = problem.added_to_all_ms(layout.kinds) + np.bincount(
        plan, shared_ms_added(layout, moves, problem)[move], len(sets)
    )
    only, limits = np.zeros(len(sets), dtype=np.int64), np.array([limit])
    batch_size = problem.task.batch_size
    best, costs = cheapest_plans(problem.models, compute_ms, dims, shared_ms, batch_size, only, limits)
    return int(best[0]), float(costs[0])


def _improved(layout: Layout, problem: Problem, params: LocalSearchParams, rng: np.random.Generator) -> Layout | None:
    """The cheapest layout that one round finds, or None if no move makes the layout cheaper."""
    price = column_price_ms(layout, problem)
    load = layout.compute_ms + price * layout.dims
    moves = propose(layout, problem, *_busiest_and_idlest(load), MAX_MOVES, rng)
    moves = moves.take(np.flatnonzero(feasible(layout, moves, problem)))
    if not len(moves):
        return None
    loads = loads_after(layout, moves, problem)
    gain = potential_gain(load, moves, loads, price)
    chosen = np.argsort(gain, kind="stable")[: params.moves_per_round]
    sets = _sets_to_try(moves, chosen, problem.unit[layout.kinds] if problem.limits_shards else None)
    best, _ = cheapest_set(layout, moves, loads, sets, problem, layout.cost)
    if best < 0:
        return None
    better = apply_moves(layout, moves.take(sets[best]), problem)
    return better if better.cost < layout.cost else None


def _busiest_and_idlest(load: FloatArray) -> tuple[IntArray, IntArray]:
    """The ranks that moves start from, and the ranks that moves lead to (`moves.propose`)."""
    order = np.argsort(-load, kind="stable")
    sources = max(_LEAST_SOURCES, round(len(load) * _SOURCES_SHARE))
    targets = max(_LEAST_TARGETS, round(len(load) * _TARGETS_SHARE))
    return order[:sources], order[-targets:]


def _sets_to_try(moves: Moves, chosen: IntArray, unit_of_shard: IntArray | None) -> list[IntArray]:
    """Sets of indices of moves: every chosen move alone, and the first 2, 4, 8 ... chosen moves that share no rank.

    If the number of shards of any unit (a table, or tables kept together) is limited, the shards that the moves of a
    set take from their sources are of different units, because two splits of one unit could exceed its limit.
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


def _perturbed(layout: Layout, problem: Problem, params: LocalSearchParams, rng: np.random.Generator) -> Layout:
    """The layout after a few random moves."""
    for _ in range(params.perturbation_moves):
        source = rng.integers(problem.task.world_size, size=1)
        targets = rng.integers(problem.task.world_size, size=2)
        moves = propose(layout, problem, source, targets, MAX_MOVES, rng)
        allowed = np.flatnonzero(feasible(layout, moves, problem))
        if len(allowed):
            layout = apply_moves(layout, moves.take(rng.choice(allowed, size=1)), problem)
    return layout
