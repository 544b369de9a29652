"""Samples with their measured costs, on which cost models are trained.

A compute sample is one lookup kernel of a rank; a communication sample is a pair of all-to-alls, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import pandas as pd

from neuroshard_pipeline.tables.frames import (
    comm_samples_from_frame,
    comm_samples_to_frame,
    compute_samples_from_frame,
    compute_samples_to_frame,
    compute_settings_to_frame,
)
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample


@dataclass(frozen=True)
class MeasuredSamples:
    """Samples and their costs as frames, each in the format of the dataset that is named here.

    Frames of samples that the pipeline refine measured also have `refinement.EXTRA_COLUMNS`.

    Attributes:
        table_pool: `augment.table_pool`; it contains every table of the samples.
        compute_samples: `augment.compute_samples`.
        compute_settings: `augment.compute_sample_settings`; `sharding_type` and `world_size` may be missing.
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

    @classmethod
    def of(
        cls,
        table_pool: pd.DataFrame,
        compute: tuple[Sequence[ComputeSample], pd.DataFrame],
        comm: tuple[Sequence[CommSample], pd.DataFrame],
    ) -> MeasuredSamples:
        """Build the frames from samples and their costs; all tables of the samples must be in `table_pool`."""
        return cls(
            table_pool,
            compute_samples_to_frame(compute[0]),
            compute_settings_to_frame(compute[0]),
            compute[1],
            comm_samples_to_frame(comm[0]),
            comm[1],
        )

    def compute(self) -> list[ComputeSample]:
        """The compute samples."""
        return compute_samples_from_frame(self.compute_samples, self.table_pool, self.compute_settings)

    def comm(self) -> list[CommSample]:
        """The communication samples."""
        return comm_samples_from_frame(self.comm_samples)

    @property
    def sample_ids(self) -> frozenset[str]:
        """Ids of all samples."""
        return frozenset(
            id_ for frame in (self.compute_samples, self.comm_samples) for id_ in frame.get("sample_id", ())
        )

    def frames(self) -> list[pd.DataFrame]:
        """All frames but the table pool, in the order of the attributes."""
        return [getattr(self, field.name) for field in fields(self)[1:]]

    def map_frames(self, function: Callable[[pd.DataFrame], pd.DataFrame]) -> MeasuredSamples:
        """A copy in which `function` has been applied to all frames but the table pool."""
        return MeasuredSamples(self.table_pool, *map(function, self.frames()))

    def joined(self, other: MeasuredSamples) -> MeasuredSamples:
        """The samples of `self` and `other`; the table pool of `self` must contain the tables of both."""
        return MeasuredSamples(self.table_pool, *map(_stacked, self.frames(), other.frames()))


def _stacked(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Rows of both frames. An empty frame is skipped, because its columns have no types."""
    return pd.concat([frame for frame in (first, second) if len(frame)] or [first], ignore_index=True)
