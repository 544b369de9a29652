"""Sequence tables whose row popularity has a stated distribution, and ids that are drawn from it.

A reuse profile says how often the rows of one batch are looked up, but not which rows the next batch looks up. Tiers,
which copy popular rows to every rank or host, save time only if popular rows stay popular. Here, ids are independent
draws from one distribution over the rows of a table, so that all batches share their popular rows.

Shapes: K buckets (classes) of equally popular rows, N ids.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np
from scipy.optimize import nnls

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.augment.published import BATCH_SIZE, INDICES, MEAN_NUM_EMBEDDINGS, TABLES, rows_per_table
from neuroshard_pipeline.errors import TaskError, did_you_mean
from neuroshard_pipeline.tables.ids import TableIds, apportion, bag_lengths
from neuroshard_pipeline.tables.profile import batch_indices, expected_rows, zipf_buckets
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Table

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

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Places in the order of popularity, (N,), of `count` independent ids; 0 is the most popular row."""
        ends = np.cumsum(self.rows)
        bucket = np.searchsorted(np.cumsum(self.rows * self.popularity), rng.random(count), side="right")
        bucket = np.minimum(bucket, len(ends) - 1)
        within: IntArray = np.floor(rng.random(count) * self.rows[bucket]).astype(np.int64)
        return (ends - self.rows)[bucket] + within


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


@dataclass(frozen=True)
class SequenceIds:
    """The ids of a sequence table, whose row numbers are unrelated to the order of popularity.

    Attributes:
        table: the table.
        popularity: the distribution of its ids.
        swapped_share: share of the rows that have swapped their popularity with another row: the k-th most popular row
            swaps with the k-th row of the less popular half. It models another day; with 0, all days have the same
            popular rows.
    """

    table: Table
    popularity: RowPopularity
    swapped_share: float = 0.0

    def rows_at(self, places: IntArray) -> IntArray:
        """Row numbers of places in the order of popularity; a bijection of the table's rows."""
        size, half = self.table.num_embeddings, self.table.num_embeddings // 2
        pair = np.where(places < half, places, places - half)
        moves = (_mixed(pair) < self.swapped_share) & (places < 2 * half)
        places = np.where(moves, np.where(places < half, places + half, places - half), places)
        seed = crc32(self.table.name.encode())
        factor = next(number for number in range(1 + seed % 2**20, 2**22) if math.gcd(number, size) == 1)
        return (places * factor + seed) % size

    def popular_rows(self, count: int) -> IntArray:
        """Row numbers of the `count` most popular rows, hottest first."""
        return self.rows_at(np.arange(min(count, self.table.num_embeddings)))

    def draw(self, batch_size: int, seed: int) -> TableIds:
        """The ids of one batch; the fields of this object, `batch_size` and `seed` determine every id."""
        rng = np.random.default_rng([seed, crc32(self.table.name.encode()), batch_size])
        places = self.popularity.draw(batch_indices(self.table.pooling_factor, batch_size), rng)
        lengths = bag_lengths(len(places), batch_size, rng)
        return TableIds(self.rows_at(places), np.concatenate([[0], np.cumsum(lengths)]))


def _mixed(numbers: IntArray) -> FloatArray:
    """A fixed pseudo-random number in [0, 1) for each number (Knuth's multiplicative hash, 32 bits)."""
    return (numbers.astype(np.uint64) * np.uint64(2_654_435_761) % np.uint64(2**32)).astype(np.float64) / 2**32


def sequence_tables(
    name: str,
    lengths: Sequence[int],
    widths: Sequence[int],
    rows: Sequence[int],
    batch_size: int,
    prefix: str = "sequence",
) -> tuple[Table, ...]:
    """Sequence tables with the reuse profile that a popularity gives them.

    Tables of equal width are in one module, because an `EmbeddingCollection` of TorchRec holds tables of one width.

    Args:
        name: name of the popularity, one of `POPULARITIES`.
        lengths: mean number of ids per sample of every table.
        widths: `embedding_dim` of every table.
        rows: `num_embeddings` of every table.
        batch_size: global batch size, for which the profiles hold.
        prefix: first part of the names of tables and modules.

    Raises:
        TaskError: the popularity is unknown, or a value is impossible.
    """
    made = []
    for index, (length, width, size) in enumerate(zip(lengths, widths, rows, strict=True)):
        unique_rows, reuse = row_popularity(name, size).profile(batch_size * length)
        module = f"{prefix}s_of_width_{width}"
        statistics = float(length), unique_rows, reuse
        made.append(Table(f"{prefix}_{index}", size, width, *statistics, pooling="none", module=module))
    return tuple(made)
