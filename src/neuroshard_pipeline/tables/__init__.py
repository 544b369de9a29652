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
