r"""A lower bound on the predicted cost of a step of every plan of a task, whatever sharding types its tables have.

The step of a plan ends with its slowest rank, which costs at least as much as the mean over the k ranks with shards.
Let U be the set of types that a plan uses. For each U, every cost is bounded from below by a constant and a number per
table and type; the bound is the smallest, over all U, of the constant plus the sum over tables of the smallest number.

- Lookups: the compute model is superadditive without launch terms (see `cost_bounds`). Let f be its cost of a set of
  shards, and f0 that of no shards. A rank with shards R of any types costs at least f0 plus the sum over R of
  f({shard}) - f0. All column splits and grids of a table are tried.
- Ids, copies, dense gradients: linear in the shards of a rank, with prices of 0 or more (`tables.step_work`). Two costs
  that every rank pays once are counted: one group of tables per type in U, and joining the outputs if U has several
  types and all tables are in one pooled module.
- All-to-alls: a rank pays work times price times a correction of at least exp(-`MAX_LOG_CORRECTION`). The mean work is
  linear in the floats that all ranks send. One of its terms is divided by k; the bound takes its lowest value over k.
- Reductions: their curves of cost against bytes lie above every line of their lower convex hull. Each line has a
  constant, which a plan with tables of its type pays, and a price per byte of each table. The best line of each U
  counts. For reductions inside hosts, only lines through the origin count, because a host may have none and pay no
  constant.

A rank costs at least as much as each of its shards alone, plus what every rank pays for the other tables. A plan that
costs C therefore has no shard that alone costs more than C. Nor has any plan a shard that exceeds the memory of every
rank. For each C, the bound on the mean over ranks is taken without such shards. The result is the smallest C that its
bound does not exceed. Otherwise memory, constraints on ranks, waiting, imbalance and reordered outputs are ignored;
each of them can only raise the cost.

The bounds hold for the task itself; its variants with copies of popular rows (tiers) or with tables in host memory are
other tasks.

`step_bound_terms` has the numbers per table and type, `bench_step_bounds` prints the bounds of tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from step_bound_terms import (
    ON_HOSTS,
    Blocks,
    Exchange,
    blocks_of,
    cheapest_split,
    exchange_of,
    launches_ms,
    least_ms_per_byte,
    prices_of,
    reduction_lines,
)

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.step_work import QUANTITIES, shard_work
from neuroshard_pipeline.tables.table import ShardingType, whole
from neuroshard_pipeline.tables.task import ShardingTask

TYPES: tuple[ShardingType, ...] = ("column_wise", "data_parallel", "row_wise", "table_row_wise", "grid_shard")
#: What a bound consists of.
PARTS = ("fixed", "lookups", "work", "exchange", "reductions")

#: Exchanges are differences of costs, so that those of replicas may differ from 0 by rounding.
_ROUNDING_MS = 1e-9

#: The search for the bound goes up in steps from a cost that one shard has alone. The first step, and the length that
#: every step exceeds, as shares of this cost.
_STEP, _PRECISION = 0.25, 0.001


@dataclass(frozen=True)
class StepBound:
    """A lower bound in ms on the cost of every plan.

    Attributes:
        step_ms: the bound.
        parts_ms: the parts of the mean over ranks, by `PARTS`; their sum is at most 0.2 % above `step_ms`.
        types: the number of tables of each type, if every table has the type with which the bound is lowest.
    """

    step_ms: float
    parts_ms: Mapping[str, float]
    types: Mapping[str, int]


@dataclass(frozen=True)
class _Choices:
    """What T tables cost with each of `TYPES` if they are cut into the cheapest blocks.

    Attributes:
        ms: (T, 5, 3) parts lookups, work and exchange of the mean over ranks; infinite if the type is impossible.
        bytes: (T, 5) as in `Blocks`.
        host_share: (T, 5) as in `Blocks`.
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
    exchange = exchange_of(task, models)
    options = [
        {TYPES.index(kind): blocks_of(table, kind, problem, exchange) for kind in usable_types(table, problem)}
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


def _fixed_point(problem: Problem, options: list[dict[int, Blocks]], exchange: Exchange, low: float) -> StepBound:
    """Raise the bound in steps from `low`.

    A step is taken if the raised bound is below the mean of every plan whose shards each cost at most the raised bound.
    """
    high, step = low, low * _STEP
    found: StepBound | None = None
    while step > low * _PRECISION:
        trial = _mean_bound(problem, options, exchange, high + step)
        if trial is not None and trial.step_ms <= high + step:
            found, step = trial, step / 2
        else:
            high += step
    assert found is not None, "the step is halved only after a trial that succeeds"
    return StepBound(high, found.parts_ms, found.types)


def _beside_others(options: list[dict[int, Blocks]]) -> list[dict[int, Blocks]]:
    """The options with costs of single shards that include the least that every rank pays for the other tables."""
    least = [min(float(of.shared_ms[cheapest_split(of.shared_ms)].sum()) for of in each.values()) for each in options]
    return [
        {kind: replace(of, alone_ms=of.alone_ms + sum(least) - own) for kind, of in each.items()}
        for own, each in zip(least, options, strict=True)
    ]


def _mean_bound(
    problem: Problem, options: list[dict[int, Blocks]], exchange: Exchange, limit_ms: float
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
    launch_ms = launches_ms(problem.models, task)
    parts = {**best.parts_ms, "fixed": best.parts_ms["fixed"] + launch_ms}
    return StepBound(best.step_ms + launch_ms, parts, best.types)


def _of_types(
    task: ShardingTask, step: StepCostModel, choices: _Choices, exchange: Exchange, used: Sequence[int]
) -> StepBound:
    """The largest bound over all lines for plans whose tables have the types `used`."""
    fixed = _fixed_ms(task, step, choices, exchange, used)
    per_byte = np.zeros(len(TYPES))
    for kind in used:
        if TYPES[kind] in ON_HOSTS:
            per_byte[kind] = least_ms_per_byte(step, task, _most_bytes(choices, kind))
    lines = [reduction_lines(step, task, TYPES[kind], _most_bytes(choices, kind)) for kind in used]
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
    task: ShardingTask, step: StepCostModel, choices: _Choices, exchange: Exchange, used: Sequence[int]
) -> float:
    """What a plan with these types pays once on every rank, without launches and reductions."""
    prices = prices_of(step, task)
    kinds = [TYPES[kind] for kind in used]
    exchanged = [kind for kind in kinds if kind != "data_parallel"]
    fixed = bool(exchanged) * prices["modules"] + len(exchanged) * prices["groups"]
    fixed += (len(exchanged) < len(kinds)) * prices["replicas"]
    if any((of_type > _ROUNDING_MS).all() for of_type in choices.ms[:, list(used), 2].T):
        fixed += exchange.constant_ms
    modules = {table.embedding_module for table in task.tables}
    if len(kinds) > 1 and len(modules) == 1 and not next(iter(modules)).is_sequence:
        returned = [shard_work(whole(table), task)[1] for table in task.tables]
        fixed += float(np.sum(returned, axis=0)[list(QUANTITIES).index("returned")]) * prices["joined"]
    return fixed


def _choices(options: list[dict[int, Blocks]], limit_ms: float) -> _Choices:
    shape = len(options), len(TYPES)
    found = _Choices(np.full((*shape, 3), np.inf), np.zeros(shape), np.ones(shape))
    for row, each in enumerate(options):
        for kind, of in each.items():
            total = np.where(of.alone_ms <= limit_ms, of.parts_ms.sum(axis=-1), np.inf)
            if np.isfinite(total[0]):
                found.ms[row, kind] = of.parts_ms[cheapest_split(total)].sum(axis=0)
                found.bytes[row, kind], found.host_share[row, kind] = of.bytes, of.host_share
    return found


def _most_bytes(choices: _Choices, kind: int) -> float:
    return float(choices.bytes[:, kind].sum())
