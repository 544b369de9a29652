"""Generates a pool of embedding tables shaped like Meta's public dlrm_datasets, at full scale or scaled down.

Single tables differ widely (pooling factor, unique rows, reuse), as real ones do; over all tables, totals and reuse
histograms are the published ones. Shapes: T tables, 17 reuse bins.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from neuroshard_pipeline.augment.published import (
    MAX_NUM_EMBEDDINGS,
    MEAN_COUNTS,
    MEAN_NUM_EMBEDDINGS,
    rows_per_table,
)
from neuroshard_pipeline.tables.table import REUSE_COLUMNS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Spread of the tables: standard deviations of natural logarithms, and limits. Assumptions, chosen for tables
#: from a few to millions of unique rows at full scale; the published statistics are sums over tables only.
_LOG_SPREAD_POOLING = 1.4
_LOG_SPREAD_REUSE = 1.5
_LOG_SPREAD_ROWS = 1.6
_LEAST_POOLING, _MOST_POOLING = 1.0, 200.0
_LEAST_REUSE = 1.05
#: No table's mean look-ups per row exceed this share of the batch size.
_MOST_REUSE_OF_BATCH = 0.3
_LEAST_UNIQUE_ROWS = 3.0

_FIT_ROUNDS = 30
_BISECTIONS = 60


class PoolParams(BaseModel):
    """What decides a generated pool.

    Attributes:
        num_tables: T; the published data has 856.
        batch_size: global batch that the profiles belong to. The published one is 65536; at a smaller batch, unique
            rows shrink with it, so that rows are looked up as often, and reuse bins above the batch size are folded
            into the highest one that is left (see `published.highest_bin`).
        row_scale: the tables' rows are those of full scale (about 4 million on average) divided by this.
        seed: decides every number of the pool.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_tables: int = Field(ge=2, le=100_000)
    batch_size: int = Field(ge=16, le=2**24)
    row_scale: float = Field(gt=0, le=1e6)
    seed: int = Field(ge=0)


def generate_pool(params: PoolParams) -> pd.DataFrame:
    """A pool of tables, one row each.

    Pooling factors and look-ups per unique row are drawn heavy-tailed. A table's rows per reuse bin follow the
    published histogram, tilted towards more or less reuse until the table's mean is met, and the bins are weighted
    until the sums over tables are the published ones. Whole rows are then dealt out bin by bin, which keeps the sums.

    Returns:
        `table, num_embeddings, pooling_factor, unique_rows, reuse_00 … reuse_16`. `tables.ids.draw_ids` draws the same
        ids from it whenever it is given the same seed and `batch_size`.
    """
    rng = np.random.default_rng(params.seed)
    per_table = rows_per_table(params.batch_size)
    indices, unique_rows = _draw_targets(params, per_table, rng)
    rows = _deal_whole_rows(_fit_rows(indices, unique_rows, per_table, rng), rng)
    unique = rows.sum(axis=1)
    pool = pd.DataFrame(
        {
            "table": [f"table_{index:03d}" for index in range(params.num_tables)],
            "num_embeddings": _draw_num_embeddings(unique, params, rng),
            "pooling_factor": np.maximum(np.round(rows @ MEAN_COUNTS), 1.0) / params.batch_size,
            "unique_rows": unique.astype(np.float64),
        }
    )
    return pd.concat([pool, pd.DataFrame(rows / unique[:, None], columns=list(REUSE_COLUMNS))], axis=1)


def generated_tables(pool: pd.DataFrame) -> pd.DataFrame:
    """The tables of a pool that were generated, as against derived and public ones (`variation`).

    They are those that are their own `origin`; all where no column says so.
    """
    if "origin" not in pool.columns:
        return pool
    return pool[pool["origin"] == pool["table"]].reset_index(drop=True)


def _draw_targets(params: PoolParams, per_table: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Ids and unique rows that every table aims at, (T,) each, with the published means."""
    mean_pooling = float(per_table @ MEAN_COUNTS) / params.batch_size
    pooling = np.exp(_LOG_SPREAD_POOLING * rng.standard_normal(params.num_tables))
    indices = _with_mean(pooling, mean_pooling, _LEAST_POOLING, _MOST_POOLING) * params.batch_size
    least = np.maximum(_LEAST_UNIQUE_ROWS, indices / (_MOST_REUSE_OF_BATCH * params.batch_size))
    reuse = np.exp(_LOG_SPREAD_REUSE * rng.standard_normal(params.num_tables))
    return indices, _with_mean(indices / reuse, float(per_table.sum()), least, indices / _LEAST_REUSE)


def _with_mean(values: FloatArray, mean: float, least: FloatArray | float, most: FloatArray | float) -> FloatArray:
    """`values` (T,) times one factor, clipped, such that their mean is `mean` (as near as the limits allow)."""
    low, high = -60.0, 60.0  # logarithm of the factor
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_small = np.clip(values * np.exp(middle), least, most).mean() < mean
        low, high = (middle, high) if too_small else (low, middle)
    return np.clip(values * np.exp((low + high) / 2), least, most)


def _fit_rows(
    indices: FloatArray, unique_rows: FloatArray, per_table: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Rows per table and reuse bin (T, 17): sums over tables are published, sums over bins nearly as targeted."""
    tables = len(indices)
    bins = np.arange(len(per_table))
    # Reuse differs in more than its mean: some tables have a few hot rows beside many cold ones, some neither.
    bend = 0.02 * rng.standard_normal(tables)[:, None] * (bins - _highest_bin(per_table) / 2) ** 2
    weight = per_table * np.exp(bend)
    for _ in range(_FIT_ROUNDS):
        rows = unique_rows[:, None] * tilted_shares(weight, indices / unique_rows)
        sums = rows.sum(axis=0)
        factor = np.divide(per_table * tables, sums, out=np.zeros_like(sums), where=sums > 0)
        weight = weight * factor
    return rows * factor


def _highest_bin(per_table: FloatArray) -> int:
    """The highest bin that has rows."""
    return int(np.flatnonzero(per_table)[-1])


def tilted_shares(weight: FloatArray, reuse: FloatArray) -> FloatArray:
    """Shares (T, 17) proportional to weight * exp(tilt * bin), each row's tilt such that its mean count is `reuse`.

    Args:
        weight: not negative, (17,) or (T, 17).
        reuse: look-ups per unique row, (T,).
    """
    bins = np.arange(weight.shape[-1])
    low, high = np.full(len(reuse), -8.0), np.full(len(reuse), 8.0)
    for _ in range(_BISECTIONS):
        tilt = (low + high) / 2
        shares = weight * np.exp(tilt[:, None] * bins)
        shares /= shares.sum(axis=1, keepdims=True)
        too_small = shares @ MEAN_COUNTS < reuse
        low, high = np.where(too_small, tilt, low), np.where(too_small, high, tilt)
    return shares


def _deal_whole_rows(rows: FloatArray, rng: np.random.Generator) -> IntArray:
    """Whole numbers (T, 17) near `rows` whose sums over tables are those of `rows` to within one row per bin."""
    reached = np.cumsum(rows, axis=0) + rng.random(rows.shape[1])
    dealt = np.diff(np.floor(reached), axis=0, prepend=0.0).astype(np.int64)
    empty = np.flatnonzero(dealt.sum(axis=1) == 0)
    dealt[empty, np.argmax(rows[empty], axis=1)] = 1
    return dealt


def _draw_num_embeddings(unique_rows: IntArray, params: PoolParams, rng: np.random.Generator) -> IntArray:
    """Rows of every table (T,): at least its unique rows, heavy-tailed, with the mean of full scale / `row_scale`."""
    unused = unique_rows.astype(np.float64) * np.exp(_LOG_SPREAD_ROWS * rng.standard_normal(len(unique_rows)))
    mean = max(MEAN_NUM_EMBEDDINGS / params.row_scale - float(unique_rows.mean()), 0.0)
    most = np.maximum(MAX_NUM_EMBEDDINGS / params.row_scale - unique_rows.astype(np.float64), 0.0)
    return unique_rows + np.round(_with_mean(unused, mean, 0.0, most)).astype(np.int64)
