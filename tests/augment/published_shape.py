"""How far the ids of a pool may differ from the published statistics, for tests and benchmarks."""

from __future__ import annotations

import numpy as np
from pool_statistics import PoolStatistics

from neuroshard_pipeline.augment.published import BATCH_SIZE, INDICES, TABLES, UNIQUE_ROWS

MEAN_POOLING_FACTOR = INDICES / TABLES / BATCH_SIZE
UNIQUE_ROWS_PER_TABLE = UNIQUE_ROWS / TABLES

#: Relative tolerances of the two means, and the absolute tolerance of both cumulative histograms.
POOLING_TOLERANCE = 0.03
UNIQUE_ROWS_TOLERANCE = 0.10
HISTOGRAM_TOLERANCE = 0.03


def mean_pooling_factor(statistics: PoolStatistics) -> float:
    """Ids per sample and table."""
    return float(statistics.indices_by_bin.sum()) / statistics.tables / statistics.batch_size


def unique_rows_per_table(statistics: PoolStatistics) -> float:
    """Mean number of unique rows of a table."""
    return float(statistics.rows_by_bin.sum()) / statistics.tables


def pooling_error(statistics: PoolStatistics) -> float:
    """Relative difference of the mean pooling factor from the published one."""
    return mean_pooling_factor(statistics) / MEAN_POOLING_FACTOR - 1.0


def unique_rows_error(statistics: PoolStatistics) -> float:
    """Relative difference of the unique rows per table from the published number, scaled to the batch size."""
    shrink = statistics.batch_size / BATCH_SIZE
    return unique_rows_per_table(statistics) / (UNIQUE_ROWS_PER_TABLE * shrink) - 1.0


def histogram_errors(statistics: PoolStatistics) -> dict[str, float]:
    """Largest difference between the drawn and the published cumulative shares of a bin, by name of the histogram."""
    shares = statistics.cumulative_shares.items()
    return {name: float(np.abs(drawn - published).max()) for name, (published, drawn) in shares}


def problems(statistics: PoolStatistics) -> list[str]:
    """One sentence for every statistic that is out of tolerance."""
    found = []
    if abs(pooling_error(statistics)) > POOLING_TOLERANCE:
        found.append(f"mean pooling factor is off by {pooling_error(statistics):+.1%}")
    if abs(unique_rows_error(statistics)) > UNIQUE_ROWS_TOLERANCE:
        found.append(f"unique rows per table are off by {unique_rows_error(statistics):+.1%}")
    for name, error in histogram_errors(statistics).items():
        if error > HISTOGRAM_TOLERANCE:
            found.append(f"the cumulative reuse histogram of {name} is off by {error:.3f}")
    return found
