"""The true optimum of tiny tasks, found by trying every placement of whole tables, or also of halved ones."""

from __future__ import annotations

import itertools

from search.scalar_oracle import ScalarOracle


def best_placement_ms(oracle: ScalarOracle, state) -> float | None:
    """Lowest cost over all placements of the shards of `state` that keep the memory limits; None if there is none."""
    best = None
    world = range(oracle.task.world_size)
    for ranks in itertools.product(world, repeat=len(state)):
        items_of_rank = [[item for item, rank in zip(state, ranks, strict=True) if rank == r] for r in world]
        used = [sum(oracle.item_bytes(item) for item in items) for items in items_of_rank]
        if all(u <= limit for u, limit in zip(used, oracle.limits, strict=True)):
            cost = oracle.plan_cost_ms(items_of_rank)
            best = cost if best is None else min(best, cost)
    return best


def best_with_halvings_ms(oracle: ScalarOracle, max_splits: int) -> float | None:
    """Lowest cost over all ways to halve tables at most `max_splits` times and to assign the shards to ranks."""
    whole = tuple(sorted((index, table.embedding_dim) for index, table in enumerate(oracle.task.tables)))
    states = frontier = {whole}
    for _ in range(max_splits):
        frontier = {
            tuple(sorted(oracle.halve(state, item))) for state in frontier for item in set(state) if item[1] % 8 == 0
        }
        states = states | frontier
    costs = [cost for state in states if (cost := best_placement_ms(oracle, state)) is not None]
    return min(costs, default=None)
