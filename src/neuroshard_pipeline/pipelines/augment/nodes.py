"""Nodes of the augment stage."""

from __future__ import annotations

import pandas as pd

from neuroshard_pipeline.measurement import RecordingParams, open_recording
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


def provide_table_pool(params: PoolParams, recording: RecordingParams) -> pd.DataFrame:
    """Draw the pool of embedding tables, or take that of a recording."""
    return open_recording(recording).pool if recording.folder else generate_pool(params)


def compare_reuse_with_published(pool: pd.DataFrame, params: PoolParams) -> pd.DataFrame:
    """Draw the pool's ids and set their reuse histograms beside the published ones."""
    return reuse_comparison_frame(pool, params.batch_size, params.seed)


def provide_compute_samples(
    pool: pd.DataFrame, params: ComputeSampleParams, recording: RecordingParams
) -> pd.DataFrame:
    """Draw the table combinations whose compute cost is measured, or take those of a recording."""
    return open_recording(recording).samples if recording.folder else compute_samples(pool, params)


def draw_comm_samples(pool: pd.DataFrame, params: CommSampleParams) -> pd.DataFrame:
    """Draw the volumes and start skews whose communication cost is measured."""
    return comm_samples(pool, params)


def draw_sharding_tasks(
    pool: pd.DataFrame, mlperf_tables: list[Table], params: ShardingTaskParams, mlperf_params: FileTaskParams
) -> pd.DataFrame:
    """Draw the sharding tasks, and append the scaled MLPerf DLRM-v2 as one more."""
    mlperf = tasks_to_frame([task_from_tables(mlperf_tables, **mlperf_params.model_dump())])
    return pd.concat([sharding_tasks(pool, params), mlperf], ignore_index=True)
