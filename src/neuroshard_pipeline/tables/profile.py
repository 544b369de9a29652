"""Reuse profiles, measured or assumed: how often one batch looks up the rows of a table.

Shapes: N ids of a batch, K buckets of rows of similar popularity.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.special import betainc

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.table import MAX_NUM_EMBEDDINGS, NUM_REUSE_BINS, REUSE_BIN_EDGES, Table

#: Exponent of the assumed popularity: one id is the k-th most popular row with a probability proportional to
#: k**-exponent. With it, a table of the mean rows and pooling factor of `augment.published` (4 million, 15.81) has the
#: mean number of unique rows (150,042 at batch size 65536). A test verifies the exponent.
DEFAULT_POPULARITY_EXPONENT = 1.128

#: Number of most popular rows that have a bucket each. Every other bucket spans at most 1/8 octave, up to rounding.
_EXACT_RANKS = 256
_BUCKETS_PER_OCTAVE = 8

#: A pooling factor is at most this factor too small if it was rounded, even to one digit (1.499 → 1).
_MOST_ROUNDING = 1.5
#: Profile and pooling factor contradict each other if their numbers of ids differ by more than this share.
_LARGEST_DIFFERENCE = 0.1


def reuse_bin(counts: IntArray | np.int64) -> IntArray:
    """Index of the reuse bin of every lookup count; counts are at least 1."""
    return np.searchsorted(REUSE_BIN_EDGES, counts, side="left")


def reuse_histogram(indices: IntArray) -> tuple[int, FloatArray, FloatArray]:
    """The reuse profile of the ids (N,) of one batch of one table.

    Returns:
        The number of unique rows, the share of unique rows in each reuse bin (17,), and the share of ids that look up
        rows of each bin (17,). All of them are 0 for an empty batch.
    """
    rows, ids = reuse_counts(indices)
    return int(rows.sum()), rows / max(rows.sum(), 1.0), ids / max(ids.sum(), 1.0)


def reuse_counts(indices: IntArray) -> FloatArray:
    """Number of unique rows in every reuse bin, and number of the ids (N,) that look up these rows: (2, 17)."""
    counts = np.unique(indices, return_counts=True)[1]
    bins = reuse_bin(counts)
    return np.stack([np.bincount(bins, weights, NUM_REUSE_BINS) for weights in (np.ones(len(counts)), counts)])


def batch_indices(pooling_factor: float, batch_size: int) -> int:
    """Number of ids of one batch, N = round(batch_size * pooling_factor)."""
    return round(batch_size * pooling_factor)


@lru_cache(maxsize=65536)
def default_profile(num_embeddings: int, pooling_factor: float, batch_size: int) -> tuple[float, tuple[float, ...]]:
    """Expected unique rows and reuse shares of a table without a known profile.

    The N = batch_size * pooling_factor ids are assumed to be independent draws, and the popularity of the k-th most
    popular row to be proportional to k**-`DEFAULT_POPULARITY_EXPONENT`. A row of popularity p is then looked up
    Binomial(N, p) times. The expectations are sums over buckets of similar rows: 395 buckets for 40 million rows.

    Returns:
        The number of unique rows (at most `num_embeddings`), and their shares in the 17 reuse bins, which sum to 1.

    Raises:
        TaskError: a value is not positive, or there are too many rows.
    """
    if not 1 <= num_embeddings <= MAX_NUM_EMBEDDINGS or not pooling_factor > 0 or batch_size < 1:
        raise TaskError(
            f"no reuse profile for num_embeddings {num_embeddings}, pooling_factor {pooling_factor} and batch_size "
            f"{batch_size}: all three must be positive, and num_embeddings at most {MAX_NUM_EMBEDDINGS}"
        )
    indices = max(batch_indices(pooling_factor, batch_size), 1)
    rows, popularity = zipf_buckets(num_embeddings, DEFAULT_POPULARITY_EXPONENT)
    rows_of_bin = expected_rows(rows, popularity, indices)
    unique_rows = float(min(rows_of_bin.sum(), num_embeddings, indices))
    return unique_rows, tuple((rows_of_bin / rows_of_bin.sum()).tolist())


def with_profile(table: Table, batch_size: int) -> Table:
    """`table` itself if its reuse profile is known, otherwise a copy with the default profile for `batch_size`."""
    return table if table.has_profile else _completed(table, batch_size)


@lru_cache(maxsize=2**14)
def _completed(table: Table, batch_size: int) -> Table:
    unique_rows, reuse = default_profile(table.num_embeddings, table.pooling_factor, batch_size)
    return replace(table, unique_rows=unique_rows, reuse=reuse, has_assumed_profile=True)


def is_assumed(table: Table) -> bool:
    """Whether the reuse profile is the default one, or still has to be given by `with_profile`."""
    return table.has_assumed_profile or not table.has_profile


def profile_problems(table: Table, batch_size: int) -> Iterator[str]:
    """A sentence if a batch cannot have as many unique rows as the profile says, whatever rounding is in the values."""
    ids = batch_size * table.pooling_factor
    if table.tier is None and (table.unique_rows or 0.0) > _MOST_ROUNDING * ids + 1.0:
        yield (
            f"table {table.name!r}: unique_rows {table.unique_rows} is above the {ids:.10g} ids of a batch (batch_size "
            f"{batch_size} x pooling_factor {table.pooling_factor}); count the profile in batches of this size"
        )


def contradiction(table: Table, batch_size: int) -> str:
    """How many ids a batch has by the profile and by the pooling factor; empty if they are about the same number.

    A row in the bin (low, high] has more than `low` and at most `high` lookups; the last bin has no upper limit.
    """
    if table.unique_rows is None or table.reuse is None:
        return ""
    ids, edges = batch_size * table.pooling_factor, np.array((0, *REUSE_BIN_EDGES, np.inf))
    rows = table.unique_rows * np.array(table.reuse)
    least, most = rows @ (edges[:-1] + 1), rows[rows > 0] @ edges[1:][rows > 0]
    nearest = min(max(ids, least), most)
    if abs(nearest - ids) <= _LARGEST_DIFFERENCE * min(nearest, ids) + 1.0:
        return ""
    bound = "at least" if nearest > ids else "at most"
    return f"{bound} {nearest:,.0f} ids per batch by its profile, {ids:,.0f} by its pooling factor"


def zipf_buckets(num_embeddings: int, exponent: float) -> tuple[FloatArray, FloatArray]:
    """Group rows by popularity; the popularity of the k-th most popular row is proportional to k**-exponent.

    Returns:
        Rows per bucket (K,), which sum to `num_embeddings`, and the mean popularity of one row of each bucket (K,).
        The popularities of all rows sum to 1.
    """
    exact = np.arange(min(num_embeddings, _EXACT_RANKS) + 1, dtype=np.float64)  # bucket k starts after edge k
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
    """Expected number of rows in every reuse bin (17,) if `indices` ids are drawn independently.

    `rows` are the rows per bucket (K,), `popularity` the probability that one id is a given row of the bucket (K,).
    """
    edges = np.array((0, *REUSE_BIN_EDGES), dtype=np.float64)[:, None]  # (17, 1)
    # P(Binomial(n, p) > k) is the regularised incomplete beta function I_p(k + 1, n - k) [DLMF 8.17.5].
    above = betainc(edges + 1, np.maximum(indices - edges, 1), np.minimum(popularity, 1.0)[None, :])  # (17, K)
    above[edges[:, 0] >= indices] = 0.0
    return np.maximum(-np.diff(above, axis=0, append=0.0), 0.0) @ rows
