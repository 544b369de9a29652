"""Known points of a popularity curve, as a table carries them, and as text: `80:0.41 1200:0.77`.

A point is a number of most popular rows and the share of the table's ids that look them up. Rows ascend. The curve is
linear from (0, 0) to the first point, between points, and from the last point to all rows and ids. It must be concave,
because more popular rows come first.
"""

from collections.abc import Iterator
from itertools import pairwise

#: Rows and share of the ids of every point.
CurvePoints = tuple[tuple[float, float], ...]

#: Rounding error of shares that does not count as a mistake.
_ROUNDING = 1e-9


def with_ends(points: CurvePoints, num_embeddings: int) -> CurvePoints:
    """(0, 0), the points, and (`num_embeddings`, 1) unless the last point has all rows."""
    end = (float(num_embeddings), 1.0)
    return ((0.0, 0.0), *points) if points and points[-1][0] == end[0] else ((0.0, 0.0), *points, end)


def scaled_points(points: CurvePoints, factor: float) -> CurvePoints:
    """The points if the table's number of rows is multiplied by `factor`."""
    return tuple((factor * rows, share) for rows, share in points)


def points_text(points: CurvePoints) -> str:
    """The points as text; `points_of_text` returns the same points."""
    return " ".join(f"{rows!r}:{share!r}" for rows, share in points)


def points_of_text(text: str) -> CurvePoints:
    """The points of a text such as `80:0.41 1200:0.77`.

    Raises:
        ValueError: the text does not have this form.
    """
    return tuple((float(rows), float(share)) for rows, share in (pair.split(":") for pair in text.split()))


def curve_problems(points: CurvePoints, num_embeddings: int) -> Iterator[str]:
    """Descriptions of why these are no points of a popularity curve of a table with `num_embeddings` rows."""
    if not points:
        yield "popularity has no points; give some, such as 80:0.41 1200:0.77, or leave it out"
    for (rows, share), (more, larger) in pairwise(with_ends(points, num_embeddings)):
        if not rows < more <= num_embeddings:  # also refuses NaN
            yield f"popularity: {more:g} rows come after {rows:g}; rows must ascend and be at most {num_embeddings}"
        if not share - _ROUNDING <= larger <= 1.0 + _ROUNDING:
            yield f"popularity: the share {larger:g} of {more:g} rows must be at least {share:g} and at most 1"
    if points and points[-1][0] == num_embeddings and abs(points[-1][1] - 1.0) > _ROUNDING:
        yield f"popularity: all {num_embeddings} rows must have the share 1, not {points[-1][1]:g}"
    ends = with_ends(points, num_embeddings)
    for (before, low), (rows, share), (after, high) in zip(ends, ends[1:], ends[2:], strict=False):
        if (high - share) * (rows - before) > (share - low) * (after - rows) + _ROUNDING * (after - before):
            yield f"popularity: rows after the first {rows:g} get more ids than these, per row; put popular rows first"
