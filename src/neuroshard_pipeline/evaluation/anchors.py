"""Anchors: samples of a first campaign that are measured once more, to tell the machine's drift since then.

Campaigns are minutes apart, and a machine that others use drifts. What anchors cost then and now says how costs of a
later campaign read in terms of the first one: `ln(first) = intercept + slope * ln(now)`. Most of the time the machine
is slower or faster as a whole, so that the slope is 1; under pressure from its other users large lookups, which live
off memory bandwidth, suffer several times as much as small ones. Which of the two it was, leaving out one anchor at a
time tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy import stats

from neuroshard_pipeline.tables.samples import CommSample, ComputeSample

FloatArray = NDArray[np.float64]
Sample = TypeVar("Sample", ComputeSample, CommSample)

#: The two costs of a sample; each has a drift of its own.
DIRECTIONS = ("forward_ms", "backward_ms")

#: Both costs of every anchor, by part of the cost of a plan.
ANCHOR_COLUMNS = ["part", "sample_id", "rank", "first_ms", "again_ms"]

#: Fewer anchors than this say nothing about a slope.
_FEWEST_FOR_A_SLOPE = 8


class AnchorParams(BaseModel):
    """How many samples are measured again.

    Attributes:
        compute_samples: compute samples.
        comm_samples: communication samples, of the world sizes that are measured anyway.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    compute_samples: int = Field(ge=0)
    comm_samples: int = Field(ge=0)


@dataclass(frozen=True)
class Anchors:
    """Samples of the first campaign and what they cost in it.

    Attributes:
        compute: compute samples.
        comm: communication samples.
        compute_costs: `measure.compute_costs` of the former.
        comm_costs: `measure.comm_costs` of the latter.
    """

    compute: tuple[ComputeSample, ...]
    comm: tuple[CommSample, ...]
    compute_costs: pd.DataFrame
    comm_costs: pd.DataFrame


NO_ANCHORS = Anchors(
    (), (), pd.DataFrame(columns=["sample_id", *DIRECTIONS]), pd.DataFrame(columns=["sample_id", "rank", *DIRECTIONS])
)


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
        samples: of the first campaign.
        costs: `sample_id, forward_ms, backward_ms, error`, one row per sample or per rank of one; a sample with an
            error on any rank is no anchor.
        count: how many.
    """
    good = costs[~costs["sample_id"].isin(costs.loc[costs["error"].notna(), "sample_id"])]
    total = good[list(DIRECTIONS)].sum(axis=1).groupby(good["sample_id"]).max()
    measured = sorted(
        (sample for sample in samples if sample.sample_id in total.index), key=lambda s: total[s.sample_id]
    )
    places = np.linspace(0, len(measured) - 1, min(count, len(measured))).round().astype(int)
    return [measured[place] for place in places]


def choose_both(
    compute: tuple[Sequence[ComputeSample], pd.DataFrame],
    comm: tuple[Sequence[CommSample], pd.DataFrame],
    world_sizes: Sequence[int],
    params: AnchorParams,
) -> Anchors:
    """Anchors of both kinds.

    Args:
        compute: samples of the first campaign and their costs.
        comm: the same of the collectives.
        world_sizes: of collectives that will be measured anyway; others need processes of their own.
        params: how many.
    """
    lookups = choose_anchors(compute[0], compute[1], params.compute_samples)
    usable = [sample for sample in comm[0] if sample.world_size in world_sizes]
    collectives = choose_anchors(usable, comm[1], params.comm_samples)
    costs = _of(compute[1], lookups), _of(comm[1], collectives)
    return Anchors(tuple(lookups), tuple(collectives), *costs)


def among(samples: Sequence[Sample], anchors: Sequence[Sample]) -> list[Sample]:
    """Samples with anchors evenly spread between them: a campaign measures neighbours together."""
    places = np.concatenate([np.linspace(0, 1, len(part), endpoint=False) for part in (samples, anchors)])
    together = [*samples, *anchors]
    return [together[place] for place in np.argsort(places, kind="stable")]


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
    costs = measure(among(samples, anchors))
    is_anchor = costs["sample_id"].isin({anchor.sample_id for anchor in anchors})
    return costs[~is_anchor].reset_index(drop=True), fit_drifts(first_costs, costs[is_anchor])


def fit_drifts(first: pd.DataFrame, now: pd.DataFrame) -> dict[str, Drift]:
    """Drift of every direction, from costs of the same samples in two campaigns."""
    both = _joined(first[first["error"].isna()], now)
    columns = ((name, both[f"{name}_first"], both[f"{name}_now"]) for name in DIRECTIONS)
    return {name: fit_drift(then.to_numpy(dtype=float), again.to_numpy(dtype=float)) for name, then, again in columns}


def without_drift(costs: pd.DataFrame, drifts: dict[str, Drift]) -> pd.DataFrame:
    """`costs` as the first campaign would have measured them; `drifts` by column."""
    return costs.assign(**{name: drift.undone(costs[name]) for name, drift in drifts.items()})


def anchors_frame(
    anchors: Anchors, compute_costs: pd.DataFrame, forward_costs: pd.DataFrame, backward_costs: pd.DataFrame
) -> pd.DataFrame:
    """Both costs of every anchor that was measured among plans: `part, sample_id, rank, first_ms, again_ms`.

    Args:
        anchors: what was measured again.
        compute_costs: of the campaign of the plans' ranks, which the compute anchors were part of.
        forward_costs: of the campaign of the plans' forward collectives, likewise.
        backward_costs: of the campaign of the backward ones.
    """
    parts = [
        _pairs("compute", anchors.compute_costs, compute_costs, ["forward_ms", "backward_ms"]),
        _pairs("forward_comm", anchors.comm_costs, forward_costs, ["forward_ms"]),
        _pairs("backward_comm", anchors.comm_costs, backward_costs, ["backward_ms"]),
    ]
    return pd.concat(parts, ignore_index=True)


def drifts_of_parts(anchors: pd.DataFrame) -> dict[str, Drift]:
    """Drift of every part of the cost that has anchors, from a frame as `anchors_frame` makes it."""
    return {
        str(part): fit_drift(rows["first_ms"].to_numpy(dtype=float), rows["again_ms"].to_numpy(dtype=float))
        for part, rows in anchors.groupby("part", sort=False)
    }


def fit_drift(first_ms: FloatArray, now_ms: FloatArray) -> Drift:
    """Drift from costs of the same samples in two campaigns."""
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


def _of(costs: pd.DataFrame, samples: Sequence[Sample]) -> pd.DataFrame:
    return costs[costs["sample_id"].isin({sample.sample_id for sample in samples})]


def _joined(first: pd.DataFrame, now: pd.DataFrame) -> pd.DataFrame:
    """Costs of the same samples, or ranks of them, with the suffixes `_first` and `_now`; failures are left out."""
    keys = [key for key in ("sample_id", "rank") if key in first and key in now]
    return first.merge(now[now["error"].isna()], on=keys, suffixes=("_first", "_now"))


def _pairs(part: str, first: pd.DataFrame, again: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    both = _joined(first, again)
    ranks = both["rank"] if "rank" in both else pd.Series([None] * len(both), index=both.index)
    sums = {
        name: both[[f"{column}_{suffix}" for column in columns]].astype(float).sum(axis=1)
        for name, suffix in (("first_ms", "first"), ("again_ms", "now"))
    }
    ids = both["sample_id"].astype(str)
    return pd.DataFrame({"part": part, "sample_id": ids, "rank": ranks.astype("Int64"), **sums})[ANCHOR_COLUMNS]
