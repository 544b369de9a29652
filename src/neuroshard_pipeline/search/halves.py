"""A local search that balances both halves of a step, by exchanging column shards between ranks.

All ranks meet twice in a step: in the exchange of the ids, after the backward lookups, and in the forward all-to-all,
after the forward lookups. A step therefore takes the time of the slowest rank before the exchange of the ids plus that
of the slowest rank after it (`price.halves_ms`). The search over columns compares sums of both halves. Among placements
with similar sums, this search finds one whose halves are balanced, too.

It minimises the sum of a norm of each half. The p-norm of the ranks' times is close to the largest time if p is large,
but it also falls if another of the slow ranks gets faster. The smaller p, the more ranks count; p rises during the
search. A round makes one exchange between a slow and a fast rank: of those that are tried, the best by this sum.

Shapes: N column shards, W ranks, K kernels, H numbers of a shard embedding, P exchanges, 2 halves: forward, backward.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray
from neuroshard_pipeline.search.parts import outputs_per_sample, step_parts
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import halves_ms, placement_cost_ms
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.step_work import kernel_of

#: Exponents p of the norms, one after another, and the most rounds with each of them. On 20 tasks (giant, published and
#: MLPerf tables on modelled H100, and drawn ones on a CPU), predicted costs fall by 1.9 %; with p = 64 alone, by 1.7 %.
_POWERS, _MOST_ROUNDS = (8.0, 32.0, 128.0), 200
#: Shards of so many slowest ranks of each half are exchanged with so many fastest ranks of each half.
_NUM_SOURCES, _NUM_TARGETS = 4, 8
#: Number of exchanges of a round that the compute cost model prices: the best by an estimate that adds costs of shards.
_NUM_PRICED = 128
#: A round must lower the norms by at least this share.
_LEAST_GAIN = 1e-5


def balanced_halves(problem: Problem, placement: Placement) -> Placement:
    """The cheapest of `placement` and the placements that the search reaches with each power, by predicted cost."""
    task, models = problem.task, problem.models
    parts = step_parts(task, placement.shards, placement.ranks, models, problem.known)
    movable = np.array([shard.sharding_type == "column_wise" for shard in placement.shards])
    if not parts.exchanges_ids or not movable.any():
        return placement
    search, found = _Exchanges(problem, placement, movable, halves_ms(parts, models, task.batch_size)), [placement]
    for power in _POWERS:
        for _ in range(_MOST_ROUNDS):
            if not search.make_best(power):
                break
        found.append(search.placement(search.rank))
    return min(found, key=lambda each: placement_cost_ms(problem, each))


@dataclass(frozen=True)
class _Exchange:
    """P exchanges: the shard that leaves its rank, the rank that gets it, and the shard that comes back (-1: none)."""

    shard: IntArray
    target: IntArray
    back: IntArray

    def take(self, which: IntArray | BoolArray) -> "_Exchange":
        return _Exchange(self.shard[which], self.target[which], self.back[which])


class _Exchanges:
    """The column shards of a placement, and their ranks (N,), which exchanges change."""

    def __init__(self, problem: Problem, placement: Placement, movable: BoolArray, of_ranks_ms: FloatArray) -> None:
        self._problem, self._given, self._places = problem, placement, np.flatnonzero(movable)
        shards, world_size = [placement.shards[place] for place in self._places], problem.task.world_size
        self.rank = np.array(placement.ranks, dtype=np.int64)[self._places]
        embeddings = problem.known.embeddings(shards)
        kernel = _numbered([kernel_of(shard) for shard in shards])
        # (N + 1, K, H + 1): the last number is 1, so that sums count shards; the last row stands for no shard.
        self._embedding = np.zeros((len(shards) + 1, kernel.max() + 1, embeddings.shape[1] + 1))
        self._embedding[np.arange(len(shards)), kernel, :-1] = embeddings
        self._embedding[np.arange(len(shards)), kernel, -1] = 1.0
        launch_ms = problem.models.compute.costs_from_sums(np.zeros_like(embeddings[:1]), problem.task.batch_size)
        self._added_ms = np.append(self._lookups_ms(self._embedding[:-1]) - launch_ms, np.zeros((1, 2)), axis=0)
        self._dims = np.array([*(outputs_per_sample(shard, problem.task) for shard in shards), 0.0])
        self._table = _numbered([shard.table.name for shard in shards])
        self._sums = np.zeros((world_size, *self._embedding.shape[1:]))  # (W, K, H + 1)
        np.add.at(self._sums, self.rank, self._embedding[:-1])
        self._load_ms = of_ranks_ms  # (W, 2)
        self._other_ms = of_ranks_ms - self._lookups_ms(self._sums)
        self._most_dims = self._dims_of_ranks().max()

    def make_best(self, power: float) -> bool:
        """Make the allowed exchange that lowers the norms of this power most; False if none lowers them enough."""
        found = self._candidates()
        if not len(found.shard):
            return False
        source = self.rank[found.shard]
        moved_ms = self._added_ms[found.shard] - self._added_ms[found.back]
        pair_ms = np.stack([self._load_ms[source] - moved_ms, self._load_ms[found.target] + moved_ms], axis=1)
        found = found.take(np.argsort(self._norms(found, pair_ms, power), kind="stable")[:_NUM_PRICED])
        sums, pair_ms = self._after(found)
        norms, limit = self._norms(found, pair_ms, power), _norm(self._load_ms, power) * (1.0 - _LEAST_GAIN)
        for best in np.argsort(norms, kind="stable").tolist():
            if norms[best] >= limit:
                return False
            pair = np.array([self.rank[found.shard[best]], found.target[best]])
            ranks = self.rank.copy()
            ranks[found.shard[best]] = pair[1]
            if found.back[best] >= 0:
                ranks[found.back[best]] = pair[0]
            if self._problem.allows(self.placement(ranks)):
                self.rank, self._sums[pair], self._load_ms[pair] = ranks, sums[best], pair_ms[best]
                return True
        return False

    def placement(self, ranks: IntArray) -> Placement:
        """The given placement with the column shards on `ranks` (N,)."""
        all_ranks = np.array(self._given.ranks, dtype=np.int64)
        all_ranks[self._places] = ranks
        return replace(self._given, ranks=tuple(all_ranks.tolist()))

    def _candidates(self) -> _Exchange:
        """Exchanges that give no rank a second shard of a table, or more to send than any rank had at first."""
        order = np.argsort(self._load_ms, axis=0, kind="stable")  # (W, 2)
        sources, targets = np.unique(order[-_NUM_SOURCES:]), np.unique(order[:_NUM_TARGETS])
        leaving = np.flatnonzero(np.isin(self.rank, sources))
        staying = np.concatenate([np.flatnonzero(np.isin(self.rank, targets)), -1 - np.arange(len(targets))])
        shard, other = (grid.ravel() for grid in np.meshgrid(leaving, staying, indexing="ij"))
        target = np.where(other >= 0, self.rank[np.maximum(other, 0)], targets[-1 - np.minimum(other, -1)])
        found = _Exchange(shard, target, np.maximum(other, -1))
        source, dims = self.rank[shard], self._dims_of_ranks()
        more = self._dims[shard] - self._dims[found.back]
        holds = np.zeros((self._table.max() + 1, len(dims)), dtype=bool)
        holds[self._table, self.rank] = True
        apart = ~holds[self._table[shard], target] & ((other < 0) | ~holds[self._table[found.back], source])
        within = (dims[target] + more <= self._most_dims) & (dims[source] - more <= self._most_dims)
        return found.take((source != target) & apart & within)

    def _after(self, found: _Exchange) -> tuple[FloatArray, FloatArray]:
        """Sums (P, 2, K, H + 1) and loads (P, 2, 2) of source and target after each exchange."""
        pair = np.stack([self.rank[found.shard], found.target], axis=1)
        moved = self._embedding[found.shard] - self._embedding[found.back]
        sums = self._sums[pair] + np.stack([-moved, moved], axis=1)
        return sums, self._other_ms[pair] + self._lookups_ms(sums)

    def _norms(self, found: _Exchange, pair_ms: FloatArray, power: float) -> FloatArray:
        """Sums of the norms of both halves, (P,), if source and target have the loads `pair_ms` (P, 2, 2)."""
        largest = self._load_ms.max(axis=0)
        powers = (self._load_ms / largest) ** power
        pair = np.stack([self.rank[found.shard], found.target], axis=1)
        total = powers.sum(axis=0) - powers[pair].sum(axis=1) + ((pair_ms / largest) ** power).sum(axis=1)
        return np.asarray((np.maximum(total, 0.0) ** (1.0 / power) * largest).sum(axis=1))

    def _lookups_ms(self, sums: FloatArray) -> FloatArray:
        """Forward and backward lookups (..., 2) of all kernels, from sums (..., K, H + 1)."""
        costs = self._problem.models.compute.costs_from_sums(sums[..., :-1], self._problem.task.batch_size)
        return np.asarray(np.where(sums[..., -1:] > 0, costs, 0.0).sum(axis=-2))

    def _dims_of_ranks(self) -> FloatArray:
        return np.asarray(np.bincount(self.rank, self._dims[:-1], self._problem.task.world_size), dtype=np.float64)


def _norm(load_ms: FloatArray, power: float) -> float:
    """Sum of the norms of both halves, for loads (W, 2)."""
    largest = load_ms.max(axis=0)
    return float((((load_ms / largest) ** power).sum(axis=0) ** (1.0 / power) * largest).sum())


def _numbered(values: Sequence[Hashable]) -> IntArray:
    """The number of each value among the distinct values."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([numbers[value] for value in values])
