"""What ties a later campaign to the first one, on a machine that drifts between them.

A campaign measures some samples of the training set once more, its anchors. What they cost then and now says how costs
of this campaign read in terms of the first one: `ln(first) = intercept + slope * ln(now)`. Most of the time the
machine is slower or faster as a whole, so that the slope is 1; under pressure from its other users large lookups, which
live off memory bandwidth, suffer several times as much as small ones. Which of the two it was, leaving out one anchor
at a time tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

FloatArray = NDArray[np.float64]
Sample = TypeVar("Sample", ComputeSample, CommSample)

#: The two costs of a sample; each has a drift of its own.
DIRECTIONS = ("forward_ms", "backward_ms")

#: Fewer anchors than this say nothing about a slope.
_FEWEST_FOR_A_SLOPE = 8


@dataclass(frozen=True)
class Drift:
    """How costs of a campaign read in terms of the first one: `ln(first) = intercept + slope * ln(now)`.

    Attributes:
        intercept: of the line.
        slope: of the line; 1 for a machine that is slower or faster as a whole.
        anchors: costs that it was fitted to; without any, costs stay as they are.
        ratio: median of now / first over the anchors.
    """

    intercept: float
    slope: float
    anchors: int
    ratio: float

    def undone(self, costs_ms: pd.Series) -> pd.Series:
        """What costs of this campaign would have been in the first one."""
        return np.exp(self.intercept) * costs_ms.astype(float) ** self.slope


NO_DRIFT = Drift(0.0, 1.0, 0, 1.0)


def choose_anchors(samples: Sequence[Sample], costs: pd.DataFrame, count: int) -> list[Sample]:
    """At most `count` measured samples, evenly spaced from the cheapest to the dearest.

    Args:
        samples: of the training set.
        costs: `sample_id, forward_ms, backward_ms, error`, one row per sample or per rank of one.
        count: how many.
    """
    good = costs[costs["error"].isna()]
    total = good[list(DIRECTIONS)].sum(axis=1).groupby(good["sample_id"]).max()
    measured = sorted(
        (sample for sample in samples if sample.sample_id in total.index), key=lambda s: total[s.sample_id]
    )
    places = np.linspace(0, len(measured) - 1, min(count, len(measured))).round().astype(int)
    return [measured[place] for place in places]


def measure_with_anchors(
    samples: Sequence[Sample],
    anchors: Sequence[Sample],
    first_costs: pd.DataFrame,
    measure: Callable[[Sequence[Sample]], pd.DataFrame],
) -> tuple[pd.DataFrame, dict[str, Drift]]:
    """Measure samples and anchors in one campaign.

    Args:
        samples: what is to be known.
        anchors: samples of the first campaign, none of them among `samples`.
        first_costs: what the first campaign measured.
        measure: samples → `sample_id, forward_ms, backward_ms, error` and, for collectives, `rank`.

    Returns:
        The costs of `samples` as they were measured, and the drift of every direction.
    """
    if not samples:
        return first_costs.head(0), dict.fromkeys(DIRECTIONS, NO_DRIFT)
    # Anchors stand between the samples: chunks of neighbours are measured together.
    spread = np.argsort(np.concatenate([np.linspace(0, 1, len(part), endpoint=False) for part in (samples, anchors)]))
    costs = measure([(*samples, *anchors)[place] for place in spread])
    is_anchor = costs["sample_id"].isin({anchor.sample_id for anchor in anchors})
    return costs[~is_anchor].reset_index(drop=True), fit_drifts(first_costs, costs[is_anchor])


def fit_drifts(first: pd.DataFrame, now: pd.DataFrame) -> dict[str, Drift]:
    """Drift of every direction, from costs of the same samples in two campaigns."""
    keys = [key for key in ("sample_id", "rank") if key in first and key in now]
    both = first[first["error"].isna()].merge(now[now["error"].isna()], on=keys, suffixes=("_first", "_now"))
    columns = ((name, both[f"{name}_first"], both[f"{name}_now"]) for name in DIRECTIONS)
    return {name: _fitted(then.to_numpy(dtype=float), again.to_numpy(dtype=float)) for name, then, again in columns}


def without_drift(costs: pd.DataFrame, drifts: dict[str, Drift]) -> pd.DataFrame:
    """`costs` as the first campaign would have measured them."""
    return costs.assign(**{name: drift.undone(costs[name]) for name, drift in drifts.items()})


def _fitted(first_ms: FloatArray, now_ms: FloatArray) -> Drift:
    if not len(first_ms):
        return NO_DRIFT
    first, now = np.log(first_ms), np.log(now_ms)
    fit = _constant
    if len(first) >= _FEWEST_FOR_A_SLOPE:
        fit = min((_constant, _line), key=lambda kind: _error_left_out(kind, first, now))
    intercept, slope = fit(first, now)
    return Drift(intercept, slope, len(first), float(np.exp(np.median(now - first))))


def _constant(first: FloatArray, now: FloatArray) -> tuple[float, float]:
    return float(np.median(first - now)), 1.0


def _line(first: FloatArray, now: FloatArray) -> tuple[float, float]:
    """Theil and Sen's line, which single disturbed anchors do not bend."""
    if np.ptp(now) == 0:
        return _constant(first, now)
    slope, intercept, *_ = stats.theilslopes(first, now)
    return float(intercept), float(slope)


def _error_left_out(
    fit: Callable[[FloatArray, FloatArray], tuple[float, float]], first: FloatArray, now: FloatArray
) -> float:
    """Median |error| on tenths of the anchors by a fit to the others, in logarithms."""
    errors = []
    for part in range(10):
        left_out = np.arange(len(first)) % 10 == part
        intercept, slope = fit(first[~left_out], now[~left_out])
        errors.append(np.abs(intercept + slope * now[left_out] - first[left_out]))
    return float(np.median(np.concatenate(errors)))
