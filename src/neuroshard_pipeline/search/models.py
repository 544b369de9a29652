"""The interface of the cost models that a search uses, and the unit in which searches compare costs.

Shapes: S shards, W ranks, H numbers that describe a shard's cost (shard embedding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.writer import ComputeDevice

#: Searches compare costs in whole units of 1e-9 ms. The order of float additions differs between pricing one plan and
#: pricing many at once; without the rounding, that order would decide between plans of equal cost.
COST_UNITS_PER_MS = 1e9


def quantised(cost_ms: FloatArray) -> FloatArray:
    """Costs in whole units of 1e-9 ms, which searches compare."""
    return np.rint(cost_ms * COST_UNITS_PER_MS)


def hardware_of(part: object) -> Mapping[str, Any]:
    """The hardware whose measured or modelled costs a model predicts (`measure.hardware`); empty if it is unknown."""
    return getattr(part, "provenance", {}).get("hardware") or {}


def device_of(part: object) -> ComputeDevice | None:
    """The kind of device whose measured or modelled costs a model predicts; None if its provenance names none."""
    device = hardware_of(part).get("device")
    known: tuple[ComputeDevice, ...] = ("cuda", "cpu")
    return next((kind for kind in known if str(device).startswith(kind)), None)


def check_hardware(models: Models, compute_device: str) -> None:
    """Refuse cost models of another kind of device. Models without provenance are accepted.

    Raises:
        CostModelError: the models predict costs of another kind of device; the message names both.
    """
    for part in (models.compute, models.comm):
        device = device_of(part)
        if device is not None and device != compute_device:
            raise CostModelError(
                f"the {type(part).__name__} predicts costs on {device!r}, but the tables are to be trained on "
                f"{compute_device!r}; load models of that hardware, or train some on it: kedro run --pipeline pretrain"
            )


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
    """A communication cost model; `dim_sums` (..., W) are the floats that each rank sends per sample."""

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
    """A compute and a communication cost model of the same hardware, and a step cost model if there is one."""

    @property
    def compute(self) -> ComputeModel:
        """The compute cost model."""
        ...

    @property
    def comm(self) -> CommModel:
        """The communication cost model."""
        ...

    @property
    def step(self) -> StepCostModel | None:
        """The step cost model, fitted to measured or modelled steps; None if these models contain none."""
        ...

    def caveats(self, task: ShardingTask) -> tuple[str, ...]:
        """Sentences about the predicted costs: what was modelled, extrapolated, approximated or left out."""
        ...


class ModelsWith:
    """Models with another compute cost model."""

    def __init__(self, compute: ComputeModel, models: Models) -> None:
        self.compute, self.comm, self.step, self.caveats = compute, models.comm, models.step, models.caveats
