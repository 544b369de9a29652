"""Draws lookup ids for the tables of a pool and compares their reuse histograms with the published ones."""

from itertools import pairwise

import numpy as np
import pandas as pd

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.augment.published import highest_bin, published_shares
from neuroshard_pipeline.tables.frames import tables_from_frame
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import reuse_counts
from neuroshard_pipeline.tables.table import REUSE_BIN_EDGES, Table

#: Labels of the reuse bins on an axis: 1, 2, 3-4, ... 16385-32768, >32768.
BIN_LABELS = (
    "1",
    "2",
    *(f"{low + 1}-{high}" for low, high in pairwise(REUSE_BIN_EDGES[1:])),
    f">{REUSE_BIN_EDGES[-1]}",
)


def drawn_counts(table: Table, batch_size: int, seed: int) -> FloatArray:
    """Draw the ids of one table. Returns the numbers of unique rows and of ids per reuse bin, (2, 17)."""
    return reuse_counts(draw_ids(table, batch_size, seed).indices)


def cumulative_shares(counts: FloatArray, batch_size: int) -> dict[str, dict[str, FloatArray]]:
    """Published and drawn cumulative histograms of `unique_rows` and `indices`, (17,) each; `counts` (2, 17): drawn."""
    both = zip(("unique_rows", "indices"), published_shares(batch_size), counts, strict=True)
    return {
        name: {"published": np.cumsum(shares), "drawn": np.cumsum(drawn) / drawn.sum()} for name, shares, drawn in both
    }


def reuse_comparison_frame(pool: pd.DataFrame, batch_size: int, seed: int) -> pd.DataFrame:
    """Published and drawn cumulative reuse histograms of all tables of a pool except derived and public ones.

    Returns:
        `bin_label, source, quantity, cumulative_share`: `source` is `published` or `drawn`; `quantity` is
        `unique_rows` or `indices`. Each combination has one row per bin up to `highest_bin(batch_size)`.
    """
    tables = tables_from_frame(generated_tables(pool))
    counts = np.sum([drawn_counts(table, batch_size, seed) for table in tables], axis=0)
    rows = [
        (label, source, quantity, float(share))
        for quantity, both in cumulative_shares(counts, batch_size).items()
        for source, cumulative in both.items()
        for label, share in zip(BIN_LABELS[: highest_bin(batch_size) + 1], cumulative, strict=False)
    ]
    return pd.DataFrame(rows, columns=["bin_label", "source", "quantity", "cumulative_share"])
