"""The drift of a machine's speed between two campaigns, estimated from samples that both campaigns measured.

A campaign measures many samples, each of them a lookup kernel or a pair of all-to-alls. Those that both campaigns
measured are called anchors. The drift is a line that is fitted to the logarithms of their costs. Usually all costs
change by the same factor; then the slope is 1. If other jobs load the memory bus, large lookups slow down several times
as much as small ones. Cross-validation over the anchors decides between a slope of 1 and a fitted slope.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from neuroshard_pipeline.arrays import FloatArray

#: The slope is fixed to 1 with fewer costs than this; the anchors of all-to-alls have one cost per rank.
_FEWEST_FOR_A_SLOPE = 8
_FOLDS = 10


@dataclass(frozen=True)
class Drift:
    """Converts costs of a later campaign to those of the first one: `ln(first) = intercept + slope * ln(later)`.

    Attributes:
        intercept: intercept of the line.
        slope: slope of the line.
        anchors: number of costs that the line was fitted to; if it is 0, costs stay unchanged.
        ratio: median of later / first cost over these costs.
    """

    intercept: float
    slope: float
    anchors: int
    ratio: float

    def undone(self, costs_ms: pd.Series) -> pd.Series:
        """Convert costs of the later campaign to those of the first one."""
        return np.exp(self.intercept) * costs_ms.astype(float) ** self.slope


def fit_drift(first_ms: pd.Series, later_ms: pd.Series) -> Drift:
    """Estimate the drift from the costs of the same samples, in the same order, in two campaigns."""
    if first_ms.empty:
        return Drift(intercept=0.0, slope=1.0, anchors=0, ratio=1.0)
    first, later = (np.log(costs_ms.to_numpy(dtype=float)) for costs_ms in (first_ms, later_ms))
    fit = _scale
    if len(first) >= _FEWEST_FOR_A_SLOPE:
        fit = min((_scale, _line), key=lambda model: _cross_validated_error(model, first, later))
    intercept, slope = fit(first, later)
    return Drift(intercept, slope, len(first), float(np.exp(np.median(later - first))))


def without_drift(costs: pd.DataFrame, drifts: Mapping[str, Drift]) -> pd.DataFrame:
    """Convert the columns named in `drifts` to costs of the first campaign."""
    return costs.assign(**{name: drift.undone(costs[name]) for name, drift in drifts.items()})


def _scale(first: FloatArray, later: FloatArray) -> tuple[float, float]:
    return float(np.median(first - later)), 1.0


def _line(first: FloatArray, later: FloatArray) -> tuple[float, float]:
    """The Theil-Sen line, which is robust against single disturbed anchors."""
    if np.ptp(later) == 0:
        return _scale(first, later)
    from scipy import stats  # imported late: this takes half a second

    slope, intercept, *_ = stats.theilslopes(first, later)
    return float(intercept), float(slope)


def _cross_validated_error(
    fit: Callable[[FloatArray, FloatArray], tuple[float, float]], first: FloatArray, later: FloatArray
) -> float:
    """Median absolute error of the predicted log costs of anchors that were left out of the fit."""
    errors = []
    for fold in range(_FOLDS):
        left_out = np.arange(len(first)) % _FOLDS == fold
        intercept, slope = fit(first[~left_out], later[~left_out])
        errors.append(np.abs(intercept + slope * later[left_out] - first[left_out]))
    return float(np.median(np.concatenate(errors)))
