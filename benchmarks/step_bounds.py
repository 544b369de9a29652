r"""A lower bound on the predicted cost of a step of every plan of a task, whatever sharding types its tables have.

The step of a plan ends with its slowest rank, which costs at least as much as the mean over the k ranks with shards.
Let U be the set of types that a plan uses. For each U, every cost is bounded from below by a constant and a number per
table and type; the bound is the smallest, over all U, of the constant plus the sum over tables of the smallest number.

- Lookups: the compute model is superadditive without launch terms (see `cost_bounds`). A rank with shards R of any
  types costs at least f0 plus the sum over R of f({shard}) - f0. All column splits and grids of a table are tried.
- Ids, copies, dense gradients: linear in the shards of a rank, with prices of 0 or more (`tables.step_work`). Two costs
  that every rank pays once are counted: one group of tables per type in U, and joining the outputs if all tables are in
  one pooled module.
- All-to-alls: a rank pays work times price times a correction of at least exp(-`MAX_LOG_CORRECTION`). The mean work is
  linear in the floats that all ranks send. One part is divided by k, and its least value over k counts.
- Reductions: their curves of cost against bytes lie above every line of their lower convex hull. Each line has a
  constant, which a plan with this type pays, and a price per byte of each table. The best line of each U counts. For
  reductions inside hosts, only lines through the origin count, because a host may have none and pay no constant.

A rank costs at least as much as each of its shards alone, plus what every rank pays for the other tables. A plan that
costs C therefore has no shard that alone costs more than C. The result is the smallest C that the bound on the mean
over ranks does not exceed if shards that alone cost more than C, and shards that exceed the memory of every rank, are
left out. Otherwise memory, constraints on ranks, waiting, imbalance and reordered outputs are ignored; each of them can
only raise the cost.

The bounds hold for the task itself; its variants with copies of popular rows (tiers) or with tables in host memory are
other tasks.

    OMP_NUM_THREADS=1 python benchmarks/step_bounds.py --world-sizes 8 16 --tasks 2
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cost_bounds import without_launch_terms
from whole_cost_tasks import SUITES, suite_tasks

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.comm import CommCostModel, ranks_per_host_of
from neuroshard_pipeline.cost_models.comm_features import COMM_DIRECTIONS, COMM_WORK_TERMS
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.cost_models.network import MAX_LOG_CORRECTION
from neuroshard_pipeline.cost_models.reductions import group_of
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.parts import outputs_per_sample, shard_embeddings
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.placed import distinct_shards
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.samples import Reduction
from neuroshard_pipeline.tables.step_work import QUANTITIES, shard_work
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

TYPES: tuple[ShardingType, ...] = ("column_wise", "data_parallel", "row_wise", "table_row_wise", "grid_shard")
#: Types whose row blocks are on the ranks of one host. Pooled tables need an all-to-all only if there are more hosts.
_ON_HOSTS = ("table_row_wise", "grid_shard")
#: What a bound consists of.
PARTS = ("fixed", "lookups", "work", "exchange", "reductions")

_MIB, _BYTES_PER_FLOAT = 2.0**20, 4.0

#: The bound is sought in steps of this share of the cost of one shard, which are halved down to the precision.
_STEP, _PRECISION = 0.25, 0.001


@dataclass(frozen=True)
class StepBound:
    """A lower bound in ms on the cost of every plan.

    Attributes:
        step_ms: the bound.
        parts_ms: the parts of the mean over ranks, by `PARTS`; their sum is `step_ms` or less.
        types: the number of tables of each type where the bound is lowest.
    """

    step_ms: float
    parts_ms: Mapping[str, float]
    types: Mapping[str, int]


@dataclass(frozen=True)
class _Exchange:
    """Lower bounds on the mean all-to-all cost of k ranks: constant_ms + floats * (shared_ms + per_rank_ms / k).

    `floats` are the 4-byte words per sample that all ranks together send.
    """

    constant_ms: float = 0.0
    shared_ms: float = 0.0
    per_rank_ms: float = 0.0


@dataclass(frozen=True)
class _Blocks:
    """What column blocks of a table cost with one sharding type, for N widths, the narrowest first.

    Attributes:
        parts_ms: (N, 3) lookups, work and exchange of the mean over ranks.
        shared_ms: (N,) work that every rank does for the block.
        alone_ms: (N,) cost of a rank with the first shard of the block; infinite where no rank has memory for it.
        bytes: bytes of the reduction that the table adds to the buffer of each rank, or of each rank of its host.
        host_share: share of all ranks that pay this reduction.
    """

    parts_ms: FloatArray
    shared_ms: FloatArray
    alone_ms: FloatArray
    bytes: float
    host_share: float


@dataclass(frozen=True)
class _Choices:
    """What T tables cost with each of `TYPES` if they are cut into the cheapest blocks.

    Attributes:
        ms: (T, 5, 3) parts lookups, work and exchange of the mean over ranks; infinite where a type is impossible.
        bytes: (T, 5) as in `_Blocks`.
        host_share: (T, 5) as in `_Blocks`.
    """

    ms: FloatArray
    bytes: FloatArray
    host_share: FloatArray


def step_bound(problem: Problem) -> StepBound | None:
    """The bound for the task of `problem`, or None if none is proved for its models or for options of the task."""
    task, models = problem.task, problem.models
    plain = all(table.tier is None and not table.is_in_host_memory for table in task.tables)
    if not isinstance(models.compute, ComputeCostModel) or models.step is None or not plain:
        return None
    if task.num_replica_groups > 1 or task.tiers:
        return None
    exchange = _exchange_of(task, models)
    options = [
        {TYPES.index(kind): _blocks(table, kind, problem, exchange) for kind in usable_types(table, problem)}
        for table in task.tables
    ]
    options = _beside_others(options)
    low = max(min(float(blocks.alone_ms.min()) for blocks in of.values()) for of in options)
    found = _mean_bound(problem, options, exchange, low)
    if found is not None and found.step_ms <= low:
        free = _mean_bound(problem, options, exchange, np.inf)
        assert free is not None, "without a limit, every table has a type"
        return StepBound(low, free.parts_ms, free.types)
    return _fixed_point(problem, options, exchange, low)


def _fixed_point(problem: Problem, options: list[dict[int, _Blocks]], exchange: _Exchange, low: float) -> StepBound:
    """The bound, found in steps upwards from `low`: plans that cost less have too costly shards or too high a mean."""
    high, step = low, low * _STEP
    found: StepBound | None = None
    while step > low * _PRECISION:
        trial = _mean_bound(problem, options, exchange, high + step)
        if trial is not None and trial.step_ms <= high + step:
            found, step = trial, step / 2
        else:
            high += step
    assert found is not None, "the last trial that succeeded was at most two steps above"
    return StepBound(high, found.parts_ms, found.types)


def _beside_others(options: list[dict[int, _Blocks]]) -> list[dict[int, _Blocks]]:
    """The options with costs of single shards that include the least that every rank pays for the other tables."""
    least = [min(float(of.shared_ms[_cheapest_split(of.shared_ms)].sum()) for of in each.values()) for each in options]
    return [
        {kind: replace(of, alone_ms=of.alone_ms + sum(least) - own) for kind, of in each.items()}
        for own, each in zip(least, options, strict=True)
    ]


def _mean_bound(
    problem: Problem, options: list[dict[int, _Blocks]], exchange: _Exchange, limit_ms: float
) -> StepBound | None:
    """A bound on the mean over ranks for plans without shards that alone cost more than the limit.

    None if there are no such plans.
    """
    task, step = problem.task, problem.models.step
    assert step is not None
    choices = _choices(options, limit_ms)
    is_possible = np.isfinite(choices.ms[..., 0])
    found = [
        _of_types(task, step, choices, exchange, used)
        for count in range(1, len(TYPES) + 1)
        for used in itertools.combinations(range(len(TYPES)), count)
        if is_possible[:, list(used)].any(axis=0).all() and is_possible[:, list(used)].any(axis=1).all()
    ]
    if not found:
        return None
    best = min(found, key=lambda bound: bound.step_ms)
    launch_ms = _launch_ms(problem.models, task)
    parts = {**best.parts_ms, "fixed": best.parts_ms["fixed"] + launch_ms}
    return StepBound(best.step_ms + launch_ms, parts, best.types)


def _of_types(
    task: ShardingTask, step: StepCostModel, choices: _Choices, exchange: _Exchange, used: Sequence[int]
) -> StepBound:
    """The largest bound over all lines for plans whose tables have the types `used`."""
    fixed = _fixed_ms(task, step, choices, exchange, used)
    per_byte = np.zeros(len(TYPES))
    for kind in used:
        if TYPES[kind] in _ON_HOSTS:
            per_byte[kind] = _least_ms_per_byte(step, task, _most_bytes(choices, kind))
    lines = [_lines(step, task, TYPES[kind], _most_bytes(choices, kind)) for kind in used]
    base, bounds = choices.ms.sum(axis=-1), []
    for chosen in itertools.product(*lines):
        slopes = per_byte.copy()
        slopes[list(used)] += [slope for _, slope in chosen]
        reduced = choices.bytes * slopes * choices.host_share
        costs = (base + reduced)[:, list(used)]
        place = np.array(used)[costs.argmin(axis=1)]
        rows = np.arange(len(costs))
        parts = dict(zip(PARTS[1:4], choices.ms[rows, place].sum(axis=0).tolist(), strict=True))
        parts |= {"fixed": fixed, "reductions": float(reduced[rows, place].sum()) + sum(cost for cost, _ in chosen)}
        types = {TYPES[kind]: int((place == kind).sum()) for kind in used}
        bounds.append(StepBound(sum(parts.values()), parts, types))
    return max(bounds, key=lambda bound: bound.step_ms)


def _fixed_ms(
    task: ShardingTask, step: StepCostModel, choices: _Choices, exchange: _Exchange, used: Sequence[int]
) -> float:
    """What a plan with these types pays once on every rank, without launches and reductions."""
    prices = _prices(step, task)
    kinds = [TYPES[kind] for kind in used]
    exchanged = [kind for kind in kinds if kind != "data_parallel"]
    fixed = len(exchanged) * prices["groups"] + (len(exchanged) < len(kinds)) * prices["replicas"]
    if any((np.isinf(of_type) | (of_type > 0)).all() for of_type in choices.ms[:, list(used), 2].T):
        fixed += exchange.constant_ms
    modules = {table.embedding_module for table in task.tables}
    if len(kinds) > 1 and len(modules) == 1 and not next(iter(modules)).is_sequence:
        returned = [shard_work(whole(table), task)[1] for table in task.tables]
        fixed += float(np.sum(returned, axis=0)[list(QUANTITIES).index("returned")]) * prices["joined"]
    return fixed


def _choices(options: list[dict[int, _Blocks]], limit_ms: float) -> _Choices:
    shape = len(options), len(TYPES)
    found = _Choices(np.full((*shape, 3), np.inf), np.zeros(shape), np.ones(shape))
    for row, each in enumerate(options):
        for kind, of in each.items():
            total = np.where(of.alone_ms <= limit_ms, of.parts_ms.sum(axis=-1), np.inf)
            if np.isfinite(total[0]):
                found.ms[row, kind] = of.parts_ms[_cheapest_split(total)].sum(axis=0)
                found.bytes[row, kind], found.host_share[row, kind] = of.bytes, of.host_share
    return found


def _blocks(table: Table, kind: ShardingType, problem: Problem, exchange: _Exchange) -> _Blocks:
    task, is_sequence = problem.task, table.pooling == "none"
    can_split = kind in ("column_wise", "grid_shard") and not is_sequence
    widths = range(COLUMN_GRANULARITY, table.embedding_dim + 1, COLUMN_GRANULARITY)
    blocks = [_block(table, kind, width, task) for width in (widths if can_split else (table.embedding_dim,))]
    values, alone_ms = _shard_values([shard for block in blocks for shard in block], problem)
    starts = np.cumsum([0, *(len(block) for block in blocks[:-1])])
    lookups, own, everywhere, floats = np.add.reduceat(values, starts, axis=0).T  # (N,) each
    crosses = kind in _ON_HOSTS and task.num_hosts > 1
    floats = floats * (kind == "column_wise" or crosses or (is_sequence and kind != "data_parallel"))
    per_rank = lookups + own + floats * exchange.per_rank_ms
    mean = np.where(per_rank >= 0, per_rank / task.world_size, per_rank)  # the least of per_rank / k for k ranks
    parts = np.stack([lookups / task.world_size, own / task.world_size + everywhere], axis=-1)
    exchanged = everywhere + floats * exchange.shared_ms + mean - parts.sum(axis=-1)
    sizes = np.array([problem.memory.shard_bytes(block[0], task) for block in blocks])
    room = problem.limits.min() if kind == "data_parallel" else problem.limits.max()
    return _Blocks(
        np.concatenate([parts, exchanged[:, None]], axis=-1),
        everywhere,
        np.where(sizes <= room, alone_ms[starts] + everywhere, np.inf),
        _reduced_bytes(table, kind, task),
        task.ranks_per_host / task.world_size if kind in _ON_HOSTS else 1.0,
    )


def _block(table: Table, kind: ShardingType, width: int, task: ShardingTask) -> list[Shard]:
    """The shards of the first columns of a table."""
    if kind in ("column_wise", "data_parallel"):
        return [Shard(table, 0, width, sharding_type=kind)] * (task.world_size if kind == "data_parallel" else 1)
    return row_shards(table, kind, task.world_size if kind == "row_wise" else task.ranks_per_host, 0, width)


def _shard_values(shards: Sequence[Shard], problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Lookups, own work and work of all ranks in ms, and exchanged words, (S, 4); cost alone on a rank, (S,)."""
    task, models = problem.task, problem.models
    assert models.step is not None
    distinct, where = distinct_shards(shards)
    embeddings, costs = shard_embeddings(distinct, task, models), models.compute.costs_from_sums
    lookups = costs(without_launch_terms(embeddings, models), task.batch_size).sum(axis=-1) - _launch_ms(models, task)
    prices = np.array(list(_prices(models.step, task).values()))
    work = np.array([shard_work(shard, task) for shard in distinct]) @ prices  # (D, 2)
    floats = [task.comm_share * outputs_per_sample(shard, task) for shard in distinct]
    shares = [1.0 if shard.table.pooling == "none" else shard.row_share for shard in distinct]
    values = np.stack([lookups, work[:, 0], work[:, 1], np.multiply(floats, shares)], axis=-1)
    alone = costs(embeddings, task.batch_size).sum(axis=-1) + work[:, 0]
    return values[where], alone[where]


def _cheapest_split(values: FloatArray) -> list[int]:
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


def _most_bytes(choices: _Choices, kind: int) -> float:
    return float(choices.bytes[:, kind].sum())


def _curve(step: StepCostModel, task: ShardingTask, kind: ShardingType, most_bytes: float) -> tuple[FloatArray, ...]:
    """Sizes up to `most_bytes`, between which the cost of a group's reductions is linear, and the costs in ms."""
    names: tuple[Reduction, ...] = ("all_reduce",) if kind == "data_parallel" else ("reduce_scatter", "all_gather")
    ranks, local = task.ranks_per_host if kind in _ON_HOSTS else task.world_size, task.ranks_per_host
    if most_bytes == 0.0 or ranks == 1:
        return np.ones(1), np.zeros(1)
    known = [step.reductions.curve(name, group_of(ranks, local)).size_bytes for name in names]
    sizes = np.unique(np.append(np.concatenate(known), most_bytes))
    sizes = sizes[sizes <= most_bytes]
    return sizes, np.sum([step.reductions.predict_ms(name, sizes, ranks, local) for name in names], axis=0)


def _lines(step: StepCostModel, task: ShardingTask, kind: ShardingType, most: float) -> list[tuple[float, float]]:
    """Constants in ms and prices per byte of lines that nowhere exceed the cost of a group's reductions.

    They are the edges of the lower convex hull of the curve. Below the smallest size, the cost is constant.
    """
    if kind in ("column_wise", *_ON_HOSTS):
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


def _least_ms_per_byte(step: StepCostModel, task: ShardingTask, most: float) -> float:
    """Slope of a line through the origin that nowhere exceeds the cost of the reductions inside a host."""
    sizes, costs = _curve(step, task, "table_row_wise", most)
    return float((costs / sizes).min())


def _launch_ms(models: Models, task: ShardingTask) -> float:
    nothing = np.zeros(models.compute.shard_embeddings([whole(task.tables[0])], task.batch_size).shape[1])
    return float(models.compute.costs_from_sums(nothing, task.batch_size).sum())


def _prices(step: StepCostModel, task: ShardingTask) -> dict[str, float]:
    """Ms per unit of every quantity."""
    parts = ("module", "dense") if task.pipelines_input_dist else ("module", "dense", "input_dist")
    prices = np.sum([step.prices_of(part, task.world_size) for part in parts], axis=0)
    return dict(zip(QUANTITIES, prices.tolist(), strict=True))


def _exchange_of(task: ShardingTask, models: Models) -> _Exchange:
    """The bounds of all-to-alls; 0 on one rank and for models other than `CommCostModel`."""
    comm, world = models.comm, task.world_size
    if not isinstance(comm, CommCostModel) or world == 1:
        return _Exchange()
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
    return _Exchange(*(float(np.exp(-MAX_LOG_CORRECTION)) * each for each in (constant, shared, per_rank)))


def report(tasks: Iterable[ShardingTask], models: Models) -> None:
    """Print the bound and the plan of every task, and the mean gap."""
    print("task                 bound ms   plan ms     gap | the bound's parts | the plan's means over ranks")
    gaps = []
    for task in tasks:
        plan = shard(task, models)
        bound = step_bound(Problem(plan.task, models, plan.memory))
        cost = plan.predicted
        assert cost is not None
        if bound is None:
            print(f"{task.task_id:20s} no bound is proved")
            continue
        gaps.append(cost.embedding_cost_ms / bound.step_ms - 1)
        means = {"compute": cost.compute_ms, "input dist": cost.input_dist_ms, "module": cost.module_ms}
        means |= {"reduction": cost.reduction_ms, "forward": cost.forward_comm_ms, "backward": cost.backward_comm_ms}
        of_bound = "  ".join(f"{name} {bound.parts_ms[name]:.3f}" for name in PARTS)
        of_plan = "  ".join(f"{name} {np.mean(of):.3f}" for name, of in means.items() if of)
        print(
            f"{task.task_id:20s} {bound.step_ms:8.3f} {cost.embedding_cost_ms:9.3f} {gaps[-1]:7.1%} | {of_bound} | "
            f"{of_plan}  mean {np.mean(cost.rank_ms):.3f} | {dict(bound.types)}",
            flush=True,
        )
        assert gaps[-1] > -1e-9, "a plan is cheaper than the lower bound of its task"
    print(f"mean gap of {len(gaps)} tasks: {np.mean(gaps):.1%}")


def main() -> None:
    """Print the bounds of tasks of the suites."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="*", choices=list(SUITES), default=list(SUITES))
    parser.add_argument("--world-sizes", nargs="*", type=int, default=[8, 16])
    parser.add_argument("--tasks", type=int, default=2, help="tasks per suite and number of ranks")
    parser.add_argument("--device", default="h100", help="GPU whose shipped models are used")
    parser.add_argument("--models", type=Path, help="folder of trained cost models, in place of shipped ones")
    arguments = parser.parse_args()
    models: Models = load_cost_models(arguments.models or arguments.device)
    each = itertools.product(arguments.world_sizes, arguments.suites)
    report(itertools.chain(*(suite_tasks(suite, ranks, arguments.tasks) for ranks, suite in each)), models)


if __name__ == "__main__":
    main()
