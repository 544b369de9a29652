"""Campaigns of the refinement: new samples measured together with anchors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.evaluation.anchors import Drift, choose_anchors, measure_with_anchors, without_drift
from neuroshard_pipeline.evaluation.refinement.params import DrawnTasks
from neuroshard_pipeline.evaluation.refinement.training_set import TrainingSet, training_set
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample


@dataclass(frozen=True)
class Campaigns:
    """How new samples are measured.

    Attributes:
        first: the training set whose campaign all others are tied to.
        measure_compute: samples → `sample_id, forward_ms, backward_ms, spread_ms, repeats, error`.
        measure_comm: samples → `sample_id, rank, forward_ms, backward_ms, spread_ms, error`.
    """

    first: TrainingSet
    measure_compute: Callable[[Sequence[ComputeSample]], pd.DataFrame]
    measure_comm: Callable[[Sequence[CommSample]], pd.DataFrame]

    def compute(self, samples: Sequence[ComputeSample], count: int) -> tuple[pd.DataFrame, dict[str, Drift]]:
        """Costs of compute samples as they were measured, and the drift that `count` anchors show."""
        anchors = choose_anchors(self.first.compute(), self.first.compute_costs, count)
        return measure_with_anchors(samples, anchors, self.first.compute_costs, self.measure_compute)

    def comm(self, samples: Sequence[CommSample], count: int) -> tuple[pd.DataFrame, dict[str, Drift]]:
        """Costs of communication samples as they were measured, and the drift that `count` anchors show."""
        anchors = choose_anchors(self.first.comm(), self.first.comm_costs, count)
        return measure_with_anchors(samples, anchors, self.first.comm_costs, self.measure_comm)

    def both(self, compute: Sequence[ComputeSample], comm: Sequence[CommSample], params: DrawnTasks) -> Measured:
        """Samples of both kinds with their costs, measured with the anchors that `params` asks for."""
        compute_costs, compute_drift = self.compute(compute, params.compute_anchors)
        comm_costs, comm_drift = self.comm(comm, params.comm_anchors)
        found = training_set(self.first.table_pool, compute, compute_costs, comm, comm_costs)
        return Measured(found, compute_drift, comm_drift)


def require_measuring(backend: str) -> None:
    """Refuse a backend that can only look up what was recorded, which what a search chooses was not.

    Raises:
        MeasurementError: names the backend and those that measure.
    """
    if backend == "recorded":
        raise MeasurementError(
            f"compute backend {backend!r} measures nothing, so the shard sets that a search chooses cannot be learnt "
            "from; refine where lookups run, with measure.compute.backend and search.compute.backend fbgemm_cpu or "
            "fbgemm_cuda (environments base and cuda)"
        )


@dataclass(frozen=True)
class Measured:
    """Samples of both kinds and what they cost.

    Attributes:
        found: samples and costs, as they were measured.
        compute_drift: of the machine since the first campaign, per direction.
        comm_drift: likewise.
    """

    found: TrainingSet
    compute_drift: dict[str, Drift]
    comm_drift: dict[str, Drift]

    def as_at_first(self) -> TrainingSet:
        """Samples with the costs that the first campaign would have measured."""
        return replace(
            self.found,
            compute_costs=without_drift(self.found.compute_costs, self.compute_drift),
            comm_costs=without_drift(self.found.comm_costs, self.comm_drift),
        )

    def drift(self) -> dict[str, Any]:
        """The drift of both campaigns, for JSON."""
        parts = {"compute": self.compute_drift, "comm": self.comm_drift}
        return {part: {name: asdict(drift) for name, drift in of_part.items()} for part, of_part in parts.items()}
