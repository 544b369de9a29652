"""Joins samples with their measured costs, splits them for training, and places predictions beside the costs.

A sample is what one measurement runs: the lookups of one rank (compute), or a forward and a backward all-to-all
(communication).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

Sample = TypeVar("Sample", ComputeSample, CommSample)

#: Fewer samples than this are refused, because they are too few to train on.
MIN_SAMPLES = 10


@dataclass(frozen=True)
class Measured(Generic[Sample]):
    """N samples with their measured costs, and the number of samples left out because their measurement failed.

    Costs are forward and backward ms, finite and above 0: (2,) or (1, 2) for a compute sample, (W, 2) for a collective
    of W ranks, which failed if any rank failed.
    """

    samples: tuple[Sample, ...]
    costs: Sequence[FloatArray]
    left_out: int

    @property
    def sample_ids(self) -> list[str]:
        """Ids of the samples."""
        return [sample.sample_id for sample in self.samples]

    @property
    def costs_ms(self) -> FloatArray:
        """Costs of all samples in one array: (N, 2) of compute samples, (ranks of all samples, 2) of collectives."""
        return np.concatenate([np.empty((0, 2)), *(np.atleast_2d(cost) for cost in self.costs)])

    @property
    def batch_size(self) -> int:
        """The batch size of most samples."""
        return Counter(sample.batch_size for sample in self.samples).most_common(1)[0][0]

    def take(self, rows: Sequence[int] | IntArray) -> Measured[Sample]:
        """The samples with these indices, and their costs."""
        return Measured(tuple(self.samples[row] for row in rows), tuple(self.costs[row] for row in rows), self.left_out)


ComputeData = Measured[ComputeSample]
CommData = Measured[CommSample]


def join_costs(
    samples: Iterable[Sample], costs_frame: pd.DataFrame, campaign: str, wanted: Iterable[str] | None = None
) -> Measured[Sample]:
    """Join samples with their costs; samples without a complete usable measurement are left out and counted.

    Args:
        samples: all samples of one kind.
        costs_frame: `measure.compute_costs` or `measure.comm_costs`, with the rows of a collective ordered by rank.
        campaign: `compute` or `comm`, the kind of the samples.
        wanted: ids of the samples to keep; None for all.

    Raises:
        CostModelError: `costs_frame` holds a sample that is not in `samples`.
    """
    by_id = {sample.sample_id: sample for sample in samples}
    unknown = set(costs_frame["sample_id"]) - set(by_id)
    if unknown:
        raise CostModelError(
            f"measure.{campaign}_costs holds {len(unknown)} samples, such as {min(unknown)!r}, that are not in "
            f"augment.{campaign}_samples: the two versions do not belong together; measure again"
        )
    if wanted is not None:
        costs_frame = costs_frame[costs_frame["sample_id"].isin(set(wanted))]
    kept, costs = [], []
    for sample_id, rows in _usable(costs_frame).groupby("sample_id", sort=False):
        sample = by_id[str(sample_id)]
        if isinstance(sample, ComputeSample) or rows["rank"].tolist() == list(range(sample.world_size)):
            kept.append(sample)
            costs.append(rows[["forward_ms", "backward_ms"]].to_numpy(dtype=np.float64))
    return Measured(tuple(kept), tuple(costs), left_out=costs_frame["sample_id"].nunique() - len(kept))


def _usable(costs_frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that have no error and two finite costs above 0."""
    costs = costs_frame[["forward_ms", "backward_ms"]].to_numpy(dtype=np.float64)
    measured = np.isfinite(costs).all(axis=1) & (np.nan_to_num(costs) > 0).all(axis=1)
    failed = costs_frame["error"].notna() & (costs_frame["error"].astype(str) != "")
    return costs_frame[measured & ~failed.to_numpy()]


@dataclass(frozen=True)
class Split:
    """Indices of the samples of each part; every sample belongs to exactly one part."""

    training: IntArray
    validation: IntArray
    test: IntArray


def split_samples(sample_ids: Sequence[str], validation_share: float, test_share: float, seed: int) -> Split:
    """Split by a hash of each sample's id, so that few samples move to another part when samples are added.

    Raises:
        CostModelError: fewer than `MIN_SAMPLES` samples.
    """
    if len(sample_ids) < MIN_SAMPLES:
        raise CostModelError(
            f"{len(sample_ids)} usable samples are too few to train on; at least {MIN_SAMPLES} are needed: "
            "raise the number of samples in the augment parameters or look at the error column of the costs"
        )
    hashes = [hashlib.sha256(f"{seed}:{sample_id}".encode()).digest() for sample_id in sample_ids]
    order = np.array(sorted(range(len(hashes)), key=hashes.__getitem__), dtype=np.int64)
    held_out = max(1, round(test_share * len(order)))
    choosing = max(1, round(validation_share * len(order)))
    test, validation, training = np.split(order, [held_out, held_out + choosing])
    return Split(np.sort(training), np.sort(validation), np.sort(test))


def held_out_frame(keys: pd.DataFrame, models: Mapping[str, tuple[FloatArray, FloatArray, FloatArray]]) -> pd.DataFrame:
    """Predictions of several models beside the measured costs.

    Args:
        keys: `sample_id, rank`, N rows.
        models: name → measured costs (N,), predicted costs (N,) and prediction intervals (N, 2), in ms.

    Returns:
        `model, sample_id, rank, measured_ms, predicted_ms, low_ms, high_ms`.
    """
    parts = [
        keys.assign(
            model=name, measured_ms=measured, predicted_ms=predicted, low_ms=interval[:, 0], high_ms=interval[:, 1]
        )
        for name, (measured, predicted, interval) in models.items()
    ]
    order = ["model", "sample_id", "rank", "measured_ms", "predicted_ms", "low_ms", "high_ms"]
    return pd.concat(parts, ignore_index=True)[order]


def training_summary(split: Split, epochs: int, left_out: int, seconds: float) -> dict[str, Any]:
    """Numbers of samples, epochs and seconds, which training reports beside the accuracy."""
    return {
        "n_train": len(split.training),
        "n_validation": len(split.validation),
        "n_test": len(split.test),
        "n_left_out": left_out,
        "epochs": epochs,
        "seconds": round(seconds, 3),
    }
