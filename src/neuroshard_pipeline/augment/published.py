"""Statistics that Meta published about its synthetic lookup data; generated pools have the same statistics.

They are histograms over reuse bins: a bin holds the rows of a batch that are looked up about equally often. Source:
facebookresearch/dlrm_datasets, embedding_bag/2021/locality_stats.txt, the line of the 16 merged files (856 tables,
global batch 65536). The file rounds shares to three decimals, so that the share of rows is 0 in bins with few,
frequently used rows. `rows_per_table` therefore derives rows of high bins from the ids and a typical lookup count.
"""

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.tables.ids import HIGHEST_COUNTS, LOWEST_COUNTS
from neuroshard_pipeline.tables.profile import reuse_bin
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS

#: Mean number of rows of a table. This is an assumption, because the statistics do not contain it: 856 tables of this
#: size and width 64 have 0.9 TB of fp32 weights, the order of magnitude of published production models.
MEAN_NUM_EMBEDDINGS = 4.0e6
#: Number of rows of the largest tables. This is also an assumption; the number is that of MLPerf DLRM-v2.
MAX_NUM_EMBEDDINGS = 40e6


#: Number of tables, global batch size, and numbers of ids and of unique rows of all tables together.
TABLES = 856
BATCH_SIZE = 65536
INDICES = 887_017_990
UNIQUE_ROWS = 128_435_723

#: Shares of unique rows and of ids in every reuse bin, (17,).
SHARE_OF_UNIQUE_ROWS: FloatArray = np.array(
    [0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001, *(0.0,) * 7]
)
SHARE_OF_INDICES: FloatArray = np.array([
    0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052,
    0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019,
])  # fmt: skip

#: Assumed position of a bin's mean lookup count within the bin: 0 is the bin's lowest count, 1 its highest. It is 0.36
#: to 0.41 in bins 2 to 6, whose published shares have enough digits to compute it.
_LEVEL_WITHIN_BIN = 0.385

#: Mean number of lookups of a row in each reuse bin, (17,).
MEAN_COUNTS: FloatArray = LOWEST_COUNTS + _LEVEL_WITHIN_BIN * (HIGHEST_COUNTS - LOWEST_COUNTS)

#: Below this bin, the number of rows follows from the published share of unique rows; from this bin on, from the ids.
_FIRST_BIN_FROM_INDICES = 7


def highest_bin(batch_size: int) -> int:
    """The highest reuse bin of a pool for `batch_size`: the bin of a row that every sample looks up once.

    Published rows that are looked up more often have no counterpart in a smaller batch. Their ids are moved to this bin
    ("folding"), which keeps pooling factors and the share of ids in every lower bin.
    """
    return NUM_REUSE_BINS - 1 if batch_size >= BATCH_SIZE else int(reuse_bin(np.int64(batch_size)))


def fold(shares: FloatArray, batch_size: int) -> FloatArray:
    """`shares` (..., 17) with the shares of all bins above `highest_bin` added to that bin."""
    last = highest_bin(batch_size)
    folded = np.array(shares, dtype=np.float64)
    folded[..., last] += folded[..., last + 1 :].sum(axis=-1)
    folded[..., last + 1 :] = 0.0
    return folded


def rows_per_table(batch_size: int) -> FloatArray:
    """Mean unique rows of a table in every reuse bin, (17,), for a batch of `batch_size`.

    The number of rows is proportional to the batch size, so that reuse does not change. Ids of folded bins are
    converted to rows of the highest bin.
    """
    shrink = batch_size / BATCH_SIZE / TABLES
    indices = fold(SHARE_OF_INDICES, batch_size) * INDICES * shrink
    rows = SHARE_OF_UNIQUE_ROWS * UNIQUE_ROWS * shrink
    first = min(_FIRST_BIN_FROM_INDICES, highest_bin(batch_size))
    rows[first:] = indices[first:] / MEAN_COUNTS[first:]
    return rows
