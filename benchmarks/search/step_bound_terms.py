"""The numbers of which a lower bound on the cost of a step consists, per table and sharding type; see `step_bounds`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from cost_bounds import without_launch_terms

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.comm import CommCostModel, ranks_per_host_of
from neuroshard_pipeline.cost_models.comm_features import COMM_DIRECTIONS, COMM_WORK_TERMS
from neuroshard_pipeline.cost_models.network import MAX_LOG_CORRECTION
from neuroshard_pipeline.cost_models.reductions import group_of
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.parts import outputs_per_sample
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.shard_cache import shard_embeddings
from neuroshard_pipeline.tables.placed import distinct_shards
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.samples import Reduction
from neuroshard_pipeline.tables.step_work import QUANTITIES, shard_work
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

#: Types whose row blocks are on the ranks of one host. Pooled tables of these types need an all-to-all only if the task
#: has several hosts.
ON_HOSTS = ("table_row_wise", "grid_shard")

_MIB, _BYTES_PER_FLOAT = 2.0**20, 4.0


@dataclass(frozen=True)
class Exchange:
    """A lower bound on the mean all-to-all cost of the k ranks with shards.

    It is constant_ms + floats * (shared_ms + per_rank_ms / k). `floats` are the 4-byte words per sample that all ranks
    together send.
    """

    constant_ms: float = 0.0
    shared_ms: float = 0.0
    per_rank_ms: float = 0.0


@dataclass(frozen=True)
class Blocks:
    """What column blocks of a table cost with one sharding type, for N widths, the narrowest first.

    Attributes:
        parts_ms: (N, 3) lookups, work and exchange of the mean over ranks.
        shared_ms: (N,) work that every rank does for the block.
        alone_ms: (N,) cost of a rank with the first shard of the block; infinite if no rank has memory for it, or, for
            replicas, if one rank has none.
        bytes: bytes that the table adds to the reduction's buffer on each rank, or on each rank of one host.
        host_share: share of all ranks that pay this reduction.
    """

    parts_ms: FloatArray
    shared_ms: FloatArray
    alone_ms: FloatArray
    bytes: float
    host_share: float


def blocks_of(table: Table, kind: ShardingType, problem: Problem, exchange: Exchange) -> Blocks:
    """The numbers of a table with one type."""
    task, is_sequence = problem.task, table.pooling == "none"
    can_split = kind in ("column_wise", "grid_shard") and not is_sequence
    widths = range(COLUMN_GRANULARITY, table.embedding_dim + 1, COLUMN_GRANULARITY)
    blocks = [_block(table, kind, width, task) for width in (widths if can_split else (table.embedding_dim,))]
    values, alone_ms = _shard_values([shard for block in blocks for shard in block], problem)
    starts = np.cumsum([0, *(len(block) for block in blocks[:-1])])
    lookups, own, everywhere, floats = np.add.reduceat(values, starts, axis=0).T  # (N,) each
    crosses = kind in ON_HOSTS and task.num_hosts > 1
    floats = floats * (kind == "column_wise" or crosses or (is_sequence and kind != "data_parallel"))
    per_rank = lookups + own + floats * exchange.per_rank_ms
    mean = np.where(per_rank >= 0, per_rank / task.world_size, per_rank)  # the least of per_rank / k for k ranks
    parts = np.stack([lookups / task.world_size, own / task.world_size + everywhere], axis=-1)
    exchanged = everywhere + floats * exchange.shared_ms + mean - parts.sum(axis=-1)
    sizes = np.array([problem.memory.shard_bytes(block[0], task) for block in blocks])
    room = problem.limits.min() if kind == "data_parallel" else problem.limits.max()
    return Blocks(
        np.concatenate([parts, exchanged[:, None]], axis=-1),
        everywhere,
        np.where(sizes <= room, alone_ms[starts] + everywhere, np.inf),
        _reduced_bytes(table, kind, task),
        task.ranks_per_host / task.world_size if kind in ON_HOSTS else 1.0,
    )


def _block(table: Table, kind: ShardingType, width: int, task: ShardingTask) -> list[Shard]:
    """The shards of the first `width` columns of a table."""
    if kind in ("column_wise", "data_parallel"):
        return [Shard(table, 0, width, sharding_type=kind)] * (task.world_size if kind == "data_parallel" else 1)
    return row_shards(table, kind, task.world_size if kind == "row_wise" else task.ranks_per_host, 0, width)


def _shard_values(shards: Sequence[Shard], problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Lookups, own work and work of all ranks in ms, and exchanged words, (S, 4); cost alone on a rank, (S,)."""
    task, models = problem.task, problem.models
    assert models.step is not None
    distinct, where = distinct_shards(shards)
    embeddings, costs = shard_embeddings(distinct, task, models), models.compute.costs_from_sums
    lookups = costs(without_launch_terms(embeddings, models), task.batch_size).sum(axis=-1) - launches_ms(models, task)
    prices = np.array(list(prices_of(models.step, task).values()))
    work = np.array([shard_work(shard, task) for shard in distinct]) @ prices  # (D, 2)
    floats = [task.comm_share * outputs_per_sample(shard, task) for shard in distinct]
    shares = [1.0 if shard.table.pooling == "none" else shard.row_share for shard in distinct]
    values = np.stack([lookups, work[:, 0], work[:, 1], np.multiply(floats, shares)], axis=-1)
    alone = costs(embeddings, task.batch_size).sum(axis=-1) + work[:, 0]
    return values[where], alone[where]


def cheapest_split(values: FloatArray) -> list[int]:
    """Indices of widths that add up to the last one at the least cost; width i + 1 costs `values[i]`."""
    least, last = np.zeros(len(values) + 1), np.zeros(len(values) + 1, dtype=np.int64)
    for total in range(1, len(values) + 1):
        sums = values[:total] + least[total - 1 :: -1][:total]
        last[total] = sums.argmin()
        least[total] = sums[last[total]]
    parts, left = [], len(values)
    while left:
        parts.append(int(last[left]))
        left -= int(last[left]) + 1
    return parts


def _reduced_bytes(table: Table, kind: ShardingType, task: ShardingTask) -> float:
    """Bytes that the table adds to the buffer of its group's reduction."""
    if kind == "data_parallel":
        return _BYTES_PER_FLOAT * table.num_embeddings * table.embedding_dim
    if kind == "column_wise" or table.pooling == "none":
        return 0.0
    return _BYTES_PER_FLOAT * task.comm_share * task.batch_size * outputs_per_sample(whole(table), task)


def launches_ms(models: Models, task: ShardingTask) -> float:
    """Cost of a lookup of nothing."""
    nothing = np.zeros(models.compute.shard_embeddings([whole(task.tables[0])], task.batch_size).shape[1])
    return float(models.compute.costs_from_sums(nothing, task.batch_size).sum())


def prices_of(step: StepCostModel, task: ShardingTask) -> dict[str, float]:
    """Ms per unit of every quantity."""
    parts = ("module", "dense") if task.pipelines_input_dist else ("module", "dense", "input_dist")
    prices = np.sum([step.prices_of(part, task.world_size) for part in parts], axis=0)
    return dict(zip(QUANTITIES, prices.tolist(), strict=True))


def exchange_of(task: ShardingTask, models: Models) -> Exchange:
    """The bounds of all-to-alls; 0 on one rank and for models other than `CommCostModel`."""
    comm, world = models.comm, task.world_size
    if not isinstance(comm, CommCostModel) or world == 1:
        return Exchange()
    unit, per_host = task.batch_size / world * _BYTES_PER_FLOAT / _MIB, ranks_per_host_of(comm.provenance)
    constant = shared = per_rank = 0.0
    for direction in COMM_DIRECTIONS:
        network = comm.networks[direction]
        scaled = np.exp(network.weights["log_price"]).mean(axis=0)[:, 0] / network.normalisation.work_scale[1:]
        price = dict(zip(list(COMM_WORK_TERMS)[1:], scaled.tolist(), strict=True))
        out, into = ("send_bytes", "receive_bytes") if direction == "forward" else ("receive_bytes", "send_bytes")
        constant += price["collective"] + (world - 1) * price["peers"]
        per_rank += unit * ((world - 1) * (price[out] + price[f"largest_{out}"]) - price[into])
        shared += unit * (price[into] + (1 - 1 / world) * price[f"largest_{into}"])
        shared += unit * (world - 1) * price["total_bytes"]
        if per_host and world > per_host and world % per_host == 0:
            far, near = world - per_host, per_host
            constant += far * price["remote_peers"]
            per_rank += unit * far * (price[f"remote_{out}"] + price["remote_port_bytes"])
            per_rank -= unit * near * price[f"remote_{into}"]
            shared += unit * price[f"remote_{into}"]
    return Exchange(*(float(np.exp(-MAX_LOG_CORRECTION)) * each for each in (constant, shared, per_rank)))


def _curve(step: StepCostModel, task: ShardingTask, kind: ShardingType, most_bytes: float) -> tuple[FloatArray, ...]:
    """Sizes up to `most_bytes`, between which the cost of a group's reductions is linear, and the costs in ms."""
    names: tuple[Reduction, ...] = ("all_reduce",) if kind == "data_parallel" else ("reduce_scatter", "all_gather")
    ranks, local = task.ranks_per_host if kind in ON_HOSTS else task.world_size, task.ranks_per_host
    if most_bytes == 0.0 or ranks == 1:
        return np.ones(1), np.zeros(1)
    known = [step.reductions.curve(name, group_of(ranks, local)).size_bytes for name in names]
    sizes = np.unique(np.append(np.concatenate(known), most_bytes))
    sizes = sizes[sizes <= most_bytes]
    return sizes, np.sum([step.reductions.predict_ms(name, sizes, ranks, local) for name in names], axis=0)


def reduction_lines(
    step: StepCostModel, task: ShardingTask, kind: ShardingType, most: float
) -> list[tuple[float, float]]:
    """Constants in ms and prices per byte of lines that nowhere exceed the cost of a group's reductions.

    They are the edges of the lower convex hull of the curve. Below the smallest size, the cost is constant. Types
    without a reduction over all ranks have only the line 0.
    """
    if kind in ("column_wise", *ON_HOSTS):
        return [(0.0, 0.0)]
    sizes, costs = _curve(step, task, kind, most)
    points = [(0.0, float(costs[0])), *zip(sizes.tolist(), costs.tolist(), strict=True)]
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1 and (y - hull[-2][1]) * (hull[-1][0] - hull[-2][0]) <= (hull[-1][1] - hull[-2][1]) * (
            x - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.pairwise(hull)]
    return [(y - slope * x, slope) for (x, y), slope in zip(hull, slopes, strict=False)]


def least_ms_per_byte(step: StepCostModel, task: ShardingTask, most: float) -> float:
    """Slope of a line through the origin that nowhere exceeds the cost of the reductions inside a host."""
    sizes, costs = _curve(step, task, "table_row_wise", most)
    return float((costs / sizes).min())
