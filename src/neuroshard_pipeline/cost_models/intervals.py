"""How sure a prediction is: 90 % intervals whose width depends on what is asked.

A prediction `cost` is given the interval `[cost * exp(-h), cost * exp(h)]` with the logarithmic half width

    h = hypot(quantile * scale, OVERSHOOT_SLOPE * overshoot)
    scale = exp(c0 + c1 * log(cost) + c2 * log(spread + floor))

`spread` is the standard deviation of the members' log costs, `overshoot` how far the question lies outside the
training range. `calibration.calibrate` finds the coefficients and the quantile, and says why this scale.

Shapes: `...` questions, E ensemble members, N samples, F context features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: The share of measurements that intervals are made to hold.
COVERAGE = 0.9

#: Log half width per unit of overshoot. Trained without the widest, the most pooled or the largest tables, or without
#: sets of more than 5, the intervals cover 98 %, 95 %, 90 % and 94 % of the FBGEMM samples that were left out. The log
#: error's 90th percentile grows from 0.08 just outside the range to between 0.15 and 0.18 beyond an overshoot of 1.
OVERSHOOT_SLOPE = 0.2

#: Log scale and log half width at most: models of a handful of noisy samples may be as unsure as that, and bounds and
#: their squares are to stay floats.
_MAX_LOG_SCALE, _MAX_LOG_HALF_WIDTH = 100.0, 230.0

#: Added to the members' spread: below it, agreement says nothing more.
_SPREAD_FLOOR = 1e-3

#: Keeps logarithms of costs finite.
SMALLEST_MS = 1e-6


@dataclass(frozen=True)
class Calibration:
    """What turns a cost and the spread of its members into an interval; NumPy only.

    Attributes:
        coefficients: (3,) of the log scale: constant, log cost, log spread; the last is at least 0.
        quantile: (1,) conformal quantile of the relative error in units of the scale.
        low: (F,) smallest value of every context feature among the training rows.
        high: (F,) largest.
        cost_range_ms: (2,) smallest and largest training cost.
    """

    coefficients: FloatArray
    quantile: FloatArray
    low: FloatArray
    high: FloatArray
    cost_range_ms: FloatArray

    def overshoot(self, context: FloatArray) -> FloatArray:
        """How far context (..., F) lies outside the training range: (...).

        Context features are logarithms and shares, so that their distances compare: the farthest feature counts, 0.7
        for a quantity of twice the largest that was trained on.
        """
        return np.maximum(np.maximum(self.low - context, context - self.high), 0.0).max(axis=-1)

    def interval(self, cost: FloatArray, spread: FloatArray, overshoot: FloatArray) -> FloatArray:
        """Lower and upper bound in ms (..., 2) of costs (...) with the members' spread and overshoot, both (...).

        A cost above all training costs, that of more shards than any sample had, overshoots by the logarithm of the
        ratio. The bounds of a cost of 0 are 0.
        """
        beyond = np.log(np.maximum(cost / self.cost_range_ms[1], 1.0))
        log_scale = scale_terms(cost, spread, self.cost_range_ms) @ self.coefficients
        scale = np.exp(np.minimum(log_scale, _MAX_LOG_SCALE))
        half_width = np.hypot(self.quantile[0] * scale, OVERSHOOT_SLOPE * (overshoot + beyond))
        factor = np.exp(np.minimum(half_width, _MAX_LOG_HALF_WIDTH))
        return np.stack([cost / factor, cost * factor], axis=-1)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Arrays for a checkpoint, named `<prefix>coefficients` and so on."""
        return {f"{prefix}{name}": getattr(self, name) for name in CALIBRATION_FIELDS}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], prefix: str) -> Calibration:
        """Inverse of `arrays`."""
        return cls(**{name: np.asarray(arrays[f"{prefix}{name}"], dtype=np.float64) for name in CALIBRATION_FIELDS})


CALIBRATION_FIELDS: tuple[str, ...] = ("coefficients", "quantile", "low", "high", "cost_range_ms")


def scale_terms(cost: FloatArray, spread: FloatArray, cost_range_ms: FloatArray) -> FloatArray:
    """(..., 3) what the log scale is linear in; the cost is clipped to the training range."""
    within = np.clip(cost, *cost_range_ms)
    return np.stack([np.ones_like(within), np.log(within), np.log(spread + _SPREAD_FLOOR)], axis=-1)


def member_spread(member_costs: FloatArray) -> FloatArray:
    """Standard deviation of the log costs of ensemble members (E, ...), at most 1: (...)."""
    return np.minimum(np.log(np.maximum(member_costs, SMALLEST_MS)).std(axis=0), 1.0)


def coverage(measured: FloatArray, interval: FloatArray) -> float:
    """Share of measured costs (N,) that lie within their intervals (N, 2)."""
    return float(np.mean((measured >= interval[:, 0]) & (measured <= interval[:, 1])))


def relative_width(predicted: FloatArray, interval: FloatArray) -> float:
    """Mean width of intervals (N, 2) as a share of the predicted costs (N,)."""
    return float(np.mean((interval[:, 1] - interval[:, 0]) / predicted))
