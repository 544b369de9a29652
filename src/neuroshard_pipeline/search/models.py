"""The interface of the cost models that a search uses, and the unit in which searches compare costs.

Shapes: S shards, W ranks, H numbers of a shard embedding.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: Searches compare costs in whole units of 1e-9 ms. The order of float additions differs between pricing one plan and
#: pricing many at once; without the rounding, that order would decide between plans of equal cost.
COST_UNITS_PER_MS = 1e9


def quantised(cost_ms: FloatArray) -> FloatArray:
    """Costs in whole units of 1e-9 ms, which searches compare."""
    return np.rint(cost_ms * COST_UNITS_PER_MS)


class ComputeModel(Protocol):
    """A compute cost model."""

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
    """A communication cost model."""

    def forward_ms(self, dim_sums: NDArray, start_skew_ms: NDArray, batch_size: int) -> FloatArray:
        """Forward ms (..., W), from each rank's own start until it has received everything."""
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
    """A compute and a communication cost model of the same hardware."""

    @property
    def compute(self) -> ComputeModel:
        """The compute cost model."""
        ...

    @property
    def comm(self) -> CommModel:
        """The communication cost model."""
        ...

    def caveats(self, task: ShardingTask) -> tuple[str, ...]:
        """The properties of a task that lie outside the training range of the models."""
        ...
