"""Embedding tables, sharding tasks and samples, and one reader per kind of file.

- types: `table` (Table, Shard), `kinds` (EmbeddingModule, Tier), `task` (ShardingTask), `constraints` (Constraints,
  TableConstraint), `samples` (ComputeSample, CommSample, ReductionSample)
- ids and reuse: `profile` (measured and default reuse profiles), `ids` (one batch of ids with a given profile)
- sequence tables: `popularity` (popularity curves), `curve_points` (curves as fields of tables and as text), `tiers`
  (tables cut by popularity), `dedup` (ids sent once)
- work of shards: `lookups` (rows, ids and bags of a shard), `step_work` (work besides lookups), `row_blocks` (rows of a
  rank), `placed` (distinct shards of a plan), `host_memory` (tables in host memory), `replica_groups` (bytes that
  groups of ranks average under two-dimensional parallelism)
- a user's files: `table_file` (tables), `task_file` (sharding tasks), `constraint_file` (constraints), `bandwidth_file`
  (links between ranks); `records` reads the CSV, Parquet and JSON files of tables and tasks
- ids of several batches: `id_batches` (click logs, Parquet files)
- public data: `criteo` (click logs), `dlrm_dataset` (Meta's lookup data)
- data frames: `frames` (tables, tasks and samples as data frames, and back)
"""

from neuroshard_pipeline.tables.bandwidth_file import read_bandwidths
from neuroshard_pipeline.tables.constraint_file import read_constraints
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.dlrm_dataset import read_dlrm_dataset
from neuroshard_pipeline.tables.frames import (
    comm_samples_from_frame,
    compute_samples_from_frame,
    tables_from_frame,
    tables_to_frame,
    tasks_from_frame,
    tasks_to_frame,
)
from neuroshard_pipeline.tables.ids import TableIds, draw_ids
from neuroshard_pipeline.tables.profile import default_profile, reuse_histogram, with_profile
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import ShardingTask, task_from_tables

__all__ = [
    "CommSample",
    "ComputeSample",
    "Constraints",
    "Shard",
    "ShardingTask",
    "Table",
    "TableConstraint",
    "TableIds",
    "comm_samples_from_frame",
    "compute_samples_from_frame",
    "default_profile",
    "draw_ids",
    "read_bandwidths",
    "read_constraints",
    "read_dlrm_dataset",
    "read_tables",
    "reuse_histogram",
    "tables_from_frame",
    "tables_to_frame",
    "task_from_tables",
    "tasks_from_frame",
    "tasks_to_frame",
    "whole",
    "with_profile",
]
