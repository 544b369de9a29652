"""A lower bound on the predicted embedding cost of every column-wise plan of a task, however its tables are split.

Let f(R) be the predicted compute cost of a rank with shards R, and f0 the cost of a launch without work. The bound
exists if f has one of two shapes.

- `superadditive`: f(R + Q) - f0 >= (f(R) - f0) + (f(Q) - f0). The trained network has this shape, except for its
  launch terms: one part of the cost is additive, and the rest is multiplied by gates (`cost_models.compute`), whose
  values for R + Q are at least those for R or Q. A rank pays a launch term once, however many of its shards cause it,
  which breaks this shape. The launch terms, but not f0, are therefore left out of f; this can only lower the bound. Of
  k ranks with shards, one costs at least f0 + T / k, where T is the sum of f({shard}) - f0 over all shards. Every table
  adds to T at least the smallest sum that any of its splits has.
- `convex`: f is convex and non-decreasing in the summed embedding, a vector per shard that the model sums over a rank.
  The busiest of k ranks then costs at least f(L / k). A component of L is the smallest value that the sum of this
  component over all shards has under any splits of the tables.

In both cases, some rank holds the widest shard of a table and costs at least as much as that shard alone.

The bound on communication holds for the trained network only: the work of a collective times its price, averaged over
the k ranks with shards, is least for evenly spread columns, and no learned correction is smaller than
exp(-`MAX_LOG_CORRECTION`). Memory, constraints on ranks, waiting and traffic between hosts are ignored, because each of
them can only raise the cost.

A unit is a table, or tables that a constraint keeps on one rank. Shapes: N widths of a unit, H numbers of a shard
embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.cost_models.comm_features import (
    COMM_DIRECTIONS,
    COMM_WORK_TERMS,
    REMOTE_TERMS,
    comm_features,
)
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.network import MAX_LOG_CORRECTION
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.units import Unit
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY

#: Terms that depend on the rank's own volume, regardless of hosts.
OWN_VOLUME_TERMS: tuple[str, ...] = ("send_bytes", "receive_bytes")

Shape = Literal["superadditive", "convex"]


@dataclass(frozen=True)
class CostBound:
    """Lower bounds in ms that hold for every column-wise plan of a task.

    Attributes:
        compute_ms: bound on the compute cost of the busiest rank.
        embedding_cost_ms: bound on the embedding cost; equal to `compute_ms` if communication has no bound.
    """

    compute_ms: float
    embedding_cost_ms: float


def shape_of(models: Models) -> Shape | None:
    """The proved shape of the compute model, or None."""
    if isinstance(models.compute, ComputeCostModel):
        return "superadditive"
    return None


def cost_bound(
    problem: Problem, shape: Shape | None = None, comm_floor: Callable[[int], float] | None = None
) -> CostBound | None:
    """Lower bounds on the cost of every column-wise plan for the task of `problem`.

    Args:
        problem: the task and the models.
        shape: shape of the compute model, if the caller knows it; if None, `shape_of` decides.
        comm_floor: maps a number of ranks that hold shards to a lower bound in ms on their mean forward plus backward
            communication; if None, `comm_floor_ms` gives this bound.

    Returns:
        None if the compute model has neither shape.
    """
    shape = shape or shape_of(problem.models)
    if shape is None:
        return None
    problem.numbers(
        (index, width) for index, unit in enumerate(problem.units) for width in _widths_of(unit)
    )  # one call, because every call copies arrays
    most_ranks = min(problem.task.world_size, sum(len(unit.finest) for unit in problem.units))
    mean_ms = _superadditive_mean_ms(problem) if shape == "superadditive" else _convex_mean_ms(problem)
    floor = comm_floor or (lambda count: comm_floor_ms(problem, count))
    by_count = [(mean_ms(count), floor(count)) for count in range(1, most_ranks + 1)]
    widest = _widest_shard_ms(problem)
    compute_ms = max(widest, min(compute for compute, _ in by_count))
    alone = widest + comm_floor_ms(problem, problem.task.world_size, without=OWN_VOLUME_TERMS)
    return CostBound(compute_ms, max(alone, min(compute + comm for compute, comm in by_count)))


def comm_floor_ms(problem: Problem, num_ranks: int, without: tuple[str, ...] = ()) -> float:
    """Lower bound on the mean forward plus backward communication of the `num_ranks` ranks that hold shards.

    Args:
        problem: the task and the models.
        num_ranks: number of ranks that share the columns.
        without: work terms to leave out; without a rank's own volume, the result bounds the cost of every rank.
    """
    comm = problem.models.comm
    world_size = problem.task.world_size
    if not isinstance(comm, CommCostModel):
        return 0.0
    dims = np.zeros(world_size)
    dims[:num_ranks] = sum(unit.width for unit in problem.units) / num_ranks
    ignored = {"wait", *REMOTE_TERMS, *without}
    counted = np.array([name not in ignored for name in COMM_WORK_TERMS], dtype=float)[1:]
    total = 0.0
    for direction in COMM_DIRECTIONS:
        network = comm.networks[direction]
        work, _ = comm_features(dims, np.zeros(world_size), problem.task.batch_size, direction)
        transfer = network.normalisation.work(work)[:num_ranks, 1:].mean(axis=0) * counted
        total += float((transfer @ np.exp(network.weights["log_price"])).mean())
    return total * float(np.exp(-MAX_LOG_CORRECTION))


def _superadditive_mean_ms(problem: Problem) -> Callable[[int], float]:
    launch = _launch_ms(problem)
    total = 0.0
    for unit in _all(problem):
        embedding = without_launch_terms(problem.embedding[_widths(unit, problem)], problem.models)
        alone = problem.models.compute.costs_from_sums(embedding, problem.task.batch_size).sum(axis=-1)
        total += float(_least_sum(alone[:, None] - launch, problem.units[unit])[0])
    return lambda num_ranks: launch + total / num_ranks


def without_launch_terms(embedding: FloatArray, models: Models) -> FloatArray:
    """Embeddings (N, H) whose shards have no work of any launch term."""
    if not isinstance(models.compute, ComputeCostModel):
        return embedding
    members, terms, _ = models.compute.network.weights["once.log_cost"].shape
    stripped = embedding.copy()
    stripped[:, :-1].reshape(len(embedding), members, -1)[..., -terms:] = 0.0  # the last number belongs to no member
    return stripped


def _convex_mean_ms(problem: Problem) -> Callable[[int], float]:
    least = np.sum(
        [_least_sum(problem.embedding[_widths(unit, problem)], problem.units[unit]) for unit in _all(problem)], axis=0
    )
    batch_size = problem.task.batch_size
    return lambda num_ranks: float(problem.models.compute.costs_from_sums(least / num_ranks, batch_size).sum())


def _launch_ms(problem: Problem) -> float:
    nothing = np.zeros(problem.embedding.shape[1])
    return float(problem.models.compute.costs_from_sums(nothing, problem.task.batch_size).sum())


def _widest_shard_ms(problem: Problem) -> float:
    """The largest of bounds, one per unit, on the cost of the rank with the unit's widest shard (see `Unit.finest`)."""
    costs = []
    for index, unit in enumerate(problem.units):
        alone = _alone_ms(index, problem)
        costs.append(float(alone[[width >= unit.finest[0] for width in _widths_of(unit)]].min()))
    return max(costs)


def _alone_ms(unit: int, problem: Problem) -> FloatArray:
    """(N,) compute cost of a shard of every width, alone on a rank."""
    widths = _widths(unit, problem)
    return problem.models.compute.costs_from_sums(problem.embedding[widths], problem.task.batch_size).sum(axis=-1)


def _widths(unit: int, problem: Problem) -> np.ndarray:
    return problem.numbers((unit, width) for width in _widths_of(problem.units[unit]))


def _widths_of(unit: Unit) -> list[int]:
    """Possible widths of a shard of the unit, ascending."""
    if len(unit.finest) == 1:
        return [unit.width]
    return list(range(unit.min_width, unit.width + 1, COLUMN_GRANULARITY))


def _least_sum(values: FloatArray, unit: Unit) -> FloatArray:
    """For each component of an embedding, its smallest sum over the parts of a unit under any split, (H,).

    Args:
        values: (N, H) for a part of every width in `_widths_of(unit)`.
        unit: the unit; the widths of its parts add up to its width.
    """
    steps = [width // COLUMN_GRANULARITY for width in _widths_of(unit)]
    least = np.full((unit.width // COLUMN_GRANULARITY + 1, values.shape[1]), np.inf)
    least[0] = 0.0
    for total in range(1, len(least)):
        usable = [index for index, step in enumerate(steps) if step <= total]
        if usable:
            rest = least[[total - steps[index] for index in usable]]
            least[total] = (values[usable] + rest).min(axis=0)
    return least[-1]


def _all(problem: Problem) -> range:
    return range(len(problem.units))
