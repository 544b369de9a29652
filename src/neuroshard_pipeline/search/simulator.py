"""Predicted embedding cost of plans, many at once.

Shapes: P plans, W ranks, H numbers of a shard embedding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

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

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int) -> FloatArray:
        """Embeddings (S, H); the embedding of a rank is the sum over its shards."""
        ...

    def costs_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:
        """Forward and backward ms (..., 2) from summed embeddings (..., H)."""
        ...


class CommModel(Protocol):
    """What a search asks of a communication cost model."""

    def forward_ms(self, dim_sums: NDArray, start_skew_ms: NDArray, batch_size: int) -> FloatArray:
        """Forward ms (..., W), from each rank's own start until it has everything."""
        ...

    def backward_ms(self, dim_sums: NDArray, batch_size: int) -> FloatArray:
        """Backward ms (..., W); all ranks start together."""
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
    models: Models, compute_ms: FloatArray, dim_sums: NDArray, batch_size: int, caution: float
) -> FloatArray:
    """What a local search compares: (P,) embedding cost, less trusting in what the start skew does to a collective.

    `(1 - caution) * embedding cost + caution * (latest rank's compute and backward communication + the dearest forward
    communication of ranks that start together)`. A search that only follows the predicted effect of the start skew
    makes the busiest rank slower for it, and measurements show but a part of the gain that it predicts.
    """
    if caution == 0.0:
        return embedding_cost_ms(models, compute_ms, dim_sums, batch_size)
    forward_ms, backward_ms = communication_ms(models, compute_ms, dim_sums, batch_size)
    ready_ms = compute_ms + backward_ms
    together_ms = models.comm.forward_ms(dim_sums, np.zeros_like(ready_ms), batch_size)
    plain_ms = ready_ms.max(axis=-1) + together_ms.max(axis=-1)
    return (1.0 - caution) * (ready_ms + forward_ms).max(axis=-1) + caution * plain_ms


def compute_ms_of_sums(models: Models, sums: FloatArray, dim_sums: NDArray, batch_size: int) -> FloatArray:
    """Forward and backward compute cost (P, W, 2) from summed embeddings (P, W, H); an empty rank computes 0."""
    costs = models.compute.costs_from_sums(sums, batch_size)
    return np.where((dim_sums > 0)[..., None], costs, 0.0)


def simulate(
    models: Models, shards: Sequence[Shard], ranks: Sequence[int], world_size: int, batch_size: int
) -> PlanCost:
    """Predicted cost of `shards`, of which `shards[i]` is on `ranks[i]`."""
    where = np.asarray(ranks, dtype=np.int64)
    embeddings = models.compute.shard_embeddings(shards, batch_size)
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
    predicted = simulate(models, plan.shards, plan.ranks, task.world_size, task.batch_size)
    return dataclasses.replace(plan, predicted=predicted, caveats=models.caveats(task))
