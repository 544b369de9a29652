"""Draws lookup ids for the tables of a pool and compares their reuse histograms with the published ones."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.augment.published import (
    SHARE_OF_INDICES,
    SHARE_OF_UNIQUE_ROWS,
    fold,
    highest_bin,
    rows_per_table,
)
from neuroshard_pipeline.tables.frames import tables_from_frame
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import reuse_counts
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, REUSE_BIN_EDGES, Table

#: Labels of the reuse bins on an axis: 1, 2, 3-4, ... 16385-32768, >32768.
BIN_LABELS: tuple[str, ...] = (
    "1",
    "2",
    *(f"{low + 1}-{high}" for low, high in pairwise(REUSE_BIN_EDGES[1:])),
    f">{REUSE_BIN_EDGES[-1]}",
)


def published_shares(batch_size: int) -> tuple[FloatArray, FloatArray]:
    """Published shares of unique rows and of ids per reuse bin, (17,) each, folded for `batch_size` (`highest_bin`).

    Folding adds up shares of ids; the shares of rows follow from the numbers of rows (`rows_per_table`).
    """
    full = highest_bin(batch_size) == NUM_REUSE_BINS - 1
    rows = SHARE_OF_UNIQUE_ROWS if full else rows_per_table(batch_size)
    indices = fold(SHARE_OF_INDICES, batch_size)
    return rows / rows.sum(), indices / indices.sum()


@dataclass(frozen=True)
class PoolStatistics:
    """Numbers of unique rows and of ids per reuse bin, of one batch and summed over all tables.

    Attributes:
        batch_size: global batch size.
        tables: number of tables.
        rows_by_bin: number of unique rows in every reuse bin, (17,).
        indices_by_bin: number of ids that look up these rows, (17,).
    """

    batch_size: int
    tables: int
    rows_by_bin: FloatArray
    indices_by_bin: FloatArray

    @property
    def cumulative_shares(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Maps `unique_rows` and `indices` to their published and drawn cumulative histograms, (17,) each."""
        published = published_shares(self.batch_size)
        drawn = (self.rows_by_bin, self.indices_by_bin)
        return {
            name: (np.cumsum(shares), np.cumsum(counts) / counts.sum())
            for name, shares, counts in zip(("unique_rows", "indices"), published, drawn, strict=True)
        }


def drawn_counts(table: Table, batch_size: int, seed: int) -> FloatArray:
    """Draw the ids of one table. Returns the numbers of unique rows and of ids per reuse bin, (2, 17)."""
    return reuse_counts(draw_ids(table, batch_size, seed).indices)


def pool_statistics(pool: pd.DataFrame, batch_size: int, seed: int) -> PoolStatistics:
    """Draw and count the ids of all tables of a pool except derived and public tables."""
    tables = tables_from_frame(generated_tables(pool))
    rows, ids = np.sum([drawn_counts(table, batch_size, seed) for table in tables], axis=0)
    return PoolStatistics(batch_size, len(tables), rows, ids)
