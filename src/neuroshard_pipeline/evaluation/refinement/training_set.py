"""Samples with their measured costs, and how new ones join them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from neuroshard_pipeline.tables.frames import comm_samples_from_frame, compute_samples_from_frame
from neuroshard_pipeline.tables.sample_frames import (
    comm_samples_to_frame,
    compute_samples_to_frame,
    compute_settings_to_frame,
)
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample


@dataclass(frozen=True)
class TrainingSet:
    """What cost models are trained on, as the datasets of the same names have it.

    Attributes:
        table_pool: `augment.table_pool`.
        compute_samples: `augment.compute_samples`.
        compute_settings: `augment.compute_sample_settings`.
        compute_costs: `measure.compute_costs`.
        comm_samples: `augment.comm_samples`.
        comm_costs: `measure.comm_costs`.
    """

    table_pool: pd.DataFrame
    compute_samples: pd.DataFrame
    compute_settings: pd.DataFrame
    compute_costs: pd.DataFrame
    comm_samples: pd.DataFrame
    comm_costs: pd.DataFrame

    def compute(self) -> list[ComputeSample]:
        """The compute samples."""
        return compute_samples_from_frame(self.compute_samples, self.table_pool, self.compute_settings)

    def comm(self) -> list[CommSample]:
        """The communication samples."""
        return comm_samples_from_frame(self.comm_samples)

    def joined(self, others: TrainingSet) -> TrainingSet:
        """The set with the samples of another one, whose tables are in the same pool."""
        return TrainingSet(
            self.table_pool,
            _joined(self.compute_samples, others.compute_samples),
            _joined(self.compute_settings, others.compute_settings),
            _joined(self.compute_costs, others.compute_costs),
            _joined(self.comm_samples, others.comm_samples),
            _joined(self.comm_costs, others.comm_costs),
        )


def training_set(
    table_pool: pd.DataFrame,
    compute: Sequence[ComputeSample],
    compute_costs: pd.DataFrame,
    comm: Sequence[CommSample],
    comm_costs: pd.DataFrame,
) -> TrainingSet:
    """The set of samples whose tables are in `table_pool`, and of their costs."""
    frame, settings = compute_samples_to_frame(compute), compute_settings_to_frame(compute)
    return TrainingSet(table_pool, frame, settings, compute_costs, comm_samples_to_frame(comm), comm_costs)


def _joined(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Rows of both; an empty frame has columns without types, which would spoil those of the other."""
    return pd.concat([frame for frame in (first, second) if len(frame)], ignore_index=True)
