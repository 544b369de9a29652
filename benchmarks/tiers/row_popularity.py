"""Sequence tables whose row popularity has a stated distribution.

A reuse profile says how often the rows of one batch are looked up, but not which rows the next batch looks up. Tiers,
which copy popular rows to every rank or host, save time only if popular rows stay popular. Here, ids are independent
draws from one distribution over the rows of a table, so that all batches share their popular rows.

Shape: K buckets (classes) of equally popular rows.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.augment.published import BATCH_SIZE, INDICES, MEAN_NUM_EMBEDDINGS, TABLES, rows_per_table
from neuroshard_pipeline.errors import TaskError, did_you_mean
from neuroshard_pipeline.tables.ids import apportion
from neuroshard_pipeline.tables.profile import expected_rows, zipf_buckets
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS

#: Exponents of Zipf's law: the k-th most popular row has a popularity proportional to k**-exponent.
ZIPF_EXPONENTS: dict[str, float] = {"steep": 1.2, "flat": 0.7}

#: Names of the distributions.
POPULARITIES: tuple[str, ...] = ("published", *ZIPF_EXPONENTS)

#: Lookups per batch of a row, for each class of equally popular rows: from 1/256 to beyond the edge of the last bin.
_CLASS_COUNTS: FloatArray = 2.0 ** np.arange(-8, 16.5, 0.5)
#: Weights of three terms of the fit: the shares of ids of all classes sum to 1, the rows of all classes sum to those of
#: the table, and the shares of ids are smooth over the classes.
_SUM_WEIGHT, _ROWS_WEIGHT, _SMOOTHNESS = 10.0, 0.3, 0.1


@dataclass(frozen=True)
class RowPopularity:
    """How the ids of a table are distributed over its rows.

    Attributes:
        rows: number of rows of each bucket, (K,); the most popular bucket comes first.
        popularity: probability that one id looks up a given row of the bucket, (K,); `rows @ popularity` is 1.
    """

    rows: IntArray
    popularity: FloatArray

    @property
    def num_rows(self) -> int:
        """Number of rows of all buckets."""
        return int(self.rows.sum())

    def share_of(self, rows: float) -> float:
        """Share of the ids that look up the `rows` most popular rows."""
        ends = np.append(0, np.cumsum(self.rows))
        return float(np.interp(rows, ends, np.append(0.0, np.cumsum(self.rows * self.popularity))))

    def profile(self, indices: int) -> tuple[float, tuple[float, ...]]:
        """Expected unique rows of `indices` ids, and the shares of these rows in the 17 reuse bins."""
        found = expected_rows(self.rows.astype(np.float64), self.popularity, indices)
        return float(min(found.sum(), self.num_rows, indices)), tuple((found / found.sum()).tolist())


@lru_cache(maxsize=1024)
def row_popularity(name: str, num_embeddings: int) -> RowPopularity:
    """The distribution called `name` (one of `POPULARITIES`) over `num_embeddings` rows.

    `published`: if a table of `MEAN_NUM_EMBEDDINGS` rows gets as many ids as an average table of a published batch, its
    expected reuse histogram is the published one, in which 2 % of the distinct rows get 49 % of the ids and 12 % get
    72 %. A table of another size has the same share of its rows in every class. `steep` and `flat` follow Zipf's law
    (`ZIPF_EXPONENTS`).

    Raises:
        TaskError: no distribution has this name.
    """
    if name not in POPULARITIES:
        known = ", ".join(POPULARITIES)
        raise TaskError(f"popularity {name!r} is unknown; use one of {known}{did_you_mean(name, POPULARITIES)}")
    if name in ZIPF_EXPONENTS:
        rows, popularity = zipf_buckets(num_embeddings, ZIPF_EXPONENTS[name])
    else:
        shares, popularity = _published_classes()
        rows = shares * num_embeddings
    whole = apportion(num_embeddings, rows)
    order = np.argsort(-popularity, kind="stable")
    order = order[whole[order] > 0]
    popularity = popularity[order] / (whole[order] @ popularity[order])
    return RowPopularity(whole[order], popularity)


@lru_cache(maxsize=1)
def _published_classes() -> tuple[FloatArray, FloatArray]:
    """Shares of a table's rows in each class of popularity, and the popularities, which the caller must normalise.

    Each row of a class is looked up Binomial(N, p) times, where N is the mean number of ids of a table in a published
    batch. The classes' shares of ids are the smoothest ones that reproduce the published rows of every reuse bin (least
    squares of relative errors, shares not negative, second differences penalised).
    """
    from scipy.optimize import nnls  # imported late: this takes a third of a second

    indices, target = round(INDICES / TABLES), rows_per_table(BATCH_SIZE)
    popularity = _CLASS_COUNTS / indices
    of_class = np.array([expected_rows(np.ones(1), np.array([p]), indices) for p in popularity]).T  # (17, K)
    bins = of_class / popularity / target[:, None]
    smooth = _SMOOTHNESS * np.diff(np.eye(len(popularity)), n=2, axis=0)
    sums = _SUM_WEIGHT * np.ones((1, len(popularity)))
    rows = _ROWS_WEIGHT / (popularity * MEAN_NUM_EMBEDDINGS)
    wanted = np.concatenate([np.ones(NUM_REUSE_BINS), np.zeros(len(smooth)), [_SUM_WEIGHT], [_ROWS_WEIGHT]])
    ids, _ = nnls(np.vstack([bins, smooth, sums, rows]), wanted, maxiter=10_000)
    shares = ids / popularity
    return shares / shares.sum(), popularity
