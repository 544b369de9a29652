"""Greedy runs in lockstep, compiled: the inner loop of `placement`.

A run is a state, a range of caps that agree so far, and a partial placement. Caps share a run for as long as they would
choose alike: a looser cap has every feasible rank of a tighter one, so that equal choices form ranges of caps. States
share a run for as long as their shards are the same. Only the rank that got a shard is priced again, and one call of
the compute model's head prices it for all runs.

Why compiled: in NumPy a step was some thirty small array operations, 0.11 ms of which the head took a fifth. Compiled,
the whole search takes 0.4 of the time on 50 tables and 4 ranks, 0.7 on 1,000 and 128. The head stays a NumPy call, so
that any compute model will do.

Shapes: S states, N shards of a state, R runs, W ranks, M caps, Y kinds, H numbers of a shard embedding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.simulator import COST_UNITS_PER_MS, FloatArray, IntArray

#: Nowhere: a shard has no feasible rank.
_NOWHERE = -1


class Shards(NamedTuple):
    """What a run asks of shards: tables by kind, the kinds of every state, and where states part.

    Attributes:
        sequences: (S, N) kinds in placement order.
        embedding: (Y, H).
        width: (Y,) columns.
        bytes: (Y,) memory.
        allowed: (Y, W) whether a kind may lie on a rank; (0, W) where all may lie anywhere.
        caps: (M,) ascending.
        parts: (S, 3) step, parent, child, by step: where a state parts from one whose beginning it shares.
    """

    sequences: IntArray
    embedding: FloatArray
    width: IntArray
    bytes: IntArray
    allowed: NDArray[np.bool_]
    caps: IntArray
    parts: IntArray


class Runs(NamedTuple):
    """All runs; each has a row, there are rows for one run per state and cap, and `rows[:count]` are live.

    Attributes:
        rows: (R,) the live rows first, then the free ones.
        state: (R,) of every row; so are
        low: index of the tightest cap,
        high: of the loosest cap, and
        choices: (R, N) the ranks chosen.
        sums: (R, W, H) summed embeddings.
        dims: (R, W) dimension sums.
        free: (R, W) bytes left.
        cost: (R, W) predicted compute cost in units of 1e-9 ms.
        asked: (R, H) summed embedding of the rank that got the last shard, by position in `rows`.
    """

    rows: IntArray
    state: IntArray
    low: IntArray
    high: IntArray
    choices: IntArray
    sums: FloatArray
    dims: IntArray
    free: IntArray
    cost: FloatArray
    asked: FloatArray


def run_greedily(sequences: IntArray, kinds: ShardKinds, caps: IntArray) -> tuple[Runs, IntArray]:
    """Runs of all states and caps, and the rows of those that found a rank for every shard.

    Args:
        sequences: (S, N) kinds of distinct states in placement order.
        kinds: what is known of the kinds.
        caps: (M,) ascending caps on the dimension sum.
    """
    shards, runs = _shards(sequences, kinds, caps), _empty_runs(sequences, kinds, len(caps))
    count, num_steps = 1, sequences.shape[1]
    price, batch_size = kinds.models.compute.costs_from_sums, kinds.task.batch_size
    runs.state[0] = _shared_beginnings(sequences)[0]
    for step in range(num_steps):
        count = _place_next(step, count, shards, runs)
        if not count and not (shards.parts[:, 0] > step).any():
            break
        _price_last(step, count, price(runs.asked[:count], batch_size), runs)
    return runs, runs.rows[:count]


def compile_ahead() -> None:
    """Compile the loop, or load it from the cache: seconds on a machine's first search, which then take no time of it.

    What is compiled is kept beside this file, or in the user's cache folder where that cannot be written.
    """
    none, no_costs = np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0))
    nothing = np.zeros(0, dtype=np.int64)
    shards = Shards(none, no_costs, nothing, nothing, np.zeros((0, 0), dtype=bool), nothing, none)
    runs = Runs(nothing, nothing, nothing, nothing, none, np.zeros((0, 0, 0)), none, none, no_costs, no_costs)
    _price_last(0, _place_next(0, 0, shards, runs), np.zeros((0, 2)), runs)


def _shards(sequences: IntArray, kinds: ShardKinds, caps: IntArray) -> Shards:
    allowed = kinds.allowed_on(np.arange(len(kinds.table)))
    if allowed is None:
        allowed = np.ones((0, kinds.task.world_size), dtype=bool)
    parts = _shared_beginnings(sequences)[1]
    return Shards(sequences, kinds.embedding, kinds.width, kinds.bytes, allowed, caps, parts)


def _empty_runs(sequences: IntArray, kinds: ShardKinds, num_caps: int) -> Runs:
    (num_states, num_shards), world_size = sequences.shape, kinds.task.world_size
    count, size = num_states * num_caps, kinds.embedding.shape[1]
    return Runs(
        rows=np.arange(count),
        state=np.zeros(count, dtype=np.int64),
        low=np.zeros(count, dtype=np.int64),
        high=np.full(count, num_caps - 1),
        choices=np.zeros((count, num_shards), dtype=np.int64),
        sums=np.zeros((count, world_size, size)),
        dims=np.zeros((count, world_size), dtype=np.int64),
        free=np.tile(kinds.limits, (count, 1)),
        cost=np.zeros((count, world_size)),
        asked=np.zeros((count, size)),
    )


def _shared_beginnings(sequences: IntArray) -> tuple[int, IntArray]:
    """A state to begin with, and where the others part from one whose beginning they share: (S - 1, 3), by step.

    In lexicographic order no earlier state shares more of its beginning with a state than the one just before it, or,
    where that one parts later itself, the one that it parts from.
    """
    order = np.lexsort(sequences.T[::-1])
    shared = [0, *(sequences[order[1:]] != sequences[order[:-1]]).argmax(axis=1).tolist()]
    parts, live = [], [0]  # positions in `order` that a next state may part from
    for position in range(1, len(order)):
        while shared[live[-1]] > shared[position]:
            live.pop()
        parts.append((shared[position], order[live[-1]], order[position]))
        live.append(position)
    parts.sort(key=lambda part: part[0])
    return int(order[0]), np.array(parts, dtype=np.int64).reshape(-1, 3)


@njit(cache=True)
def _place_next(step: int, count: int, shards: Shards, runs: Runs) -> int:  # pragma: no cover
    """Choose a rank for shard `step` of every run and put it there; returns how many runs are left.

    A run takes the choice of its loosest cap. Where a tighter one cannot follow, the run is divided: the caps that can
    stay, the others become a new run. Runs without a feasible rank are dropped.
    """
    count = _part(step, count, shards, runs)
    index = 0
    while index < count:
        row = runs.rows[index]
        kind = shards.sequences[runs.state[row], step]
        rank = _cheapest_feasible(row, kind, shards, runs)
        if rank == _NOWHERE:
            count -= 1
            runs.rows[index], runs.rows[count] = runs.rows[count], row
            continue
        needed = runs.dims[row, rank] + shards.width[kind]
        if needed > shards.caps[runs.low[row]]:
            first = np.searchsorted(shards.caps, needed)
            child = runs.rows[count]
            _copy(row, child, step, runs)
            runs.high[child] = first - 1
            runs.low[row] = first
            count += 1
        runs.choices[row, step] = rank
        index += 1
    for index in range(count):
        row = runs.rows[index]
        kind, rank = shards.sequences[runs.state[row], step], runs.choices[row, step]
        runs.dims[row, rank] += shards.width[kind]
        runs.free[row, rank] -= shards.bytes[kind]
        for number in range(shards.embedding.shape[1]):
            runs.sums[row, rank, number] += shards.embedding[kind, number]
            runs.asked[index, number] = runs.sums[row, rank, number]
    return count


@njit(cache=True)
def _part(step: int, count: int, shards: Shards, runs: Runs) -> int:  # pragma: no cover
    """Copy runs for the states that part here from those whose beginning they share."""
    for part in range(len(shards.parts)):
        if shards.parts[part, 0] != step:
            continue
        for index in range(count):
            row, child = runs.rows[index], runs.rows[count]
            if runs.state[row] == shards.parts[part, 1]:
                _copy(row, child, step, runs)
                runs.state[child] = shards.parts[part, 2]
                count += 1
    return count


@njit(cache=True)
def _cheapest_feasible(row: int, kind: int, shards: Shards, runs: Runs) -> int:  # pragma: no cover
    """The feasible rank with the lowest compute cost under the loosest cap of a run; the lowest one of several."""
    most_columns = shards.caps[runs.high[row]] - shards.width[kind]
    best, best_cost = _NOWHERE, np.inf
    for rank in range(runs.dims.shape[1]):
        if (
            runs.cost[row, rank] < best_cost
            and runs.dims[row, rank] <= most_columns
            and runs.free[row, rank] >= shards.bytes[kind]
            and (len(shards.allowed) == 0 or shards.allowed[kind, rank])
        ):
            best, best_cost = rank, runs.cost[row, rank]
    return best


@njit(cache=True)
def _price_last(step: int, count: int, costs_ms: FloatArray, runs: Runs) -> None:  # pragma: no cover
    """Note the compute cost (R, 2) of the ranks that got a shard."""
    for index in range(count):
        row = runs.rows[index]
        cost = np.rint((costs_ms[index, 0] + costs_ms[index, 1]) * COST_UNITS_PER_MS)
        runs.cost[row, runs.choices[row, step]] = cost


@njit(cache=True)
def _copy(source: int, target: int, step: int, runs: Runs) -> None:  # pragma: no cover
    """Make the run in row `target` one like that in row `source`, which has placed `step` shards."""
    runs.state[target], runs.low[target], runs.high[target] = runs.state[source], runs.low[source], runs.high[source]
    runs.choices[target, :step] = runs.choices[source, :step]
    runs.sums[target] = runs.sums[source]
    runs.dims[target] = runs.dims[source]
    runs.free[target] = runs.free[source]
    runs.cost[target] = runs.cost[source]
