"""Nodes of the augment stage, which draws samples to measure and sharding tasks to solve.

A recording holds compute costs of another machine, with the pool and the samples that they belong to.
"""

import pandas as pd

from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples, paper_settings
from neuroshard_pipeline.augment.pool import PoolParams, base_pool
from neuroshard_pipeline.augment.task_draws import FileTaskParams, ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.augment.variation import VariationParams, varied_pool
from neuroshard_pipeline.augment.varied_draws import VariedSampleParams, evaluation_samples, varied_samples
from neuroshard_pipeline.measurement import RecordingParams, open_recording
from neuroshard_pipeline.tables.frames import tasks_to_frame
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import on_hosts, task_from_tables

PublicTables = dict[str, list[Table]]


def gather_public_tables(
    mlperf_dlrm_v2: list[Table], criteo_kaggle: list[Table], hugectr_t510: list[Table]
) -> PublicTables:
    """Collect the public table sets by name."""
    return {"mlperf_dlrm_v2": mlperf_dlrm_v2, "criteo_kaggle": criteo_kaggle, "hugectr_t510": hugectr_t510}


def provide_table_pool(
    public: PublicTables, params: PoolParams, variation: VariationParams, recording: RecordingParams
) -> pd.DataFrame:
    """The recording's pool, or else tables that are generated or read, tables derived from them, and public tables."""
    if recording.folder:
        return open_recording(recording).pool
    return varied_pool(base_pool(params), params.batch_size, public, variation)


def provide_compute_samples(
    pool: pd.DataFrame,
    public: PublicTables,
    params: ComputeSampleParams,
    variation: VariationParams,
    varied: VariedSampleParams,
    recording: RecordingParams,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the compute samples and the settings of each (such as its optimizer), drawn or from a recording."""
    if recording.folder:
        recorded = open_recording(recording)
        return recorded.samples, recorded.settings
    drawn = compute_samples(pool, params)
    parts = [
        (drawn, paper_settings(drawn)),
        varied_samples(pool, params, variation, varied),
        evaluation_samples(pool, public, params, variation, varied),
    ]
    samples, settings = (pd.concat(frames, ignore_index=True) for frames in zip(*parts, strict=True))
    return samples, settings


def draw_sharding_tasks(
    pool: pd.DataFrame, mlperf_tables: list[Table], params: ShardingTaskParams, mlperf_params: FileTaskParams
) -> pd.DataFrame:
    """Draw the sharding tasks, and append a task of MLPerf DLRM-v2's tables, with rows divided by `row_scale`."""
    task = task_from_tables(mlperf_tables, **mlperf_params.model_dump())
    mlperf = tasks_to_frame([on_hosts(task, params.local_world_size)])
    return pd.concat([sharding_tasks(pool, params), mlperf], ignore_index=True)
