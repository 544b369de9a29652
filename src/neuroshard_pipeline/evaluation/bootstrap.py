"""Paired bootstrap: how sure a mean over tasks is, when other tasks might as well have been drawn.

Shapes: N tasks, R resamples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Resamples drawn at a time, which bounds memory.
_AT_ONCE = 2**22


@dataclass(frozen=True)
class Interval:
    """An estimate and where it would lie had other tasks been drawn.

    Attributes:
        value: from all tasks.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals from resampled tasks; deterministic.

    Attributes:
        confidence: of the intervals.
        resamples: R.
        seed: decides every draw.
    """

    confidence: float
    resamples: int
    seed: int

    def ratio_of_means(self, ours: FloatArray, theirs: FloatArray) -> Interval:
        """mean(ours) / mean(theirs) of costs (N,) on the same tasks: a task is drawn for both or for neither."""
        drawn_ours, drawn_theirs = self._means(np.stack([ours, theirs]))
        return self._interval(float(ours.mean() / theirs.mean()), drawn_ours / drawn_theirs)

    def mean(self, values: FloatArray) -> Interval:
        """The mean of values (N,)."""
        return self._interval(float(values.mean()), self._means(values[None])[0])

    def _means(self, values: FloatArray) -> FloatArray:
        """Means of (K, N) over R draws of tasks with replacement, (K, R)."""
        count = values.shape[1]
        rng = np.random.default_rng(self.seed)
        step = max(1, _AT_ONCE // count)
        parts = []
        for start in range(0, self.resamples, step):
            draws = min(step, self.resamples - start)
            weights = rng.multinomial(count, np.full(count, 1.0 / count), size=draws) / count  # (R, N)
            parts.append(values @ weights.T)
        return np.concatenate(parts, axis=1)

    def _interval(self, value: float, drawn: FloatArray) -> Interval:
        tail = (1.0 - self.confidence) / 2.0
        low, high = np.quantile(drawn, [tail, 1.0 - tail]).tolist()
        return Interval(value, low, high)
