"""Embedding tables: what they are, where they come from, and what is drawn from them.

Nouns            `table` (Table, Shard), `task` (ShardingTask), `constraints` (Constraints, TableConstraint),
                 `samples` (ComputeSample, CommSample)
Ids and reuse    `profile` (what is assumed where nothing is known), `ids` (one batch of ids with a given profile)
Sources          `readers` and `records` (a user's file), `constraint_file` (a user's constraints), `bandwidth_file` (a
                 user's links), `dlrm_dataset` (Meta's public files), `pool` (generated in their shape), `published`
                 (the shape), `pool_statistics` (whether it was met)
Draws            `variation` (tables that no pool has); `compute_draws`, `varied_draws` and `augment` (samples to
                 measure); `task_draws` (tasks to solve)
Files            `frames` (nouns to data frames and back)
"""

from neuroshard_pipeline.tables.augment import CommSampleParams, comm_samples
from neuroshard_pipeline.tables.bandwidth_file import read_bandwidths
from neuroshard_pipeline.tables.compute_draws import ComputeSampleParams, compute_samples, paper_settings
from neuroshard_pipeline.tables.constraint_file import read_constraints
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.dlrm_dataset import DlrmDataset, open_dlrm_dataset, read_dlrm_dataset
from neuroshard_pipeline.tables.frames import (
    comm_samples_from_frame,
    compute_samples_from_frame,
    tables_from_frame,
    tables_to_frame,
    tasks_from_frame,
    tasks_to_frame,
)
from neuroshard_pipeline.tables.ids import TableIds, draw_ids
from neuroshard_pipeline.tables.pool import PoolParams, generate_pool, generated_tables
from neuroshard_pipeline.tables.pool_statistics import PoolStatistics, pool_statistics, reuse_comparison_frame
from neuroshard_pipeline.tables.profile import default_profile, reuse_histogram, with_profile
from neuroshard_pipeline.tables.readers import read_tables
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.task_draws import FileTaskParams, ShardingTaskParams, sharding_tasks, task_from_tables
from neuroshard_pipeline.tables.variation import VariationParams, varied_pool
from neuroshard_pipeline.tables.varied_draws import VariedSampleParams, judged_samples, varied_samples

__all__ = [
    "CommSample",
    "CommSampleParams",
    "ComputeSample",
    "ComputeSampleParams",
    "Constraints",
    "DlrmDataset",
    "FileTaskParams",
    "PoolParams",
    "PoolStatistics",
    "Shard",
    "ShardingTask",
    "ShardingTaskParams",
    "Table",
    "TableConstraint",
    "TableIds",
    "VariationParams",
    "VariedSampleParams",
    "comm_samples",
    "comm_samples_from_frame",
    "compute_samples",
    "compute_samples_from_frame",
    "default_profile",
    "draw_ids",
    "generate_pool",
    "generated_tables",
    "judged_samples",
    "open_dlrm_dataset",
    "paper_settings",
    "pool_statistics",
    "read_bandwidths",
    "read_constraints",
    "read_dlrm_dataset",
    "read_tables",
    "reuse_comparison_frame",
    "reuse_histogram",
    "sharding_tasks",
    "tables_from_frame",
    "tables_to_frame",
    "task_from_tables",
    "tasks_from_frame",
    "tasks_to_frame",
    "varied_pool",
    "varied_samples",
    "whole",
    "with_profile",
]
