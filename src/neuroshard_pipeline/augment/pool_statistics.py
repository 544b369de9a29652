"""Compares ids drawn for a pool with what is published: the test that a generated pool is shaped like the real one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.augment.published import DLRM_DATASETS_2021, highest_bin, published_shares
from neuroshard_pipeline.tables.frames import tables_from_frame
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import reuse_bin, row_counts
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, REUSE_BIN_EDGES, Table

FloatArray = NDArray[np.float64]

#: How near the drawn ids must come: relative for the two means, absolute for both cumulative histograms.
POOLING_TOLERANCE = 0.03
UNIQUE_ROWS_TOLERANCE = 0.10
HISTOGRAM_TOLERANCE = 0.03


@dataclass(frozen=True)
class PoolStatistics:
    """Sums over the ids of one batch of several tables.

    Attributes:
        batch_size: global batch.
        tables: how many tables were drawn.
        rows_by_bin: unique rows in every reuse bin, (17,).
        indices_by_bin: ids that look up rows of every reuse bin, (17,).
    """

    batch_size: int
    tables: int
    rows_by_bin: FloatArray
    indices_by_bin: FloatArray

    @property
    def mean_pooling_factor(self) -> float:
        """Ids per sample and table."""
        return float(self.indices_by_bin.sum()) / self.tables / self.batch_size

    @property
    def unique_rows_per_table(self) -> float:
        """Mean number of unique rows of a table."""
        return float(self.rows_by_bin.sum()) / self.tables

    @property
    def pooling_error(self) -> float:
        """Relative difference of the mean pooling factor from the published one."""
        return self.mean_pooling_factor / DLRM_DATASETS_2021.mean_pooling_factor - 1.0

    @property
    def unique_rows_error(self) -> float:
        """Relative difference of unique rows per table from the published ones, which shrink with the batch."""
        shrink = self.batch_size / DLRM_DATASETS_2021.batch_size
        return self.unique_rows_per_table / (DLRM_DATASETS_2021.unique_rows_per_table * shrink) - 1.0

    @property
    def cumulative_shares(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Published and drawn cumulative histogram, (17,) each, of `unique_rows` and of `indices`."""
        published = published_shares(self.batch_size)
        drawn = (self.rows_by_bin, self.indices_by_bin)
        return {
            name: (np.cumsum(shares), np.cumsum(counts) / counts.sum())
            for name, shares, counts in zip(("unique_rows", "indices"), published, drawn, strict=True)
        }

    @property
    def histogram_errors(self) -> dict[str, float]:
        """Largest difference of the cumulative histograms over all bins, for `unique_rows` and `indices`."""
        return {name: float(np.abs(drawn - want).max()) for name, (want, drawn) in self.cumulative_shares.items()}

    @property
    def problems(self) -> list[str]:
        """What is out of tolerance, in words; empty where the pool has the published shape."""
        problems = []
        if abs(self.pooling_error) > POOLING_TOLERANCE:
            problems.append(f"mean pooling factor is off by {self.pooling_error:+.1%}")
        if abs(self.unique_rows_error) > UNIQUE_ROWS_TOLERANCE:
            problems.append(f"unique rows per table are off by {self.unique_rows_error:+.1%}")
        for name, error in self.histogram_errors.items():
            if error > HISTOGRAM_TOLERANCE:
                problems.append(f"the cumulative reuse histogram of {name} is off by {error:.3f}")
        return problems


def table_statistics(table: Table, batch_size: int, seed: int) -> PoolStatistics:
    """Draw the ids of one table and count them."""
    counts = row_counts(draw_ids(table, batch_size, seed).indices)
    bins = reuse_bin(counts)
    return PoolStatistics(
        batch_size=batch_size,
        tables=1,
        rows_by_bin=np.bincount(bins, minlength=NUM_REUSE_BINS).astype(np.float64),
        indices_by_bin=np.bincount(bins, weights=counts, minlength=NUM_REUSE_BINS).astype(np.float64),
    )


def merged(statistics: Iterable[PoolStatistics]) -> PoolStatistics:
    """Sum of statistics that belong to one batch size."""
    every = list(statistics)
    return PoolStatistics(
        batch_size=every[0].batch_size,
        tables=sum(one.tables for one in every),
        rows_by_bin=np.sum([one.rows_by_bin for one in every], axis=0),
        indices_by_bin=np.sum([one.indices_by_bin for one in every], axis=0),
    )


def pool_statistics(
    pool: pd.DataFrame, batch_size: int, seed: int, tables: Sequence[str] | None = None
) -> PoolStatistics:
    """Draw the ids of a pool's generated tables (or of some of them, by name) and count them."""
    pool = generated_tables(pool)
    chosen = pool if tables is None else pool[pool["table"].isin(tables)]
    return merged(table_statistics(table, batch_size, seed) for table in tables_from_frame(chosen))


def reuse_comparison_frame(pool: pd.DataFrame, batch_size: int, seed: int) -> pd.DataFrame:
    """Published and drawn reuse histograms side by side.

    Returns:
        `bin_label, source, quantity, cumulative_share`: source is `published` or `drawn`, quantity `unique_rows` or
        `indices`; one row per bin up to the highest that the batch size allows.
    """
    labels = BIN_LABELS[: highest_bin(batch_size) + 1]
    shares = pool_statistics(pool, batch_size, seed).cumulative_shares
    rows = [
        (label, source, quantity, float(share))
        for quantity, both in shares.items()
        for source, cumulative in zip(("published", "drawn"), both, strict=True)
        for label, share in zip(labels, cumulative, strict=False)
    ]
    return pd.DataFrame(rows, columns=["bin_label", "source", "quantity", "cumulative_share"])


#: What to call the reuse bins on an axis: 1, 2, 3-4, ... 16385-32768, >32768.
BIN_LABELS: tuple[str, ...] = (
    "1",
    "2",
    *(f"{low + 1}-{high}" for low, high in pairwise(REUSE_BIN_EDGES[1:])),
    f">{REUSE_BIN_EDGES[-1]}",
)
