"""Points of the lab check (each is a published time beside the lab's prediction), tables of their errors, and aims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

LEFT_OUT = "left out"  # the model was fitted without any row of the point's source
PREDICTED = "predicted"  # the source is not in data/01_raw/published; the shipped numbers predict it

#: Statistics that an aim may limit: of relative errors, or of factors (`Point.factor`) if the name says so.
STATISTICS = {
    "median": lambda errors: float(np.median(errors)),
    "p90": lambda errors: float(np.quantile(errors, 0.9)),
    "median factor": lambda errors: float(np.median(errors)),
    "worst factor": lambda errors: float(np.max(errors)),
    "worst error": lambda errors: float(np.max(errors)),
}


@dataclass(frozen=True)
class Point:
    """One published time and its prediction.

    Attributes:
        source: column `source` of the published file; for collectives, the publisher of this source.
        device: preset of the lab; for collectives, cluster and collective.
        size: size class, such as `50 us to 1 ms`.
        published_us: published time.
        predicted_us: the lab's time.
        how: `LEFT_OUT`, `PREDICTED`, or `other sizes` for a collective predicted by a fit to its cluster's other sizes.
        aim: name of the aim that the point counts towards, None if it counts towards none.
        what: the row and, for lookups, its timed part such as `backward`; shown in the list of the largest errors.
    """

    source: str
    device: str
    size: str
    published_us: float
    predicted_us: float
    how: str
    aim: str | None
    what: str = ""

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.predicted_us / self.published_us - 1.0)

    @property
    def factor(self) -> float:
        """The factor, at least 1, between prediction and published time."""
        return max(self.predicted_us / self.published_us, self.published_us / self.predicted_us)


@dataclass(frozen=True)
class Aim:
    """Largest allowed errors of the points that name this aim.

    Attributes:
        name: as in `Point.aim`.
        limits: largest allowed value by the name of a statistic in `STATISTICS`.
    """

    name: str
    limits: dict[str, float]

    def lines(self, points: Sequence[Point]) -> tuple[list[str], bool]:
        """Report lines, one per limit, and whether a limit is exceeded. An aim without points is not missed."""
        counted = [point for point in points if point.aim == self.name]
        if not counted:
            return [f"{self.name}: no points"], False
        lines, missed = [], False
        for statistic, limit in self.limits.items():
            errors = [point.factor if "factor" in statistic else point.error for point in counted]
            value = STATISTICS[statistic](errors)
            missed |= value > limit
            verdict = "MISSED" if value > limit else "met"
            lines.append(f"{self.name}: {statistic} {value:.3f} of {len(counted)} points, aim {limit:g}: {verdict}")
        return lines, missed


@dataclass(frozen=True)
class Check:
    """Result of one half of the check.

    Attributes:
        title: heading of the tables.
        points: all points that the lab can predict.
        aims: aims of this half.
        skipped: reasons why other rows have no prediction, one entry per row.
        assumed: networks that were assumed for rows whose network matches no cluster sheet, one entry per such row.
    """

    title: str
    points: list[Point]
    aims: list[Aim]
    skipped: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def table(self, by: Sequence[str]) -> pd.DataFrame:
        """Number of points, and median, 90th percentile and median signed error of every group."""
        rows = [
            {**vars(point), "error": point.error, "signed": point.predicted_us / point.published_us - 1.0}
            for point in self.points
        ]
        groups = pd.DataFrame(rows).groupby(list(by), sort=False)
        return groups.agg(
            points=("error", "size"),
            median=("error", "median"),
            p90=("error", lambda errors: errors.quantile(0.9)),
            signed_median=("signed", "median"),
        )
