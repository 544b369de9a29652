"""Draws everything that is measured and solved: the table pool, its variations, samples, sharding tasks.

- `published`: the statistics that Meta published about its lookups; `pool`: tables generated with these statistics;
  `pool_statistics`: whether the drawn ids have them
- `variation`: tables that no pool has
- `compute_draws`, `varied_draws`, `comm_draws`: samples to measure
- `task_draws`: sharding tasks to solve
"""

from neuroshard_pipeline.augment.comm_draws import CommSampleParams, comm_samples
from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples, paper_settings
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool, generated_tables
from neuroshard_pipeline.augment.pool_statistics import PoolStatistics, pool_statistics, reuse_comparison_frame
from neuroshard_pipeline.augment.task_draws import FileTaskParams, ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.augment.variation import VariationParams, varied_pool
from neuroshard_pipeline.augment.varied_draws import VariedSampleParams, judged_samples, varied_samples

__all__ = [
    "CommSampleParams",
    "ComputeSampleParams",
    "FileTaskParams",
    "PoolParams",
    "PoolStatistics",
    "ShardingTaskParams",
    "VariationParams",
    "VariedSampleParams",
    "comm_samples",
    "compute_samples",
    "generate_pool",
    "generated_tables",
    "judged_samples",
    "paper_settings",
    "pool_statistics",
    "reuse_comparison_frame",
    "sharding_tasks",
    "varied_pool",
    "varied_samples",
]
