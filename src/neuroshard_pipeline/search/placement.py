"""Greedy grid search for the placement of shards [Zha2023] §3.3, all caps and all states in lockstep.

The algorithm, for one state (a multiset of shard kinds) and one cap: take the shards in descending single-table
cost (ties: the table that comes first in the task, then the wider shard); put each on the feasible rank with the
lowest predicted compute cost so far (ties: the lowest rank). A rank is feasible when it has the memory and when its
dimension sum stays within the cap; a shard without a feasible rank fails the run. Of the runs that do not fail,
the one with the lowest predicted embedding cost wins (ties: the smallest cap). Where all runs fail, the shards are
packed by size alone (`packing.pack_by_size`, in the same order); where this fails too, the state has no placement.
Costs are compared in whole units of 1e-9 ms (`simulator.quantised`).

How it is fast: caps share a run for as long as they would choose alike (a looser cap has every feasible rank of a
tighter one, so that equal choices form ranges of caps), only the rank that got a shard is priced again, and one
call of the compute model's head prices it for all runs.

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
    runs = _Runs(sequences, kinds, caps)
    for step in range(sequences.shape[1]):
        runs.place_next(step)
    return _best_of_runs(runs, sequences, kinds)


def _best_of_runs(runs: _Runs, sequences: IntArray, kinds: ShardKinds) -> list[Placement | None]:
    """The cheapest run of every state, or the packing by size where a state has no run left."""
    best: list[Placement | None] = [None] * len(sequences)
    live = runs.count
    if live:
        compute_ms = runs.cost[:live] / COST_UNITS_PER_MS
        cost_ms = embedding_cost_ms(kinds.models, compute_ms, runs.dims[:live], kinds.task.batch_size)
        cost = quantised(cost_ms)
        for run in np.lexsort((runs.low[:live], cost)):
            state = runs.state[run]
            if best[state] is None:
                best[state] = Placement(sequences[state], runs.choices[run].astype(np.int64), float(cost[run]))
    return [found or _packed_by_size(sequence, kinds) for found, sequence in zip(best, sequences, strict=True)]


def _packed_by_size(sequence: IntArray, kinds: ShardKinds) -> Placement | None:
    ranks, left_over = pack_by_size(kinds.bytes[sequence].tolist(), kinds.limits.tolist())
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


class _Runs:
    """Greedy runs in lockstep: each is a state, a range of caps that agree so far, and a partial placement.

    Arrays have room for one run per state and cap; the first `count` rows are live.
    """

    def __init__(self, sequences: IntArray, kinds: ShardKinds, caps: IntArray):
        num_states, num_shards = sequences.shape
        world_size = kinds.task.world_size
        capacity = num_states * len(caps)
        self.sequences, self.kinds, self.caps = sequences, kinds, caps
        self.count = num_states
        self.state = np.zeros(capacity, dtype=np.int64)
        self.state[:num_states] = np.arange(num_states)
        self.low = np.zeros(capacity, dtype=np.int64)
        self.high = np.full(capacity, len(caps) - 1)
        self.sums = np.zeros((capacity, world_size, kinds.embedding.shape[1]))
        self.dims = np.zeros((capacity, world_size), dtype=np.int64)
        self.free = np.empty((capacity, world_size), dtype=np.int64)
        self.free[:num_states] = kinds.limits
        self.cost = np.zeros((capacity, world_size))
        self.choices = np.zeros((capacity, num_shards), dtype=np.int32)

    def place_next(self, step: int) -> None:
        """Put shard `step` of every run on a rank."""
        live = self.count
        if not live:
            return
        rank = self.cost[:live].argmin(axis=1)
        kind = self.sequences[self.state[:live], step]
        run = np.arange(live)
        fits = self.free[run, rank] >= self.kinds.bytes[kind]
        fits &= self.dims[run, rank] + self.kinds.width[kind] <= self.caps[self.low[:live]]
        if not fits.all():
            self.choices[:live, step] = rank
            self._resolve(np.flatnonzero(~fits), step)
            if not self.count:
                return
            run = np.arange(self.count)
            rank = self.choices[: self.count, step]
            kind = self.sequences[self.state[: self.count], step]
        self._apply(step, run, rank, kind)

    def _apply(self, step: int, run: IntArray, rank: IntArray, kind: IntArray) -> None:
        """Put the shards on their ranks and price these anew."""
        kinds = self.kinds
        sums = self.sums[run, rank] + kinds.embedding[kind]  # (R, H)
        self.sums[run, rank] = sums
        self.dims[run, rank] += kinds.width[kind]
        self.free[run, rank] -= kinds.bytes[kind]
        self.choices[run, step] = rank
        self.cost[run, rank] = quantised(kinds.models.compute.costs_from_sums(sums, kinds.task.batch_size).sum(axis=-1))

    def _resolve(self, pending: IntArray, step: int) -> None:
        """Choose ranks for runs whose cheapest rank is not feasible under all their caps.

        A run takes the choice of its loosest cap. Where a tighter one cannot follow, the run is divided: the caps
        that can stay, the others become a new run that chooses again. Runs without a feasible rank are dropped.
        """
        failed: list[int] = []
        while len(pending):
            kind = self.sequences[self.state[pending], step]
            width = self.kinds.width[kind]
            feasible = self.free[pending] >= self.kinds.bytes[kind][:, None]
            feasible &= self.dims[pending] + width[:, None] <= self.caps[self.high[pending]][:, None]
            masked = np.where(feasible, self.cost[pending], np.inf)
            rank = masked.argmin(axis=1)
            found = feasible[np.arange(len(pending)), rank]
            failed += pending[~found].tolist()
            pending, rank, width = pending[found], rank[found], width[found]
            self.choices[pending, step] = rank
            needed = self.dims[pending, rank] + width
            divided = needed > self.caps[self.low[pending]]
            pending = self._divide(pending[divided], needed[divided])
        if failed:
            self._drop(np.array(failed))

    def _divide(self, parents: IntArray, needed: IntArray) -> IntArray:
        """New runs for the caps of `parents` that lie below `needed` columns."""
        first = np.searchsorted(self.caps, needed)
        children = np.arange(self.count, self.count + len(parents))
        self._copy(parents, children)
        self.high[children] = first - 1
        self.low[parents] = first
        self.count += len(parents)
        return children

    def _drop(self, dead: IntArray) -> None:
        """Remove runs, filling their rows with the last live ones."""
        count = self.count - len(dead)
        kept = np.ones(self.count, dtype=bool)
        kept[dead] = False
        self._copy(count + np.flatnonzero(kept[count:]), np.flatnonzero(~kept[:count]))
        self.count = count

    def _copy(self, sources: IntArray, targets: IntArray) -> None:
        for rows in (self.state, self.low, self.high, self.sums, self.dims, self.free, self.cost, self.choices):
            rows[targets] = rows[sources]
