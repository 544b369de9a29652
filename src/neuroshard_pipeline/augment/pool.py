"""The pool of embedding tables from which samples and tasks are drawn.

It is generated with the statistics of Meta's dlrm_datasets, or read from one of the files of dlrm_datasets.

Shapes: T tables, 17 reuse bins (see `tables.table.REUSE_BIN_EDGES`).
"""

import numpy as np
import pandas as pd
from pydantic import Field

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.augment.published import MAX_NUM_EMBEDDINGS, MEAN_COUNTS, MEAN_NUM_EMBEDDINGS, rows_per_table
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.dlrm_dataset import read_dlrm_dataset
from neuroshard_pipeline.tables.table import REUSE_COLUMNS

#: Spread over tables: standard deviations of the natural logarithms of the pooling factor, of the reuse, and of unused
#: rows per unique row, and limits. These are assumptions: only sums over tables are published. At full scale, tables
#: then have a few to millions of unique rows.
_LOG_SPREAD_POOLING = 1.4
_LOG_SPREAD_REUSE = 1.5
_LOG_SPREAD_ROWS = 1.6
_LEAST_POOLING, _MOST_POOLING = 1.0, 200.0
_LEAST_REUSE = 1.05
#: Upper limit of a table's mean lookups per unique row, as a share of the batch size.
_MOST_REUSE_OF_BATCH = 0.3
_LEAST_UNIQUE_ROWS = 3.0

_FIT_ROUNDS = 30
_BISECTIONS = 60
_TILT_ERROR = 1e-12


class PoolParams(Parameters):
    """Parameters of the table pool.

    Attributes:
        num_tables: number of tables, T; the published data has 856.
        batch_size: global batch size for which the profiles hold; the published one is 65536. With a smaller batch,
            unique rows of generated tables shrink in proportion, so that the lookups per row do not change. Reuse bins
            above the batch size are folded into the highest remaining bin (see `published.highest_bin`).
        row_scale: divisor of the tables' rows; with 1, a generated table has about 4 million rows on average.
        dlrm_dataset: path of a file of facebookresearch/dlrm_datasets that `base_pool` reads the tables from, or None
            for generated tables.
        seed: seed of all draws.
    """

    num_tables: int = Field(ge=2, le=100_000)
    batch_size: int = Field(ge=16, le=2**24)
    row_scale: float = Field(gt=0, le=1e6)
    dlrm_dataset: str | None = None
    seed: int = Field(ge=0)


def base_pool(params: PoolParams) -> pd.DataFrame:
    """The pool that `params` selects: the tables of `dlrm_dataset`, or generated ones.

    From a file, the pool takes the first `num_tables` of the tables that the first `batch_size` samples look up. The
    number of rows of a table is divided by `row_scale`, but is at least its number of unique rows.

    Returns:
        `table, num_embeddings, pooling_factor, unique_rows, reuse_00 … reuse_16`, one row per table.

    Raises:
        TableFileError: the file is missing, malformed or has fewer samples than `batch_size`.
    """
    if params.dlrm_dataset is None:
        return generate_pool(params)
    pool = read_dlrm_dataset(params.dlrm_dataset, params.batch_size).head(params.num_tables)
    rows = np.maximum(np.round(pool["num_embeddings"] / params.row_scale), pool["unique_rows"])
    return pool.assign(num_embeddings=rows.astype(np.int64))


def generate_pool(params: PoolParams) -> pd.DataFrame:
    """Generate a pool of tables; `params.dlrm_dataset` has no effect here.

    Tables differ widely, as real tables do; means over tables and their total reuse histogram are the published ones.
    Pooling factors and lookups per unique row have heavy-tailed distributions. The histogram of a table is the
    published one, tilted towards more or less reuse so that the table has its own mean reuse. The bins are then
    reweighted until their means over tables are the published ones. Rounding to whole rows nearly keeps these means.

    Returns:
        `table, num_embeddings, pooling_factor, unique_rows, reuse_00 … reuse_16`, one row per table. These columns
        determine the ids that `tables.ids.draw_ids` draws with a given seed and batch size.
    """
    rng = np.random.default_rng(params.seed)
    per_table = rows_per_table(params.batch_size)
    indices, unique_rows = _draw_targets(params, per_table, rng)
    rows = _round_rows(_fit_rows(indices, unique_rows, per_table, rng), rng)
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
    """The tables of a pool that come from `base_pool`, without derived and public tables (see `variation`).

    The `origin` of such a table is the table itself. All tables of a pool without the column `origin` are returned.
    """
    if "origin" not in pool.columns:
        return pool
    return pool[pool["origin"] == pool["table"]].reset_index(drop=True)


def _draw_targets(params: PoolParams, per_table: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Target numbers of ids and of unique rows per table, (T,) each; their means over tables are the published ones."""
    mean_pooling = float(per_table @ MEAN_COUNTS) / params.batch_size
    pooling = np.exp(_LOG_SPREAD_POOLING * rng.standard_normal(params.num_tables))
    indices = _with_mean(pooling, mean_pooling, _LEAST_POOLING, _MOST_POOLING) * params.batch_size
    least = np.maximum(_LEAST_UNIQUE_ROWS, indices / (_MOST_REUSE_OF_BATCH * params.batch_size))
    reuse = np.exp(_LOG_SPREAD_REUSE * rng.standard_normal(params.num_tables))
    return indices, _with_mean(indices / reuse, float(per_table.sum()), least, indices / _LEAST_REUSE)


def _with_mean(values: FloatArray, mean: float, least: FloatArray | float, most: FloatArray | float) -> FloatArray:
    """Scale `values` (T,) by one factor and clip them, so that their mean is as close to `mean` as the limits allow."""
    low, high = -60.0, 60.0  # logarithm of the factor
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_small = np.clip(values * np.exp(middle), least, most).mean() < mean
        low, high = (middle, high) if too_small else (low, middle)
    return np.clip(values * np.exp((low + high) / 2), least, most)


def _fit_rows(
    indices: FloatArray, unique_rows: FloatArray, per_table: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Rows per table and reuse bin (T, 17), close to the targets; the means over tables are the published ones."""
    tables = len(indices)
    bins = np.arange(len(per_table))
    # Tables of equal mean reuse differ, too: some have a few hot and many cold rows, others have rows of similar reuse.
    highest = int(np.flatnonzero(per_table)[-1])
    bend = 0.02 * rng.standard_normal(tables)[:, None] * (bins - highest / 2) ** 2
    weight = per_table * np.exp(bend)
    for _ in range(_FIT_ROUNDS):
        rows = unique_rows[:, None] * tilted_shares(weight, indices / unique_rows)
        sums = rows.sum(axis=0)
        factor = np.divide(per_table * tables, sums, out=np.zeros_like(sums), where=sums > 0)
        weight = weight * factor
    return rows * factor


def tilted_shares(weight: FloatArray, reuse: FloatArray) -> FloatArray:
    """Shares (T, 17) proportional to weight * exp(tilt * bin), with weights that are not negative, (17,) or (T, 17).

    The tilt of a table makes its mean number of lookups per unique row equal `reuse` (T,).
    """
    bins = np.arange(weight.shape[-1])
    low, high = np.full(len(reuse), -8.0), np.full(len(reuse), 8.0)
    tilt, last = np.zeros(len(reuse)), high
    for _ in range(_BISECTIONS):
        if np.abs(tilt - last).max() < _TILT_ERROR:
            break
        shares = weight * np.exp(tilt[:, None] * bins)
        shares /= shares.sum(axis=1, keepdims=True)
        mean = shares @ MEAN_COUNTS
        low, high = np.where(mean < reuse, tilt, low), np.where(mean < reuse, high, tilt)
        # Newton's method for the logarithm of the mean; bisection where it would leave the interval.
        slope = shares @ (bins * MEAN_COUNTS) / mean - shares @ bins
        newton = tilt + np.log(reuse / mean) / np.maximum(slope, 1e-9)
        within = (low - _TILT_ERROR < newton) & (newton < high + _TILT_ERROR)
        last, tilt = tilt, np.where(within, newton, (low + high) / 2)
    return shares


def _round_rows(rows: FloatArray, rng: np.random.Generator) -> IntArray:
    """Round `rows` (T, 17) so that each sum over tables changes by less than one. Give every empty table one row."""
    running_sums = np.cumsum(rows, axis=0) + rng.random(rows.shape[1])
    whole = np.diff(np.floor(running_sums), axis=0, prepend=0.0).astype(np.int64)
    empty = np.flatnonzero(whole.sum(axis=1) == 0)
    whole[empty, np.argmax(rows[empty], axis=1)] = 1
    return whole


def _draw_num_embeddings(unique_rows: IntArray, params: PoolParams, rng: np.random.Generator) -> IntArray:
    """Heavy-tailed numbers of rows (T,), at least `unique_rows`; mean `MEAN_NUM_EMBEDDINGS / row_scale` if possible."""
    unused = unique_rows.astype(np.float64) * np.exp(_LOG_SPREAD_ROWS * rng.standard_normal(len(unique_rows)))
    mean = max(MEAN_NUM_EMBEDDINGS / params.row_scale - float(unique_rows.mean()), 0.0)
    most = np.maximum(MAX_NUM_EMBEDDINGS / params.row_scale - unique_rows.astype(np.float64), 0.0)
    return unique_rows + np.round(_with_mean(unused, mean, 0.0, most)).astype(np.int64)
