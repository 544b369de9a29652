"""Reuse profiles: how often the rows of a table are looked up by one batch, measured or assumed.

Shapes: N ids of a batch, K buckets of rows of similar popularity.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.table import MAX_NUM_EMBEDDINGS, NUM_REUSE_BINS, REUSE_BIN_EDGES, Table

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Popularity of the k-th most popular row of a table that nothing is known about: proportional to k**-exponent.
#: An assumption. This exponent is the one at which a table with the mean rows (4 million, see `tables.pool`) and the
#: mean pooling factor (15.81) of the published pool has its mean number of unique rows (150,042) at its batch
#: of 65536, see `tables.published`; a test solves for it again.
DEFAULT_POPULARITY_EXPONENT = 1.128

#: Ranks below this are integrated one by one, ranks above in buckets an eighth of an octave wide.
_EXACT_RANKS = 256
_BUCKETS_PER_OCTAVE = 8


def reuse_bin(counts: IntArray) -> IntArray:
    """Index of the reuse bin of every look-up count (at least 1), same shape."""
    return np.searchsorted(REUSE_BIN_EDGES, counts, side="left")


def reuse_histogram(indices: IntArray) -> tuple[int, FloatArray, FloatArray]:
    """What a batch's ids look like: the measured counterpart of a reuse profile.

    Args:
        indices: the ids of one batch of one table, (N,).

    Returns:
        The number of unique rows, the share of unique rows in each reuse bin (17,), and the share of ids that
        look up rows of each bin (17,). Without ids, 0 and zeros.
    """
    counts = row_counts(indices)
    bins = reuse_bin(counts)
    rows = np.bincount(bins, minlength=NUM_REUSE_BINS).astype(np.float64)
    ids = np.bincount(bins, weights=counts, minlength=NUM_REUSE_BINS)
    return len(counts), rows / max(rows.sum(), 1.0), ids / max(ids.sum(), 1.0)


def row_counts(indices: IntArray) -> IntArray:
    """How often each row that occurs in `indices` (N,) occurs there, by ascending row number."""
    ordered = np.sort(indices)
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    return np.diff(starts, append=len(ordered))


def batch_indices(pooling_factor: float, batch_size: int) -> int:
    """Number of ids of one batch, N = round(batch_size * pooling_factor)."""
    return round(batch_size * pooling_factor)


@lru_cache(maxsize=65536)
def default_profile(num_embeddings: int, pooling_factor: float, batch_size: int) -> tuple[float, tuple[float, ...]]:
    """Expected unique rows and reuse shares of a table that nothing else is known about.

    Assumes that N = batch_size * pooling_factor ids are independent draws with popularity proportional to
    rank**-`DEFAULT_POPULARITY_EXPONENT`. A row of popularity p then is looked up Binomial(N, p) times, and the
    expectations are sums over rows, taken over buckets of ranks: about 300 terms for 40 million rows.

    Returns:
        Unique rows (at most `num_embeddings`) and 17 shares of them that sum to 1.

    Raises:
        TaskError: a value is not positive or absurd.
    """
    if not 1 <= num_embeddings <= MAX_NUM_EMBEDDINGS or not pooling_factor > 0 or batch_size < 1:
        raise TaskError(
            f"no reuse profile for num_embeddings {num_embeddings}, pooling_factor {pooling_factor} and batch_size "
            f"{batch_size}: all three must be positive, num_embeddings at most {MAX_NUM_EMBEDDINGS}"
        )
    indices = max(batch_indices(pooling_factor, batch_size), 1)
    rows, popularity = zipf_buckets(num_embeddings, DEFAULT_POPULARITY_EXPONENT)
    rows_of_bin = expected_rows(rows, popularity, indices)
    unique_rows = float(min(rows_of_bin.sum(), num_embeddings, indices))
    return unique_rows, tuple((rows_of_bin / rows_of_bin.sum()).tolist())


def with_profile(table: Table, batch_size: int) -> Table:
    """`table` itself where its reuse profile is known, else a copy with the default one for `batch_size`."""
    if table.has_profile:
        return table
    unique_rows, reuse = default_profile(table.num_embeddings, table.pooling_factor, batch_size)
    return replace(table, unique_rows=unique_rows, reuse=reuse)


def zipf_buckets(num_embeddings: int, exponent: float) -> tuple[FloatArray, FloatArray]:
    """Rows with popularity proportional to rank**-exponent, in buckets of similar popularity.

    Returns:
        Rows per bucket (K,), summing to `num_embeddings`, and the mean popularity of one row of each bucket (K,).
        The popularity of all rows sums to 1.
    """
    exact = np.arange(min(num_embeddings, _EXACT_RANKS) + 1, dtype=np.float64)  # edges: bucket k holds ranks k+1..
    octaves = max(np.log2(num_embeddings / exact[-1]), 0.0)
    steps = int(np.ceil(octaves * _BUCKETS_PER_OCTAVE))
    wide = np.unique(np.round(exact[-1] * 2.0 ** (np.arange(1, steps + 1) * octaves / max(steps, 1))))
    edges = np.concatenate([exact, wide])
    rows = np.diff(edges)
    weight = edges[1:] ** -exponent
    inner = rows > 1
    low, high = edges[:-1][inner] + 0.5, edges[1:][inner] + 0.5
    weight[inner] = (high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent) / (high - low)
    return rows, weight / (rows * weight).sum()


def expected_rows(rows: FloatArray, popularity: FloatArray, indices: int) -> FloatArray:
    """Expected number of rows in every reuse bin (17,) when `indices` ids are drawn independently.

    Args:
        rows: rows per bucket, (K,).
        popularity: probability that one id is a given row of the bucket, (K,).
        indices: number of ids of the batch.
    """
    edges = np.array((0, *REUSE_BIN_EDGES), dtype=np.float64)[:, None]  # (17, 1)
    # P(Binomial(n, p) > k) is the regularised incomplete beta function I_p(k + 1, n - k) [DLMF 8.17.5].
    above = betainc(edges + 1, np.maximum(indices - edges, 1), np.minimum(popularity, 1.0)[None, :])  # (17, K)
    above[edges[:, 0] >= indices] = 0.0
    return np.maximum(-np.diff(above, axis=0, append=0.0), 0.0) @ rows
