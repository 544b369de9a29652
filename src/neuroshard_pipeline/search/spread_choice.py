"""Chooses the tables that are spread: which ones become replicas, and which ones have their rows cut.

The choice rests on an estimate of the cost of a step in which all column-wise load is perfectly balanced:

    cost(S) = compute(E / W) + all-to-all of D / W columns on every rank + shared costs + cost of the replicas S

where E and D are the sums of embeddings and dimensions of the tables that are not in S. Tables are ordered by what they
save as columns per ms that they cost as replicas, and every prefix of this order is a candidate. The search then solves
the best candidates, so that the estimate only has to rank them.

Tables have their rows cut where columns cannot hold them: their narrowest column shard exceeds every rank.

Shapes: T tables, W ranks, H numbers of a shard embedding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.parts import outputs_per_sample, shard_embeddings
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.step_prices import step_prices
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.step_work import QUANTITIES, shard_work
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

#: Sharding types that a table may have in a problem.
Usable = Callable[[Table, Problem], tuple[ShardingType, ...]]

#: Number of prefixes whose cost is estimated in each of two passes: over all sizes, and around the best one.
_NUM_PREFIXES = 24

_BYTES_PER_MILLION_FLOATS = 4e6


@dataclass(frozen=True)
class Candidate:
    """Sharding types of spread tables, and the estimated cost of a step with them in ms, apart from cut tables."""

    types: Mapping[str, ShardingType]
    estimate_ms: float


def candidates(problem: Problem, usable: Usable) -> list[Candidate]:
    """Candidates in ascending order of estimated cost; all of them cut the rows of the same tables."""
    task, step = problem.task, problem.models.step
    if step is None:
        return [Candidate({}, 0.0)]
    types = {table.name: usable(table, problem) for table in task.tables}
    cut = cut_tables(problem, types)
    rest = [table for table in task.tables if table.name not in cut]
    if not rest:
        return [Candidate(cut, 0.0)]
    estimate = _Estimate(problem, step, rest)
    replicable = np.array(["data_parallel" in types[table.name] and task.world_size > 1 for table in rest])
    forced = replicable & np.array(["column_wise" not in types[table.name] for table in rest])
    may = np.flatnonzero(replicable & ~forced)
    ranked = np.concatenate([np.flatnonzero(forced), may[estimate.order(may)]])
    counts = estimate.counts_that_fit(ranked, int(forced.sum()))
    costs = estimate.costs_ms(ranked, counts)
    return [
        Candidate({**cut, **{rest[i].name: "data_parallel" for i in ranked[:count]}}, costs[count])
        for count in sorted(costs, key=lambda count: costs[count])
    ]


def cut_tables(problem: Problem, types: Mapping[str, tuple[ShardingType, ...]]) -> dict[str, ShardingType]:
    """The tables that cannot be column-wise and are not replicas, and the type that cuts their rows."""
    narrowest = problem.numbers((index, unit.finest[-1]) for index, unit in enumerate(problem.units))
    least_bytes = dict(zip((unit.name for unit in problem.units), problem.bytes[narrowest].tolist(), strict=True))
    found: dict[str, ShardingType] = {}
    for table in problem.task.tables:
        own = types[table.name]
        fits = "column_wise" in own and least_bytes.get(table.name, 0) <= problem.limits.max()
        if fits or ("column_wise" not in own and "data_parallel" in own):
            continue
        cut = best_cut(table, own, problem.task, problem.memory)
        if cut is not None:
            found[table.name] = cut
    return found


def best_cut(
    table: Table, types: Sequence[ShardingType], task: ShardingTask, memory: MemoryModel
) -> ShardingType | None:
    """How to cut the rows of a table: on one host if they fit there, else on hosts by column blocks, else on all ranks.

    Returns:
        None if no possible type makes the shards small enough for a rank.
    """
    most = max(memory.limits(task))
    block = -(-table.embedding_dim // task.num_hosts // COLUMN_GRANULARITY) * COLUMN_GRANULARITY
    trials: dict[ShardingType, tuple[int, int]] = {
        "table_row_wise": (task.ranks_per_host, table.embedding_dim),
        "grid_shard": (task.ranks_per_host, block),
        "row_wise": (task.world_size, table.embedding_dim),
    }
    for sharding_type, (ranks, columns) in trials.items():
        if sharding_type in types:
            first = row_shards(table, sharding_type, ranks, 0, columns)[0]
            if memory.shard_bytes(first, task) <= most:
                return sharding_type
    return None


class _Estimate:
    """Costs of column-wise tables and replicas, if all column-wise load is balanced."""

    def __init__(self, problem: Problem, step: StepCostModel, tables: Sequence[Table]) -> None:
        task, models = problem.task, problem.models
        self._models, self._step, self._task = models, step, task
        prices = step_prices(step, task)
        columns = [whole(table) for table in tables]
        self._embedding = shard_embeddings(columns, task, models)
        self._own_ms = prices.own_ms(columns)
        self._shared_ms = np.array([prices.shared_ms([shard]) for shard in columns])
        self._dims = np.array([outputs_per_sample(shard) for shard in columns])
        self._group_ms = float(prices.per_unit[list(QUANTITIES).index("groups")])
        replicas = [whole(table, "data_parallel") for table in tables]
        pooled = [table.pooling != "none" for table in tables]
        self._replica = np.zeros_like(self._embedding)
        self._replica[pooled] = (
            shard_embeddings([r for r, is_pooled in zip(replicas, pooled, strict=True) if is_pooled], task, models)
            if any(pooled)
            else 0.0
        )
        work = np.array([_replica_work(replica, task) for replica in replicas])
        self._replica_ms = work @ (prices.per_unit + step.prices_of("dense", task.world_size))
        self._gradients = work[:, list(QUANTITIES).index("gradients")] * _BYTES_PER_MILLION_FLOATS
        self._limit = int(problem.limits.min())
        self._bytes = np.array([problem.memory.shard_bytes(shard, task) for shard in columns], dtype=np.float64)
        self._replica_bytes = np.array(
            [problem.memory.shard_bytes(shard, task) for shard in replicas], dtype=np.float64
        )
        self._column_ms = self._slope_ms()

    def order(self, which: IntArray) -> IntArray:
        """Places in `which`, in descending order of what a table saves per ms that it costs as a replica."""
        if not len(which):
            return which
        world = self._task.world_size
        total = self._embedding.sum(axis=0)
        without = np.maximum(total - self._embedding[which], 0.0) / world
        saved = float(self._compute_ms(total / world)) - self._compute_ms(without)
        saved = saved + (self._own_ms + self._column_ms * self._dims)[which] / world + self._shared_ms[which]
        usual = self._replica[which].mean(axis=0) * np.sqrt(len(which))
        added = self._compute_ms(usual + self._replica[which]) - float(self._compute_ms(usual))
        added = added + self._replica_ms[which] + self._reduce_slope_ms(which) * self._gradients[which]
        return np.argsort(-saved / np.maximum(added, 1e-12), kind="stable")

    def counts_that_fit(self, ranked: IntArray, least: int) -> IntArray:
        """Lengths of prefixes of `ranked`, from `least` on, that leave room for the other tables."""
        counts = np.arange(least, len(ranked) + 1)
        replicas = np.append(0.0, np.cumsum(self._replica_bytes[ranked]))[counts]
        columns = self._bytes.sum() - np.append(0.0, np.cumsum(self._bytes[ranked]))[counts]
        fits = replicas + columns / self._task.world_size <= self._limit
        return counts[fits | (counts == least)]

    def costs_ms(self, ranked: IntArray, counts: IntArray) -> dict[int, float]:
        """Estimated costs by length of the prefix: for some of `counts`, and for those around the cheapest of them."""
        places = np.unique(np.geomspace(1, len(counts), _NUM_PREFIXES).astype(int) - 1)
        costs = {int(counts[at]): self._cost_ms(ranked[: counts[at]]) for at in places}
        best = min(costs, key=lambda count: costs[count])
        at = int(np.searchsorted(counts[places], best))
        low, high = places[max(at - 1, 0)], places[min(at + 1, len(places) - 1)]
        for place in np.unique(np.linspace(low, high, _NUM_PREFIXES).astype(int)):
            count = int(counts[place])
            costs[count] = costs.get(count) or self._cost_ms(ranked[:count])
        return costs

    def _cost_ms(self, replicas: IntArray) -> float:
        world = self._task.world_size
        rest = np.ones(len(self._dims), dtype=bool)
        rest[replicas] = False
        cost = 0.0
        if rest.any():
            cost += float(self._compute_ms(self._embedding[rest].sum(axis=0) / world))
            cost += float(self._own_ms[rest].sum()) / world + float(self._shared_ms[rest].sum()) + self._group_ms
            cost += self._exchange_ms(float(self._dims[rest].sum()) / world)
        if len(replicas):
            cost += float(self._compute_ms(self._replica[replicas].sum(axis=0)))
            cost += float(self._replica_ms[replicas].sum()) + self._reduce_ms(float(self._gradients[replicas].sum()))
        return cost

    def _compute_ms(self, sums: FloatArray) -> FloatArray:
        return np.asarray(self._models.compute.costs_from_sums(sums, self._task.batch_size).sum(axis=-1))

    def _exchange_ms(self, dims: float) -> float:
        """Forward and backward all-to-all if every rank has `dims` columns."""
        each, together = np.full(self._task.world_size, dims), np.zeros(self._task.world_size)
        comm, batch_size = self._models.comm, self._task.batch_size
        both = comm.forward_ms(each, together, batch_size) + comm.backward_ms(each, batch_size)
        return float(both.max())

    def _slope_ms(self) -> float:
        """Cost of the all-to-alls per column of every rank, near the balanced number of columns."""
        mean = max(float(self._dims.sum()) / self._task.world_size, 1.0)
        return max(self._exchange_ms(mean) - self._exchange_ms(0.8 * mean), 0.0) / (0.2 * mean)

    def _reduce_ms(self, size_bytes: float) -> float:
        task = self._task
        return float(self._step.reductions.predict_ms("all_reduce", size_bytes, task.world_size, task.ranks_per_host))

    def _reduce_slope_ms(self, which: IntArray) -> float:
        """Cost of an all_reduce per byte, between the size of the median table and four times that size."""
        size = float(np.median(self._gradients[which]))
        return max(self._reduce_ms(4 * size) - self._reduce_ms(size), 0.0) / (3 * size)


def _replica_work(replica: Shard, task: ShardingTask) -> FloatArray:
    """The work (Q,) of every rank for a table with a replica on each."""
    own, everywhere = shard_work(replica, task)
    return own + task.world_size * everywhere
