"""Sequence tables with a known popularity of rows, and their ids."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from row_popularity import RowPopularity, row_popularity

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.tables.ids import TableIds, bag_lengths
from neuroshard_pipeline.tables.profile import batch_indices
from neuroshard_pipeline.tables.table import Table


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
        places = drawn_places(self.popularity, batch_indices(self.table.pooling_factor, batch_size), rng)
        lengths = bag_lengths(len(places), batch_size, rng)
        return TableIds(self.rows_at(places), np.concatenate([[0], np.cumsum(lengths)]))


def drawn_places(popularity: RowPopularity, count: int, rng: np.random.Generator) -> IntArray:
    """Places in the order of popularity, (N,), of `count` independent ids; 0 is the most popular row."""
    ends = np.cumsum(popularity.rows)
    bucket = np.searchsorted(np.cumsum(popularity.rows * popularity.popularity), rng.random(count), side="right")
    bucket = np.minimum(bucket, len(ends) - 1)
    within: IntArray = np.floor(rng.random(count) * popularity.rows[bucket]).astype(np.int64)
    return (ends - popularity.rows)[bucket] + within


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
