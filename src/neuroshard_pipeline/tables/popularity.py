"""Popularity curves: which share of a table's ids looks up its most popular rows.

A curve is derived from counted ids, or from the reuse profile of one batch. It predicts the share of later ids. Some
rows were looked up often only by chance; later ids look them up less often. Good (Biometrika 1953) estimates later
lookups without assumptions about popularities. Among N independent ids, some rows have at least `a` lookups. The next N
ids look up these rows L times on average:

    L = sum over k > a of k * (rows with k lookups) = (ids that looked up these rows) - a * (rows with a lookups)

A threshold `a` gives one point of the curve: the number of these rows, and the share L / N. Straight lines join the
points. The true share between two points lies above the line, because more popular rows come first. The lowest
threshold is `LEAST_LOOKUPS`. Fewer lookups do not show that a row is popular, because ids are not quite independent:
one sample may have an id twice. Beyond the last point, ids are assumed to be spread evenly over the remaining rows.

Shapes: K points of a curve, R rows with lookups, T thresholds, 17 reuse bins.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.curve_points import CurvePoints, with_ends
from neuroshard_pipeline.tables.ids import HIGHEST_COUNTS, LOWEST_COUNTS
from neuroshard_pipeline.tables.profile import is_assumed, with_profile
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Table

#: A row with fewer lookups than this is not known to be popular.
LEAST_LOOKUPS = 3

#: A row that was looked up `a` times has an expectation of more than `a - 4 * sqrt(a)` lookups, except with a
#: probability of 3e-5 (normal distribution).
_STANDARD_ERRORS = 4.0

#: Number of thresholds per factor of 2 in the number of lookups, in curves of counted ids.
_POINTS_PER_OCTAVE = 4
#: Largest slope of a reuse bin (`_slopes`): nearly all rows then have counts close to the lowest count of the bin.
_STEEPEST = 30.0
#: Error of the estimated mean count of a reuse bin, as a share of the bin's width. With Zipf's popularities, the error
#: is 0.01 to 0.02.
_MEAN_ERROR = 0.02


@dataclass(frozen=True)
class PopularityCurve:
    """Share of ids that look up the most popular rows: a concave curve, linear between its points.

    `rows` (K,) are numbers of most popular rows, ascending from 0 to all rows of the table; `shares` (K,) are the
    expected shares of the ids that look them up, from 0 to 1.
    """

    rows: FloatArray
    shares: FloatArray

    @property
    def num_embeddings(self) -> int:
        """Number of rows of the table."""
        return int(self.rows[-1])

    @property
    def points(self) -> CurvePoints:
        """The points after (0, 0), for `Table.popularity`."""
        return tuple(zip(self.rows[1:].tolist(), self.shares[1:].tolist(), strict=True))

    def share_of(self, rows: ArrayLike) -> FloatArray:
        """For each number of most popular rows, the share of the ids that look them up."""
        return np.asarray(np.interp(np.asarray(rows, dtype=float), self.rows, self.shares))


@dataclass(frozen=True)
class IdCounts:
    """The rows of a table that ids looked up at least once, ascending (R,), and how often, (R,)."""

    rows: IntArray
    counts: IntArray
    num_embeddings: int


def curve_of(table: Table, batch_size: int) -> PopularityCurve:
    """The curve through the points of `Table.popularity` if the table has them, otherwise `curve_of_profile`."""
    if table.popularity is None:
        return curve_of_profile(table, batch_size)
    return PopularityCurve(*np.array(with_ends(table.popularity, table.num_embeddings)).T)


def curve_source(table: Table) -> str:
    """Where the curve of `curve_of` comes from, in words."""
    if table.popularity is not None:
        return "counted ids, or the table file"
    return f"the {'assumed ' if is_assumed(table) else ''}reuse profile of one batch"


def curve_of_profile(table: Table, batch_size: int) -> PopularityCurve:
    """The curve that the reuse profile of one batch (by default, the assumed one) supports (see the top of this file).

    The thresholds are the lowest counts of the reuse bins. The profile lacks two numbers that Good's estimate needs.
    The first is the number of rows that have exactly the lowest count of a bin; the steep slopes of `_slopes` give it.
    The second is the number of ids that look up the rows of a bin; `rows_and_ids` estimates it. The sum of these ids
    over all bins from a threshold on is lowered by two standard errors (`_deviations`).
    """
    rows, ids = rows_and_ids(with_profile(table, batch_size), batch_size)
    shares = np.array([of_counts[0] for _, of_counts in map(_counts_of_bin, *_slopes(rows, is_steep=True))])
    rows_above, ids_above, least = (np.cumsum(of[::-1])[::-1] for of in (rows, ids, rows * LOWEST_COUNTS))
    above = np.cumsum(_deviations(rows)[::-1] ** 2)[::-1]
    # The number of all ids is known, so the ids above a threshold are as uncertain as the ids below it.
    certain = np.maximum(ids_above - 2.0 * np.sqrt(np.minimum(above, above[0] - above)), least)
    lookups = _later_lookups(LOWEST_COUNTS, rows_above, certain, shares * rows)
    known = (LOWEST_COUNTS >= LEAST_LOOKUPS) & (rows > 0)
    return _curve(rows_above[known], lookups[known] / ids.sum(), table.num_embeddings)


def curve_of_counts(counts: IdCounts) -> PopularityCurve:
    """The curve that counted ids support (see the top of this file).

    Raises:
        TaskError: no ids were counted.
    """
    total = int(counts.counts.sum())
    if not total:
        raise TaskError("no ids were counted, so there is no popularity curve; count the ids of some batches")
    ascending = np.sort(counts.counts)
    octaves = np.log2(max(int(ascending[-1]) / LEAST_LOOKUPS, 1.0))
    steps = np.arange(int(octaves * _POINTS_PER_OCTAVE) + 1) / _POINTS_PER_OCTAVE
    thresholds = np.unique(np.floor(LEAST_LOOKUPS * 2.0**steps).astype(np.int64))
    first, beyond = (np.searchsorted(ascending, thresholds, side) for side in ("left", "right"))
    ids_above = (total - np.concatenate([[0], np.cumsum(ascending)]))[first]
    rows_above = len(ascending) - first
    lookups = _later_lookups(thresholds, rows_above, ids_above, beyond - first)
    return _curve(rows_above, lookups / total, counts.num_embeddings)


def id_counts(batches: Iterable[IntArray], num_embeddings: int) -> IdCounts:
    """Count how often batches look up each row of a table; a batch is an array of row numbers, of any length.

    Raises:
        TaskError: an id is not a row of the table.
    """
    rows, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for ids in batches:
        if len(ids) and not 0 <= ids.min() <= ids.max() < num_embeddings:
            raise TaskError(f"ids are {ids.min()} to {ids.max()}, but the table's rows are 0 to {num_embeddings - 1}")
        found, times = np.unique(ids, return_counts=True)
        merged, place = np.unique(np.concatenate([rows, found]), return_inverse=True)
        rows, counts = merged, np.bincount(place, np.concatenate([counts, times]), len(merged)).astype(np.int64)
    return IdCounts(rows, counts, num_embeddings)


def popular_rows(counts: IdCounts, num_rows: int) -> IntArray:
    """Row numbers of the most popular rows, most popular first, (num_rows,).

    Rows with equal numbers of lookups are in the order of the table. Rows without lookups come last.

    Raises:
        TaskError: the table has fewer than `num_rows` rows.
    """
    if num_rows > counts.num_embeddings:
        raise TaskError(f"num_rows is {num_rows}, but the table has only {counts.num_embeddings} rows")
    hottest = counts.rows[np.argsort(-counts.counts, kind="stable")[:num_rows]]
    missing = num_rows - len(hottest)
    if missing <= 0:
        return hottest
    # Among the first R + missing rows, at least `missing` have no lookups.
    first = np.arange(min(len(counts.rows) + missing, counts.num_embeddings))
    return np.concatenate([hottest, np.setdiff1d(first, counts.rows, assume_unique=True)[:missing]])


@lru_cache(maxsize=4096)
def rows_and_ids(table: Table, batch_size: int) -> tuple[FloatArray, FloatArray]:
    """Number of distinct rows in every reuse bin, and number of ids of one batch that look up these rows, (17,) each.

    `_slopes` gives a first estimate of the ids of every bin. These estimates do not quite sum to the number of ids in
    the batch. The difference is divided among the bins in proportion to the variances of their estimates
    (`_deviations`), but no estimate leaves the range of the bin's counts. If a difference remains, all are scaled.

    Raises:
        TaskError: the table has no reuse profile.
    """
    if table.unique_rows is None or table.reuse is None:
        raise TaskError(f"table {table.name!r} has no reuse profile; complete it with with_profile")
    total = batch_size * table.pooling_factor
    rows = table.unique_rows * np.array(table.reuse) / sum(table.reuse)
    means = np.array([float(counts @ shares) for counts, shares in map(_counts_of_bin, *_slopes(rows))])
    ids, lowest, highest = rows * means, rows * LOWEST_COUNTS, rows * HIGHEST_COUNTS
    variances = _deviations(rows) ** 2
    for _ in range(NUM_REUSE_BINS):  # in every round, the difference vanishes or another estimate reaches its limit
        movable = variances * ((ids < highest) if total > ids.sum() else (ids > lowest))
        if movable.any():
            ids = np.clip(ids + (total - ids.sum()) * movable / movable.sum(), lowest, highest)
    ids = ids * (total / ids.sum())
    rows.flags.writeable = ids.flags.writeable = False  # the cache hands out the same arrays again
    return rows, ids


def _deviations(rows: FloatArray) -> FloatArray:
    """Standard deviation of the number of ids that look up the `rows` (17,) of each reuse bin, (17,).

    The number of ids is the sum of the counts of the bin's rows. Each count has a variance of width**2 / 12, as if
    counts were spread evenly over the bin. The mean of all counts of the bin has a further error, `_MEAN_ERROR` times
    the width, because no popularity follows a power law exactly.
    """
    widths = (HIGHEST_COUNTS - LOWEST_COUNTS).astype(float)
    return np.asarray(widths * np.sqrt(rows / 12.0 + (_MEAN_ERROR * rows) ** 2))


def _slopes(rows: FloatArray, is_steep: bool = False) -> tuple[IntArray, FloatArray]:
    """Index and slope s of every reuse bin, (17,) each: the counts k in a bin are assumed to be distributed as k**-s.

    A bin is twice as wide as the bin below. If counts in both bins are distributed as k**-s, the upper bin has
    2**(1 - s) times the rows of the lower bin; this gives the slope between two bins. The slope of a bin is the mean of
    the slopes between it and its two neighbours or, if `is_steep`, their maximum. An empty neighbour is ignored, but if
    `is_steep`, an empty bin above gives `_STEEPEST`.
    """
    found = np.ones(NUM_REUSE_BINS)
    for place in range(2, NUM_REUSE_BINS):
        below, own, above = rows[place - 1], rows[place], rows[place + 1] if place < NUM_REUSE_BINS - 1 else 0.0
        if own > 0:
            slopes = [1.0 - np.log2(own / below)] if below > 0 else []
            slopes += [1.0 - np.log2(above / own)] if above > 0 else [_STEEPEST] if is_steep else []
            found[place] = (max if is_steep else np.mean)(slopes or [1.0])
    return np.arange(NUM_REUSE_BINS), np.clip(found, -_STEEPEST, _STEEPEST)


def _counts_of_bin(place: int, slope: float) -> tuple[FloatArray, FloatArray]:
    """All counts of a reuse bin, and the share of its rows that have each count, proportional to count**-slope."""
    counts = np.arange(LOWEST_COUNTS[place], HIGHEST_COUNTS[place] + 1, dtype=float)
    weights = (counts / counts[0]) ** -slope
    return counts, weights / weights.sum()


def _later_lookups(thresholds: IntArray, rows: ArrayLike, ids: ArrayLike, rows_at: ArrayLike) -> FloatArray:
    """A cautious estimate of L (see the top of this file) for every threshold a, (T,).

    `rows` have at least `a` lookups, `ids` looked them up, and `rows_at` have exactly `a` lookups, (T,) each. Good's
    estimate subtracts `a * rows_at` from `ids`. Here, `rows_at` is first raised by two standard errors, but no more
    than `_STANDARD_ERRORS * sqrt(a)` is subtracted for each of the `rows`.
    """
    at = np.asarray(rows_at, dtype=float)
    lost = np.minimum(
        thresholds * (at + 2.0 * np.sqrt(at + 1.0)), _STANDARD_ERRORS * np.sqrt(thresholds) * np.asarray(rows)
    )
    return np.asarray(ids) - lost


def _curve(rows: ArrayLike, shares: ArrayLike, num_embeddings: int) -> PopularityCurve:
    """The smallest concave curve from (0, 0) to (`num_embeddings`, 1) that is nowhere below the given points.

    A point below the line between two other points is left out. The line can be reached: if rows between the two points
    are chosen at random, their expected share is on the line.
    """
    of_rows = np.concatenate([[0.0], np.minimum(rows, num_embeddings), [float(num_embeddings)]])
    of_shares = np.concatenate([[0.0], np.clip(shares, 0.0, 1.0), [1.0]])
    order = np.lexsort((-of_shares, of_rows))
    hull: list[tuple[float, float]] = []
    for x, y in zip(of_rows[order].tolist(), of_shares[order].tolist(), strict=True):
        if hull and x <= hull[-1][0]:
            continue
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return PopularityCurve(*np.array(hull).T)


def _is_below(left: tuple[float, float], point: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether a point lies on or below the line between its neighbours."""
    return (point[1] - left[1]) * (right[0] - left[0]) <= (right[1] - left[1]) * (point[0] - left[0])
