"""Scaling of features by statistics of the training samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.checkpoint import ArrayGroup

#: A feature that varies less than this over the training samples carries no information and is set to 0.
_CONSTANT = 1e-9


@dataclass(frozen=True)
class Normalisation(ArrayGroup):
    """Work is divided by its training mean; context is clipped to its training range and standardised.

    Outside the training range the learned correction therefore keeps its value at the edge of the range, and only the
    additive work continues to grow.

    Attributes:
        work_scale: (P,) divisor of every work term.
        low: (F,) smallest training value of every context feature.
        high: (F,) largest training value.
        mean: (F,) mean training value.
        inverse_scale: (F,) one over the standard deviation; 0 where the feature did not vary.
    """

    work_scale: FloatArray
    low: FloatArray
    high: FloatArray
    mean: FloatArray
    inverse_scale: FloatArray

    @classmethod
    def fit(cls, work: FloatArray, context: FloatArray, unscaled: Sequence[int] = ()) -> Normalisation:
        """Statistics of training rows.

        Args:
            work: (S, P).
            context: (S, F).
            unscaled: indices of work terms that keep their unit.
        """
        scale = work.mean(axis=0)
        scale[list(unscaled)] = 1.0
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
