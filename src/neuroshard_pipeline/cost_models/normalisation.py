"""Scaling of features to what the training samples had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: A feature that varies less than this over the training samples says nothing and is switched off.
_CONSTANT = 1e-9


@dataclass(frozen=True)
class Normalisation:
    """Work is divided by its training mean; context is clipped to its training range and standardised.

    Outside the training range the learned correction therefore stays what it was at the edge, and only the
    additive work goes on growing.

    Attributes:
        work_scale: (P,) training mean of every work term.
        low: (F,) smallest training value of every context feature.
        high: (F,) largest.
        mean: (F,) mean.
        inverse_scale: (F,) one over the standard deviation, 0 where the feature never varied.
    """

    work_scale: FloatArray
    low: FloatArray
    high: FloatArray
    mean: FloatArray
    inverse_scale: FloatArray

    @classmethod
    def fit(cls, work: FloatArray, context: FloatArray) -> Normalisation:
        """Statistics of training rows: `work` (S, P) and `context` (S, F)."""
        scale = work.mean(axis=0)
        spread = context.std(axis=0)
        varies = spread > _CONSTANT
        return cls(
            work_scale=np.where(scale > 0, scale, 1.0),
            low=context.min(axis=0),
            high=context.max(axis=0),
            mean=context.mean(axis=0),
            inverse_scale=np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0),
        )

    def work(self, work: FloatArray) -> FloatArray:
        """Scaled work, any leading shape."""
        return work / self.work_scale

    def context(self, context: FloatArray) -> FloatArray:
        """Clipped and standardised context, any leading shape."""
        return (np.clip(context, self.low, self.high) - self.mean) * self.inverse_scale

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Arrays for a checkpoint, named `<prefix>work_scale` and so on."""
        return {f"{prefix}{name}": getattr(self, name) for name in NORMALISATION_FIELDS}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], prefix: str) -> Normalisation:
        """Inverse of `arrays`."""
        return cls(**{name: np.asarray(arrays[f"{prefix}{name}"], dtype=np.float64) for name in NORMALISATION_FIELDS})


NORMALISATION_FIELDS: tuple[str, ...] = ("work_scale", "low", "high", "mean", "inverse_scale")
