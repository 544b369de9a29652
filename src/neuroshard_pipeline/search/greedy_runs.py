"""The compiled inner loop of `placement`: the greedy placement of many states under many column caps at once.

A run places the shards of one state, one after the other, under one or more caps. Caps share a run as long as they lead
to the same choices. The caps of a run are always consecutive, because a rank that is feasible under a tight cap is also
feasible under a looser one. States share a run until they differ in a shard. After each step, one call of the compute
model predicts, for all runs, the cost of the rank that received a shard.

The loop is compiled because a step in NumPy, thirty small operations, took 0.11 ms, only a fifth of it in the model.
Compiling reduced the time of a whole search to 40 % of the NumPy version's time on 50 tables and 4 ranks, and to 70 %
on 1,000 tables and 128 ranks. The model itself is called from Python, so that any compute cost model works.

A state is a multiset of kinds, each of which is a table and a width (`problem`). A cap limits the columns of a rank.

Shapes: S states, N shards of a state, R runs, W ranks, M caps, Y kinds, H numbers that describe a shard's cost
(shard embedding).
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray
from neuroshard_pipeline.cost_models.comm_features import comm_features
from neuroshard_pipeline.cost_models.compiled_price import member_costs
from neuroshard_pipeline.search.models import COST_UNITS_PER_MS, quantised
from neuroshard_pipeline.search.problem import Problem

#: Result of `_cheapest_feasible` if no rank is feasible.
_NO_RANK = -1


class Shards(NamedTuple):
    """Properties of kinds, the kinds of every state, and the steps at which states diverge.

    Attributes:
        sequences: (S, N) kinds in placement order.
        embedding: (Y, H) shard embeddings.
        dims: (Y,) 4-byte words of output per sample.
        bytes: (Y,) memory.
        host_bytes: (Y,) host memory; (0,) if no table is in host memory.
        background: (W,) cost of every rank without shards, in units of 1e-9 ms.
        allowed: (Y, W) whether a kind may be placed on a rank; (0, W) if no constraint names ranks.
        caps: (M,) ascending caps on the dimension sum.
        branches: (S - 1, 3) step, parent state and child state, in order of steps; both states have the same shards
            before this step.
    """

    sequences: IntArray
    embedding: FloatArray
    dims: IntArray
    bytes: IntArray
    host_bytes: IntArray
    background: FloatArray
    allowed: BoolArray
    caps: IntArray
    branches: IntArray


class Runs(NamedTuple):
    """The data of all runs: one row per run, with enough rows for one run per state and cap.

    Attributes:
        rows: (R,) row numbers. The rows with the first `count` of these numbers hold runs; all other rows are free.
        state: (R,) state of the run in every row. This array and all below it, except `changed`, are indexed by row.
        low: (R,) index of the tightest cap of the run.
        high: (R,) index of the loosest cap of the run.
        choices: (R, N) the ranks chosen.
        sums: (R, W, H) summed embeddings.
        dims: (R, W) dimension sums.
        free: (R, W) bytes left.
        host_free: (R, W) bytes of host memory left.
        cost: (R, W) predicted compute cost in units of 1e-9 ms.
        changed: (R, H) summed embedding of the rank that received the last shard, indexed by position in `rows`.
    """

    rows: IntArray
    state: IntArray
    low: IntArray
    high: IntArray
    choices: IntArray
    sums: FloatArray
    dims: IntArray
    free: IntArray
    host_free: IntArray
    cost: FloatArray
    changed: FloatArray


def run_greedily(sequences: IntArray, problem: Problem, caps: IntArray) -> tuple[Runs, IntArray]:
    """Place all states under all caps; returns all runs, and the rows of the runs that found a rank for every shard.

    The `sequences` (S, N) are the kinds of distinct states in placement order; the caps (M,) on the dimension sum
    ascend.
    """
    shards, runs = _shards(sequences, problem, caps), _empty_runs(sequences, problem, len(caps))
    count, num_steps = 1, sequences.shape[1]
    price, batch_size = problem.models.compute.costs_from_sums, problem.task.batch_size
    runs.state[0] = _branches(sequences)[0]
    costs_ms = np.empty((0, 2))
    for step in range(num_steps):
        count = _advance(step, count, costs_ms, shards, runs)
        if not count and not (shards.branches[:, 0] > step).any():
            break
        costs_ms = price(runs.changed[:count], batch_size)
    _price_last(num_steps - 1, count, costs_ms, shards, runs)
    return runs, runs.rows[:count]


def compile_ahead() -> None:
    """Compile the loop, and those of the cost models, or load them from Numba's cache on disk, before a search."""
    none, no_costs = np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0))
    nothing = np.zeros(0, dtype=np.int64)
    free, anywhere = np.zeros(0), np.zeros((0, 0), dtype=bool)
    shards = Shards(none, no_costs, nothing, nothing, nothing, free, anywhere, nothing, none)
    runs = Runs(nothing, nothing, nothing, nothing, none, np.zeros((0, 0, 0)), none, none, none, no_costs, no_costs)
    _price_last(0, _advance(0, 0, no_costs, shards, runs), no_costs, shards, runs)
    member_costs(np.zeros((0, 1)), 0.0, *[np.zeros((1, 1, 2))] * 4)
    comm_features([0, 0], [0, 0], 1, "forward")


def _shards(sequences: IntArray, problem: Problem, caps: IntArray) -> Shards:
    allowed = problem.allowed_on(np.arange(len(problem.unit)))
    if allowed is None:
        allowed = np.ones((0, problem.task.world_size), dtype=bool)
    background = quantised(problem.background_ms)
    branches, host_bytes = _branches(sequences)[1], problem.host_bytes[: None if problem.uses_host_memory else 0]
    kinds = problem.embedding, problem.dims, problem.bytes, host_bytes
    return Shards(sequences, *kinds, background, allowed, caps, branches)


def _empty_runs(sequences: IntArray, problem: Problem, num_caps: int) -> Runs:
    (num_states, num_shards), world_size = sequences.shape, problem.task.world_size
    count, size = num_states * num_caps, problem.embedding.shape[1]
    return Runs(
        rows=np.arange(count),
        state=np.zeros(count, dtype=np.int64),
        low=np.zeros(count, dtype=np.int64),
        high=np.full(count, num_caps - 1),
        choices=np.zeros((count, num_shards), dtype=np.int64),
        sums=np.zeros((count, world_size, size)),
        dims=np.zeros((count, world_size), dtype=np.int64),
        free=np.tile(problem.limits, (count, 1)),
        host_free=np.tile(problem.host_memory, (count, 1)),
        cost=np.tile(quantised(problem.background_ms), (count, 1)),
        changed=np.zeros((count, size)),
    )


def _branches(sequences: IntArray) -> tuple[int, IntArray]:
    """The first state, and (S - 1, 3) step, parent and child for every other state, as in `Shards.branches`.

    In lexicographic order, each state shares its longest prefix with its predecessor, which is its parent. But if the
    predecessor branches off only after that prefix, it has no run yet; its nearest ancestor with a run is the parent.
    """
    order = np.lexsort(sequences.T[::-1])
    shared = [0, *(sequences[order[1:]] != sequences[order[:-1]]).argmax(axis=1).tolist()]
    branches, open_states = [], [0]  # positions in `order` of the last state and its ancestors
    for position in range(1, len(order)):
        while shared[open_states[-1]] > shared[position]:
            open_states.pop()
        branches.append((shared[position], order[open_states[-1]], order[position]))
        open_states.append(position)
    branches.sort(key=lambda branch: branch[0])
    return int(order[0]), np.array(branches, dtype=np.int64).reshape(-1, 3)


@njit(cache=True)
def _advance(step: int, count: int, costs_ms: FloatArray, shards: Shards, runs: Runs) -> int:  # pragma: no cover
    """Store the costs that the last step led to, and place shard `step`; returns the number of runs left."""
    if step > 0:
        _price_last(step - 1, count, costs_ms, shards, runs)
    return _place_next(step, count, shards, runs)


@njit(cache=True)
def _place_next(step: int, count: int, shards: Shards, runs: Runs) -> int:  # pragma: no cover
    """Place shard `step` of every run; returns the number of runs left.

    A run takes the choice of its loosest cap. If this choice exceeds some caps of the run, these caps become a new run,
    which is placed later in the same loop. Runs without a feasible rank are dropped.
    """
    count = _branch(step, count, shards, runs)
    index = 0
    while index < count:
        row = runs.rows[index]
        kind = shards.sequences[runs.state[row], step]
        rank = _cheapest_feasible(row, kind, shards, runs)
        if rank == _NO_RANK:
            count -= 1
            runs.rows[index], runs.rows[count] = runs.rows[count], row
            continue
        needed = runs.dims[row, rank] + shards.dims[kind]
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
        runs.dims[row, rank] += shards.dims[kind]
        runs.free[row, rank] -= shards.bytes[kind]
        if len(shards.host_bytes) > 0:
            runs.host_free[row, rank] -= shards.host_bytes[kind]
        for number in range(shards.embedding.shape[1]):
            runs.sums[row, rank, number] += shards.embedding[kind, number]
            runs.changed[index, number] = runs.sums[row, rank, number]
    return count


@njit(cache=True)
def _branch(step: int, count: int, shards: Shards, runs: Runs) -> int:  # pragma: no cover
    """Copy the runs of parent states for the states that branch off at this step; returns the number of runs."""
    for branch in range(len(shards.branches)):
        if shards.branches[branch, 0] != step:
            continue
        for index in range(count):
            row, child = runs.rows[index], runs.rows[count]
            if runs.state[row] == shards.branches[branch, 1]:
                _copy(row, child, step, runs)
                runs.state[child] = shards.branches[branch, 2]
                count += 1
    return count


@njit(cache=True)
def _cheapest_feasible(row: int, kind: int, shards: Shards, runs: Runs) -> int:  # pragma: no cover
    """The feasible rank with the lowest compute cost under the loosest cap of a run (ties: the lowest rank)."""
    most_columns = shards.caps[runs.high[row]] - shards.dims[kind]
    best, best_cost = _NO_RANK, np.inf
    for rank in range(runs.dims.shape[1]):
        if (
            runs.cost[row, rank] < best_cost
            and runs.dims[row, rank] <= most_columns
            and runs.free[row, rank] >= shards.bytes[kind]
            and (len(shards.host_bytes) == 0 or runs.host_free[row, rank] >= shards.host_bytes[kind])
            and (len(shards.allowed) == 0 or shards.allowed[kind, rank])
        ):
            best, best_cost = rank, runs.cost[row, rank]
    return best


@njit(cache=True)
def _price_last(step: int, count: int, costs_ms: FloatArray, shards: Shards, runs: Runs) -> None:  # pragma: no cover
    """Store the predicted compute cost of the ranks that received a shard, from forward and backward ms (R, 2)."""
    for index in range(count):
        row = runs.rows[index]
        cost = np.rint((costs_ms[index, 0] + costs_ms[index, 1]) * COST_UNITS_PER_MS)
        rank = runs.choices[row, step]
        runs.cost[row, rank] = cost + shards.background[rank]


@njit(cache=True)
def _copy(source: int, target: int, step: int, runs: Runs) -> None:  # pragma: no cover
    """Copy the run in row `source`, which has placed `step` shards, to row `target`."""
    runs.state[target], runs.low[target], runs.high[target] = runs.state[source], runs.low[source], runs.high[source]
    runs.choices[target, :step] = runs.choices[source, :step]
    runs.sums[target] = runs.sums[source]
    runs.dims[target] = runs.dims[source]
    runs.free[target] = runs.free[source]
    runs.host_free[target] = runs.host_free[source]
    runs.cost[target] = runs.cost[source]
