"""Prediction intervals: they contain 90 % of measurements, and their width depends on the input.

A prediction `cost` has the interval `[cost * exp(-h), cost * exp(h)]` with the logarithmic half width

    h = hypot(quantile * scale, OVERSHOOT_SLOPE * overshoot)
    scale = exp(c0 + c1 * log(cost) + c2 * log(spread + floor))

In the scale, `cost` is clipped to the range of training costs. `spread` is the standard deviation of the ensemble
members' log costs; `overshoot` measures how far input and cost lie outside the training range. `calibration.calibrate`
finds the coefficients and the quantile.

Shapes: `...` predictions, E ensemble members, N samples, F context features.
"""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.checkpoint import ArrayGroup

#: Share of measurements that intervals are calibrated to contain.
COVERAGE = 0.9

#: Log half width per unit of overshoot. For a check, four models were each trained without one group of FBGEMM samples.
#: Their intervals cover this share of the samples left out: 98 % (widest tables), 95 % (largest pooling factors), 90 %
#: (largest tables) and 94 % (more than 5 tables). The 90th percentile of the log error is 0.08 just outside the
#: training range, and between 0.15 and 0.18 beyond an overshoot of 1.
OVERSHOOT_SLOPE = 0.2

#: Upper limits of log scale and log half width. Models trained on a handful of noisy samples reach these limits, which
#: keep the bounds and the squares of the bounds finite.
_MAX_LOG_SCALE, _MAX_LOG_HALF_WIDTH = 100.0, 230.0

#: Added to the spread of the ensemble members, because differences between smaller spreads mean nothing.
_SPREAD_FLOOR = 1e-3

#: Keeps logarithms of costs finite.
SMALLEST_MS = 1e-6


@dataclass(frozen=True)
class Calibration(ArrayGroup):
    """Maps a cost and the spread of the ensemble members to an interval; needs NumPy only.

    Attributes:
        coefficients: (3,) coefficients of the log scale: constant, log cost, log spread; the last is at least 0.
        quantile: (1,) conformal quantile of the absolute log error, in units of the scale.
        low: (F,) smallest training value of every context feature.
        high: (F,) largest training value of every context feature.
        cost_range_ms: (2,) smallest and largest training cost.
    """

    coefficients: FloatArray
    quantile: FloatArray
    low: FloatArray
    high: FloatArray
    cost_range_ms: FloatArray

    def overshoot(self, context: FloatArray) -> FloatArray:
        """Distance (...) of context (..., F) from the training range, 0 inside it.

        The result is the largest distance of any feature. Distances are comparable, because features are logarithms and
        shares. A quantity of twice its largest training value has an overshoot of log(2) = 0.7.
        """
        return np.maximum(np.maximum(self.low - context, context - self.high), 0.0).max(axis=-1)

    def interval(self, cost: FloatArray, spread: FloatArray, overshoot: FloatArray) -> FloatArray:
        """Lower and upper bound in ms (..., 2) of predicted costs (...).

        A set with very many shards can cost more than the most expensive training sample. The logarithm of the ratio
        of both costs is then added to the overshoot. The bounds of a cost of 0 are 0.

        Args:
            cost: (...) in ms.
            spread: (...) `member_spread` of the members' costs.
            overshoot: (...) as `overshoot` returns it; for a set of shards, theirs weighted by cost.
        """
        beyond = np.log(np.maximum(cost / self.cost_range_ms[1], 1.0))
        log_scale = scale_terms(cost, spread, self.cost_range_ms) @ self.coefficients
        scale = np.exp(np.minimum(log_scale, _MAX_LOG_SCALE))
        half_width = np.hypot(self.quantile[0] * scale, OVERSHOOT_SLOPE * (overshoot + beyond))
        factor = np.exp(np.minimum(half_width, _MAX_LOG_HALF_WIDTH))
        return np.stack([cost / factor, cost * factor], axis=-1)


def scale_terms(cost: FloatArray, spread: FloatArray, cost_range_ms: FloatArray) -> FloatArray:
    """(..., 3) terms of the log scale: 1, log cost (clipped to the training range), log spread."""
    within = np.clip(cost, *cost_range_ms)
    return np.stack([np.ones_like(within), np.log(within), np.log(spread + _SPREAD_FLOOR)], axis=-1)


def member_spread(member_costs: FloatArray) -> FloatArray:
    """(...) standard deviation of the log costs of ensemble members (E, ...), limited to at most 1."""
    return np.minimum(np.log(np.maximum(member_costs, SMALLEST_MS)).std(axis=0), 1.0)


def coverage(measured: FloatArray, interval: FloatArray) -> float:
    """Share of measured costs (N,) that lie within their intervals (N, 2)."""
    return float(np.mean((measured >= interval[:, 0]) & (measured <= interval[:, 1])))


def relative_width(predicted: FloatArray, interval: FloatArray) -> float:
    """Mean width of intervals (N, 2) as a share of the predicted costs (N,)."""
    return float(np.mean((interval[:, 1] - interval[:, 0]) / predicted))
