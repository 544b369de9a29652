"""Samples with their measured costs, on which cost models are trained.

A compute sample is one lookup kernel of a rank; a communication sample is a pair of all-to-alls, forward and backward.
"""

from dataclasses import dataclass

import pandas as pd

from neuroshard_pipeline.tables.frames import comm_samples_from_frame, compute_samples_from_frame
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample


@dataclass(frozen=True)
class MeasuredSamples:
    """Samples and their costs as frames, each in the format of the dataset that is named here.

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

    def compute(self) -> list[ComputeSample]:
        """The compute samples."""
        return compute_samples_from_frame(self.compute_samples, self.table_pool, self.compute_settings)

    def comm(self) -> list[CommSample]:
        """The communication samples."""
        return comm_samples_from_frame(self.comm_samples)
