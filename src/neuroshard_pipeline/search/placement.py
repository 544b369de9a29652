"""Greedy grid search for the placement of shards [Zha2023] §3.3, all caps and all states in lockstep.

The algorithm, for one state (a multiset of shard kinds) and one cap: take the shards in descending single-table cost
(ties: the table that comes first in the task, then the wider shard); put each on the feasible rank with the lowest
predicted compute cost so far (ties: the lowest rank). A rank is feasible when it has the memory, when its dimension sum
stays within the cap and when the constraints allow the shard there; a shard without a feasible rank fails the run. Of
the runs that do not fail, the one with the lowest predicted embedding cost wins (ties: the smallest cap). Where all
runs fail, the shards are packed by size alone (`packing.pack_by_size`, in the same order); where this fails too, the
state has no placement. Costs are compared in whole units of 1e-9 ms (`simulator.quantised`).

`greedy_runs` says how it is fast.

Shapes: S states, N shards of a state, R runs, W ranks, M caps, H numbers of a shard embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.packing import pack_by_size
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.simulator import (
    COST_UNITS_PER_MS,
    FloatArray,
    IntArray,
    compute_ms_of_sums,
    embedding_cost_ms,
    quantised,
)


@dataclass(frozen=True)
class Placement:
    """A state with a rank for every shard.

    Attributes:
        kinds: (N,) kind of every shard, in placement order.
        ranks: (N,) rank of every shard.
        cost: predicted embedding cost in units of 1e-9 ms.
    """

    kinds: IntArray
    ranks: IntArray
    cost: float


def dimension_caps(kinds: ShardKinds, params: SearchParams) -> IntArray:
    """(M,) caps on a rank's dimension sum in whole columns, ascending; splitting columns leaves them as they are."""
    mean = sum(table.embedding_dim for table in kinds.task.tables) / kinds.task.world_size
    ratios = np.linspace(params.min_cap_ratio, params.max_cap_ratio, params.num_caps)
    return np.floor(ratios * mean + 1e-9).astype(np.int64)


def place(states: IntArray, kinds: ShardKinds, caps: IntArray) -> list[Placement | None]:
    """Best placement of every state.

    Args:
        states: (S, N) kinds of every state, in any order.
        kinds: what is known of the kinds.
        caps: (M,) ascending caps on the dimension sum.

    Returns:
        S placements, None where a state has none.
    """
    sequences = kinds.in_placement_order(states)  # (S, N)
    best = _best_of_runs(sequences, kinds, caps)
    return [found or _packed_by_size(sequence, kinds) for found, sequence in zip(best, sequences, strict=True)]


def _best_of_runs(sequences: IntArray, kinds: ShardKinds, caps: IntArray) -> list[Placement | None]:
    """The cheapest greedy run of every state, or None where a state has none."""
    from neuroshard_pipeline.search.greedy_runs import run_greedily  # not before: importing numba takes 0.3 s

    best: list[Placement | None] = [None] * len(sequences)
    runs, rows = run_greedily(sequences, kinds, caps)
    if len(rows):
        compute_ms = runs.cost[rows] / COST_UNITS_PER_MS
        cost = quantised(embedding_cost_ms(kinds.models, compute_ms, runs.dims[rows], kinds.task.batch_size))
        order = np.lexsort((runs.low[rows], cost, runs.state[rows]))
        states, first = np.unique(runs.state[rows[order]], return_index=True)
        for state, run in zip(states.tolist(), order[first].tolist(), strict=True):
            best[state] = Placement(sequences[state], runs.choices[rows[run]], float(cost[run]))
    return best


def prepare() -> None:
    """Do beforehand what the first search of a process would spend seconds on: load compiled code, or compile it."""
    from neuroshard_pipeline.search.greedy_runs import compile_ahead

    compile_ahead()


def _packed_by_size(sequence: IntArray, kinds: ShardKinds) -> Placement | None:
    ranks, left_over = pack_by_size(kinds.bytes[sequence].tolist(), kinds.limits.tolist(), kinds.allowed_on(sequence))
    if left_over:
        return None
    where = np.array(ranks, dtype=np.int64)
    return Placement(sequence, where, float(placement_costs(sequence[None], where[None], kinds)[0]))


def placement_costs(sequences: IntArray, ranks: IntArray, kinds: ShardKinds) -> FloatArray:
    """Embedding costs (P,) in units of 1e-9 ms of shards `sequences` (P, N) on `ranks` (P, N)."""
    plans, world_size = np.arange(len(sequences))[:, None], kinds.task.world_size
    sums = np.zeros((len(sequences), world_size, kinds.embedding.shape[1]))
    dims = np.zeros((len(sequences), world_size), dtype=np.int64)
    np.add.at(sums, (plans, ranks), kinds.embedding[sequences])
    np.add.at(dims, (plans, ranks), kinds.width[sequences])
    compute_ms = compute_ms_of_sums(kinds.models, sums, dims, kinds.task.batch_size).sum(axis=-1)
    return quantised(embedding_cost_ms(kinds.models, compute_ms, dims, kinds.task.batch_size))
