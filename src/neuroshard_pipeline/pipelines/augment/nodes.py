"""Nodes of the augment stage."""

from __future__ import annotations

import pandas as pd

from neuroshard_pipeline.tables import (
    CommSampleParams,
    ComputeSampleParams,
    FileTaskParams,
    PoolParams,
    ShardingTaskParams,
    Table,
    comm_samples,
    compute_samples,
    generate_pool,
    reuse_comparison_frame,
    sharding_tasks,
    task_from_tables,
    tasks_to_frame,
)


def generate_table_pool(params: PoolParams) -> pd.DataFrame:
    """Draw the pool of embedding tables."""
    return generate_pool(params)


def compare_reuse_with_published(pool: pd.DataFrame, params: PoolParams) -> pd.DataFrame:
    """Draw the pool's ids and set their reuse histograms beside the published ones."""
    return reuse_comparison_frame(pool, params.batch_size, params.seed)


def draw_compute_samples(pool: pd.DataFrame, params: ComputeSampleParams) -> pd.DataFrame:
    """Draw the table combinations whose compute cost is measured."""
    return compute_samples(pool, params)


def draw_comm_samples(pool: pd.DataFrame, params: CommSampleParams) -> pd.DataFrame:
    """Draw the volumes and start skews whose communication cost is measured."""
    return comm_samples(pool, params)


def draw_sharding_tasks(
    pool: pd.DataFrame, mlperf_tables: list[Table], params: ShardingTaskParams, mlperf_params: FileTaskParams
) -> pd.DataFrame:
    """Draw the sharding tasks, and append the scaled MLPerf DLRM-v2 as one more."""
    mlperf = tasks_to_frame([task_from_tables(mlperf_tables, **mlperf_params.model_dump())])
    return pd.concat([sharding_tasks(pool, params), mlperf], ignore_index=True)
