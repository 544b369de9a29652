"""Greedy grid search for the placement of shards [Zha2023] §3.3, all caps and all states in lockstep.

The algorithm, for one state (a multiset of shard kinds) and one cap: take the shards in descending single-table cost
(ties: the table that comes first in the task, then the wider shard); put each on the feasible rank with the lowest
predicted compute cost so far (ties: the lowest rank). A rank is feasible when it has the memory, when its dimension sum
stays within the cap and when the constraints allow the shard there; a shard without a feasible rank fails the run. Of
the runs that do not fail, the one with the lowest predicted embedding cost wins (ties: the smallest cap). Where all
runs fail, the shards are packed by size alone (`packing.pack_by_size`, in the same order); where this fails too, the
state has no placement. Costs are compared in whole units of 1e-9 ms (`simulator.quantised`).

How it is fast: caps share a run for as long as they would choose alike (a looser cap has every feasible rank of a
tighter one, so that equal choices form ranges of caps), only the rank that got a shard is priced again, and one
call of the compute model's head prices it for all runs.

Shapes: S states, N shards of a state, R runs, W ranks, M caps, H numbers of a shard embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        if runs.count:
            runs.place_next(step)
    return _best_of_runs(runs, sequences, kinds)


def _best_of_runs(runs: _Runs, sequences: IntArray, kinds: ShardKinds) -> list[Placement | None]:
    """The cheapest run of every state, or the packing by size where a state has no run left."""
    best: list[Placement | None] = [None] * len(sequences)
    live = runs.count
    if live:
        compute_ms = runs.of_runs(runs.cost, slice(live)) / COST_UNITS_PER_MS
        dims = runs.of_runs(runs.dims, slice(live))
        cost_ms = embedding_cost_ms(kinds.models, compute_ms, dims, kinds.task.batch_size)
        cost = quantised(cost_ms)
        order = np.lexsort((runs.low[:live], cost, runs.state[:live]))
        states, first = np.unique(runs.state[order], return_index=True)
        for state, run in zip(states.tolist(), order[first].tolist(), strict=True):
            best[state] = Placement(sequences[state], runs.choices[run].astype(np.int64), float(cost[run]))
    return [found or _packed_by_size(sequence, kinds) for found, sequence in zip(best, sequences, strict=True)]


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


def _smallest_later(values: IntArray) -> IntArray:
    """(S, N) the smallest of the values after each one in its row; more than any limit after the last."""
    later = np.full_like(values, np.iinfo(np.int64).max // 4)
    later[:, :-1] = np.minimum.accumulate(values[:, :0:-1], axis=1)[:, ::-1]
    return later


class _Runs:
    """Greedy runs in lockstep: each is a state, a range of caps that agree so far, and a partial placement.

    Arrays have room for one run per state and cap; the first `count` rows are live. What belongs to a run and a rank
    is flat, with the rank of a run at `run * W + rank`, as one index is quicker than two.
    """

    def __init__(self, sequences: IntArray, kinds: ShardKinds, caps: IntArray):
        num_states, num_shards = sequences.shape
        self.world_size = kinds.task.world_size
        capacity = num_states * len(caps)
        cells = capacity * self.world_size
        self.sequences, self.kinds, self.caps = sequences, kinds, caps
        self.count = num_states
        self.state = np.zeros(capacity, dtype=np.int64)
        self.state[:num_states] = np.arange(num_states)
        self.low = np.zeros(capacity, dtype=np.int64)
        self.high = np.full(capacity, len(caps) - 1)
        self.choices = np.zeros((capacity, num_shards), dtype=np.int32)
        self.sums = np.zeros((cells, kinds.embedding.shape[1]))
        self.dims = np.zeros(cells, dtype=np.int64)
        self.free = np.resize(kinds.limits, cells)
        self.cost = np.zeros(cells)
        self.open_cost = np.zeros(cells)  # infinite where no later shard of the run can be put
        self.narrowest_later = _smallest_later(kinds.width[sequences])
        self.lightest_later = _smallest_later(kinds.bytes[sequences])

    def of_runs(self, cells: NDArray, runs: slice | IntArray) -> NDArray:
        """What belongs to the ranks of `runs`: (R, W, ...)."""
        return cells.reshape(-1, self.world_size, *cells.shape[1:])[runs]

    def place_next(self, step: int) -> None:
        """Put shard `step` of every run on a rank."""
        live = self.count
        rank = self.of_runs(self.open_cost, slice(live)).argmin(axis=1)
        cell = np.arange(live) * self.world_size + rank
        kind = self.sequences[self.state[:live], step]
        fits = self.free[cell] >= self.kinds.bytes[kind]
        fits &= self.dims[cell] + self.kinds.width[kind] <= self.caps[self.low[:live]]
        if self.kinds.rank_allowed is not None:
            fits &= self.kinds.rank_allowed[self.kinds.table[kind], rank]
        self.choices[:live, step] = rank
        if not fits.all():
            self._resolve(np.flatnonzero(~fits), step)
            kind = self.sequences[self.state[: self.count], step]
            cell = np.arange(self.count) * self.world_size + self.choices[: self.count, step]
        if self.count:
            self._apply(step, cell, kind)

    def _apply(self, step: int, cell: IntArray, kind: IntArray) -> None:
        """Put the shards on their ranks and price these anew."""
        kinds, state = self.kinds, self.state[: self.count]
        sums = self.sums[cell] + kinds.embedding[kind]  # (R, H)
        dims = self.dims[cell] + kinds.width[kind]
        free = self.free[cell] - kinds.bytes[kind]
        self.sums[cell], self.dims[cell], self.free[cell] = sums, dims, free
        cost = quantised(kinds.models.compute.costs_from_sums(sums, kinds.task.batch_size).sum(axis=-1))
        self.cost[cell] = cost
        closed = free < self.lightest_later[state, step]
        closed |= dims + self.narrowest_later[state, step] > self.caps[self.high[: self.count]]
        self.open_cost[cell] = np.where(closed, np.inf, cost)

    def _resolve(self, pending: IntArray, step: int) -> None:
        """Choose ranks for runs whose cheapest rank is not feasible under all their caps.

        A run takes the choice of its loosest cap. Where a tighter one cannot follow, the run is divided: the caps
        that can stay, the others become a new run that chooses again. Runs without a feasible rank are dropped.
        """
        failed: list[int] = []
        while len(pending):
            kind = self.sequences[self.state[pending], step]
            width = self.kinds.width[kind]
            dims = self.of_runs(self.dims, pending)
            feasible = self.of_runs(self.free, pending) >= self.kinds.bytes[kind][:, None]
            feasible &= dims <= (self.caps[self.high[pending]] - width)[:, None]
            if self.kinds.rank_allowed is not None:
                feasible &= self.kinds.rank_allowed[self.kinds.table[kind]]
            rank = np.where(feasible, self.of_runs(self.cost, pending), np.inf).argmin(axis=1)
            row = np.arange(len(pending))
            found = feasible[row, rank]
            needed = dims[row, rank] + width
            failed += pending[~found].tolist()
            pending, needed = pending[found], needed[found]
            self.choices[pending, step] = rank[found]
            divided = needed > self.caps[self.low[pending]]
            if not divided.any():
                break
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
        for rows in (self.state, self.low, self.high, self.choices):
            rows[targets] = rows[sources]
        for cells in (self.sums, self.dims, self.free, self.cost, self.open_cost):
            of_all = self.of_runs(cells, slice(None))
            of_all[targets] = of_all[sources]
