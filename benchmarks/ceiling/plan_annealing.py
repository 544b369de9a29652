"""Simulated annealing over plans of all sharding types; `lab_plans` describes a plan and gives its cost.

A change gives a table another type, or moves, exchanges, splits or joins blocks of columns.
"""

from __future__ import annotations

import numpy as np
from lab_plans import evaluate
from lab_terms import COLUMN_WISE, DATA_PARALLEL, GRID_SHARD, KINDS, ROW_WISE
from numba import njit

#: Weights with which the ranks' mean cost, and the memory above limits as shares of the limits, are added to the step's
#: cost; share of the trials that make two changes at once.
_MEAN, _EXCESS, _TWICE = 0.02, 1e3, 0.3
#: A table that becomes column_wise gets 1, 2, 4 or 8 parts: a power of two with one of this many exponents.
_NUM_EXPONENTS = 4


@njit(cache=True)
def _below(rng, end):
    return int(rng.random() * end)


@njit(cache=True)
def _retyped(rng, kinds, blocks, count, widths, usable, hosts, world):
    """Give a random table another type with random places; return the new number of blocks."""
    table, kind = _below(rng, len(kinds)), _below(rng, len(KINDS))
    if not usable[table, kind] or kind == kinds[table]:
        return count
    kept = 0
    for n in range(count):
        if blocks[n, 0] != table:
            blocks[kept] = blocks[n]
            kept += 1
    kinds[table], left, parts = kind, widths[table], 1
    if kind == GRID_SHARD:
        parts = min(hosts, left)
    elif kind == COLUMN_WISE and rng.random() < 0.5:
        parts = min(2 ** _below(rng, _NUM_EXPONENTS), left)
    for part in range(min(parts, len(blocks) - kept)):
        width = left // (parts - part) if kept < len(blocks) - 1 else left
        places = world if kind == COLUMN_WISE else (1 if kind in (DATA_PARALLEL, ROW_WISE) else hosts)
        blocks[kept] = table, width, _below(rng, places)
        left, kept = left - width, kept + 1
    return kept


@njit(cache=True)
def _changed(rng, kinds, blocks, count, widths, usable, hosts, world):
    """Apply one random change in place; return the new number of blocks."""
    which = rng.random()
    if which < 0.25:
        return _retyped(rng, kinds, blocks, count, widths, usable, hosts, world)
    n, other = _below(rng, count), _below(rng, count)
    kind = kinds[blocks[n, 0]]
    if kind in (DATA_PARALLEL, ROW_WISE):
        return count
    places, cuts = (world if kind == COLUMN_WISE else hosts), kind in (COLUMN_WISE, GRID_SHARD)
    if which < 0.55:
        blocks[n, 2] = _below(rng, places)
    elif which < 0.8:
        if kinds[blocks[other, 0]] == kind:
            blocks[n, 2], blocks[other, 2] = blocks[other, 2], blocks[n, 2]
    elif which < 0.9:
        if cuts and blocks[n, 1] > 1 and count < len(blocks):
            width = blocks[n, 1] // 2 if rng.random() < 0.5 else 1 + _below(rng, blocks[n, 1] - 1)
            blocks[count] = blocks[n, 0], width, _below(rng, places)
            blocks[n, 1] -= width
            return count + 1
    elif cuts:
        return _joined(rng, blocks, count, n)
    return count


@njit(cache=True)
def _joined(rng, blocks, count, n):
    """Give block n all or some columns of another block of its table."""
    for other in range(count):
        if other != n and blocks[other, 0] == blocks[n, 0]:
            width = blocks[other, 1]
            if rng.random() < 0.5:
                width = 1 + _below(rng, width)
            blocks[n, 1] += width
            blocks[other, 1] -= width
            if blocks[other, 1] == 0:
                blocks[other] = blocks[count - 1]
                return count - 1
            return count
    return count


@njit(cache=True)
def anneal(rng, steps, hot, cold, kinds, blocks, count, usable, terms, machine):
    """The cheapest plan that was met and fits the memory.

    Args:
        rng: random generator.
        steps: number of trials.
        hot: first temperature, as a share of the cost; it falls geometrically.
        cold: last temperature, also as a share of the cost.
        kinds: types of the first plan.
        blocks: its blocks, with room for more.
        count: number of its blocks.
        usable: whether a table may get a type, (T, K).
        terms: terms of the tables (`lab_terms.Terms`).
        machine: numbers of the job (`lab_plans.Machine`).

    Returns:
        Cost in ms (infinite if no plan that was met fits the memory), types, blocks.
    """
    hosts = machine.world // machine.local
    step, mean, excess = evaluate(kinds, blocks[:count], terms, machine)
    cost, scale, best = step + _MEAN * mean + _EXCESS * excess, step, np.inf
    best_kinds, best_blocks = kinds.copy(), blocks[:count].copy()
    for number in range(steps):
        temperature = scale * hot * (cold / hot) ** (number / steps)
        new_kinds, new_blocks, new_count = kinds.copy(), blocks.copy(), count
        for _ in range(2 if rng.random() < _TWICE else 1):
            new_count = _changed(rng, new_kinds, new_blocks, new_count, terms.widths, usable, hosts, machine.world)
        step, mean, excess = evaluate(new_kinds, new_blocks[:new_count], terms, machine)
        new_cost = step + _MEAN * mean + _EXCESS * excess
        if new_cost <= cost or rng.random() < np.exp((cost - new_cost) / temperature):
            kinds, blocks, count, cost = new_kinds, new_blocks, new_count, new_cost
            if excess == 0 and step < best:
                best, scale = step, min(scale, step)
                best_kinds, best_blocks = kinds.copy(), blocks[:count].copy()
    return best, best_kinds, best_blocks
