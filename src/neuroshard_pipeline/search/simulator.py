"""Predicted embedding cost of plans, many at once.

Shapes: P plans, W ranks, H numbers of a shard embedding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Searches compare costs in whole units of 1e-9 ms, so that the order in which floats were added, which differs
#: between one plan at a time and many at once, does not decide between plans of equal cost.
COST_UNITS_PER_MS = 1e9


class ComputeModel(Protocol):
    """What a search asks of a compute cost model."""

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int, optimizer: str = ...) -> FloatArray:
        """Embeddings (S, H); the embedding of a rank is the sum over its shards."""
        ...

    def costs_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:
        """Forward and backward ms (..., 2) from summed embeddings (..., H)."""
        ...

    def interval_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:
        """Lower and upper bound (..., 2) of forward + backward ms."""
        ...


class CommModel(Protocol):
    """What a search asks of a communication cost model."""

    def forward_ms(self, dim_sums: NDArray, start_skew_ms: NDArray, batch_size: int) -> FloatArray:
        """Forward ms (..., W), from each rank's own start until it has everything."""
        ...

    def backward_ms(self, dim_sums: NDArray, batch_size: int) -> FloatArray:
        """Backward ms (..., W); all ranks start together."""
        ...

    def forward_interval_ms(self, dim_sums: NDArray, start_skew_ms: NDArray, batch_size: int) -> FloatArray:
        """Lower and upper bound (..., W, 2) of `forward_ms`."""
        ...

    def backward_interval_ms(self, dim_sums: NDArray, batch_size: int) -> FloatArray:
        """Lower and upper bound (..., W, 2) of `backward_ms`."""
        ...


class Models(Protocol):
    """A pair of cost models."""

    @property
    def compute(self) -> ComputeModel:
        """The compute cost model."""
        ...

    @property
    def comm(self) -> CommModel:
        """The communication cost model."""
        ...

    def caveats(self, task: ShardingTask) -> tuple[str, ...]:
        """What of a task lies outside what the models were trained on."""
        ...


class Caution(NamedTuple):
    """How a local search distrusts predictions; without any it minimises the predicted embedding cost.

    Attributes:
        start_skew: share of the judgement that takes the start skew of the forward collective for a mere wait.
        interval: share of the way from a prediction to the upper end of its prediction interval at which it is taken.
        error: relative error of every rank's predicted cost that the judgement expects (`expected_maximum`).
    """

    start_skew: float = 0.0
    interval: float = 0.0
    error: float = 0.0


#: Predictions are taken as they are.
TRUSTING = Caution()


def quantised(cost_ms: FloatArray) -> FloatArray:
    """Costs in whole units of 1e-9 ms, what searches compare."""
    return np.rint(cost_ms * COST_UNITS_PER_MS)


def communication_ms(
    models: Models, compute_ms: FloatArray, dim_sums: NDArray, batch_size: int
) -> tuple[FloatArray, FloatArray]:
    """Forward and backward communication cost (P, W) each [Zha2023] §3.3.

    All ranks enter the backward collective together, as each has waited for the forward one's result and for the
    dense model in between. They enter the forward collective of the next iteration when their own compute is done:
    the start skew is compute + backward communication, minus the minimum over ranks.
    """
    backward_ms = models.comm.backward_ms(dim_sums, batch_size)
    ready_ms = compute_ms + backward_ms
    start_skew_ms = ready_ms - ready_ms.min(axis=-1, keepdims=True)
    return models.comm.forward_ms(dim_sums, start_skew_ms, batch_size), backward_ms


def embedding_cost_ms(models: Models, compute_ms: FloatArray, dim_sums: NDArray, batch_size: int) -> FloatArray:
    """Embedding cost (P,) of plans with compute costs (P, W) and dimension sums (P, W)."""
    forward_ms, backward_ms = communication_ms(models, compute_ms, dim_sums, batch_size)
    return (compute_ms + forward_ms + backward_ms).max(axis=-1)


def cautious_cost_ms(
    models: Models, compute_ms: FloatArray, dim_sums: NDArray, batch_size: int, caution: Caution
) -> FloatArray:
    """What a local search compares: (P,) embedding cost, trusting predictions only so far.

    With s for `caution.start_skew`: `(1 - s) * embedding cost + s * (latest rank's compute and backward communication +
    the dearest forward communication of ranks that start together)`. A search that only follows the predicted effect of
    the start skew makes the busiest rank slower for it, and measurements show but a part of the gain that it predicts.

    Args:
        models: the cost models.
        compute_ms: (P, W) compute costs, already taken with caution (`cautious_compute_ms`).
        dim_sums: (P, W).
        batch_size: global batch.
        caution: communication costs, too, are taken so far towards the upper ends of their intervals.
    """
    forward_ms, backward_ms = communication_ms(models, compute_ms, dim_sums, batch_size)
    ready_ms = compute_ms + backward_ms
    skew_ms, no_skew_ms = ready_ms - ready_ms.min(axis=-1, keepdims=True), np.zeros_like(ready_ms)
    if caution.interval:
        late_ms = models.comm.forward_interval_ms(dim_sums, skew_ms, batch_size)[..., 1] - forward_ms
        late_ms += models.comm.backward_interval_ms(dim_sums, batch_size)[..., 1] - backward_ms
        ready_ms = ready_ms + caution.interval * late_ms
    embedding_ms = expected_maximum(ready_ms + forward_ms, caution.error)
    if not caution.start_skew:
        return embedding_ms
    together_ms = models.comm.forward_ms(dim_sums, no_skew_ms, batch_size)
    plain_ms = expected_maximum(ready_ms, caution.error) + together_ms.max(axis=-1)
    return (1.0 - caution.start_skew) * embedding_ms + caution.start_skew * plain_ms


def compute_ms_of_sums(models: Models, sums: FloatArray, dim_sums: NDArray, batch_size: int) -> FloatArray:
    """Forward and backward compute cost (P, W, 2) from summed embeddings (P, W, H); an empty rank computes 0."""
    costs = models.compute.costs_from_sums(sums, batch_size)
    return np.where((dim_sums > 0)[..., None], costs, 0.0)


def expected_maximum(rank_ms: FloatArray, relative_error: float) -> FloatArray:
    """About the largest (P,) of rank costs (P, W) that come out differently from what is predicted.

    With errors of a Gumbel distribution of scale T the expected maximum is `T log sum exp(cost / T)` and a constant,
    the same for all plans of a task. Unlike the predicted maximum it rewards cheaper ranks even when they are not the
    slowest, as any of several nearly equal ranks may turn out to be.
    """
    largest = rank_ms.max(axis=-1)
    if not relative_error:
        return largest
    scale = relative_error * largest[..., None]
    return largest + scale[..., 0] * np.log(np.exp((rank_ms - largest[..., None]) / scale).mean(axis=-1))


def cautious_compute_ms(
    models: Models, sums: FloatArray, dim_sums: NDArray, batch_size: int, caution: Caution
) -> FloatArray:
    """Compute cost (P, W) of ranks, so far towards the upper end of its interval as `caution` asks for."""
    compute_ms = compute_ms_of_sums(models, sums, dim_sums, batch_size).sum(axis=-1)
    if not caution.interval:
        return compute_ms
    upper_ms = np.where(dim_sums > 0, models.compute.interval_from_sums(sums, batch_size)[..., 1], 0.0)
    return compute_ms + caution.interval * (upper_ms - compute_ms)


def simulate(
    models: Models,
    shards: Sequence[Shard],
    ranks: Sequence[int],
    world_size: int,
    batch_size: int,
    optimizer: str = "sgd",
) -> PlanCost:
    """Predicted cost of `shards`, of which `shards[i]` is on `ranks[i]`."""
    where = np.asarray(ranks, dtype=np.int64)
    embeddings = models.compute.shard_embeddings(shards, batch_size, optimizer)
    sums = np.zeros((world_size, embeddings.shape[1]))
    np.add.at(sums, where, embeddings)
    dim_sums = np.bincount(where, weights=[shard.embedding_dim for shard in shards], minlength=world_size)
    dim_sums = dim_sums.astype(np.int64)
    compute = compute_ms_of_sums(models, sums, dim_sums, batch_size)  # (W, 2)
    forward_ms, backward_ms = communication_ms(models, compute.sum(axis=-1), dim_sums, batch_size)
    return PlanCost(
        forward_compute_ms=tuple(compute[:, 0].tolist()),
        backward_compute_ms=tuple(compute[:, 1].tolist()),
        forward_comm_ms=tuple(forward_ms.tolist()),
        backward_comm_ms=tuple(backward_ms.tolist()),
    )


def with_predicted_cost(plan: Plan, models: Models) -> Plan:
    """The same plan with its predicted cost filled in."""
    task = plan.task
    predicted = simulate(models, plan.shards, plan.ranks, task.world_size, task.batch_size, task.optimizer)
    return dataclasses.replace(plan, predicted=predicted, caveats=models.caveats(task))


def with_intervals(plan: Plan, models: Models) -> Plan:
    """The same plan, knowing how far the predicted cost of every rank may be off.

    Half widths of the three parts add in quadrature, as their models err independently of each other.
    """
    task, cost = plan.task, plan.predicted
    assert cost is not None, "intervals are laid around a prediction"
    embeddings = models.compute.shard_embeddings(plan.shards, task.batch_size, task.optimizer)
    sums = np.zeros((task.world_size, embeddings.shape[1]))
    np.add.at(sums, list(plan.ranks), embeddings)
    dim_sums, ready_ms = np.array(plan.dim_sums), np.add(cost.compute_ms, cost.backward_comm_ms)
    parts = [
        (
            cost.compute_ms,
            np.where(dim_sums[:, None] > 0, models.compute.interval_from_sums(sums, task.batch_size), 0.0),
        ),
        (cost.backward_comm_ms, models.comm.backward_interval_ms(dim_sums, task.batch_size)),
        (
            cost.forward_comm_ms,
            models.comm.forward_interval_ms(dim_sums, ready_ms - ready_ms.min(), task.batch_size),
        ),
    ]
    offsets = np.sqrt(sum((bounds - np.array(ms)[:, None]) ** 2 for ms, bounds in parts))  # (W, 2)
    bounds_ms = np.array(cost.rank_ms)[:, None] + offsets * (-1.0, 1.0)
    return dataclasses.replace(plan, interval_ms=tuple(map(tuple, bounds_ms.tolist())))
