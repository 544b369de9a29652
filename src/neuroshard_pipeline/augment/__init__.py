"""Draws the table pool, its variations, samples of lookups and collectives to measure, and sharding tasks to solve.

A sample is what one measurement runs: the lookups of one rank, a forward and a backward all-to-all, or one reduction.

- `published`: statistics that Meta published about its lookup data; `pool`: tables generated with these statistics
  or read from a file; `pool_statistics`: comparison of drawn ids with these statistics
- `variation`: derived and public tables that are added to the pool
- `compute_draws`, `varied_draws`, `comm_draws`, `reduction_draws`: samples to measure
- `task_draws`: sharding tasks to solve
- `sequences`: sequence tables with a stated popularity of their rows
- `drawing`: parameter types and helpers that `variation` and the draws share
"""

from neuroshard_pipeline.augment.comm_draws import CommSampleParams, comm_samples
from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples, paper_settings
from neuroshard_pipeline.augment.pool import PoolParams, base_pool, generate_pool, generated_tables
from neuroshard_pipeline.augment.pool_statistics import reuse_comparison_frame
from neuroshard_pipeline.augment.reduction_draws import ReductionSampleParams, reduction_samples
from neuroshard_pipeline.augment.task_draws import FileTaskParams, ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.augment.variation import VariationParams, varied_pool
from neuroshard_pipeline.augment.varied_draws import VariedSampleParams, evaluation_samples, varied_samples

__all__ = [
    "CommSampleParams",
    "ComputeSampleParams",
    "FileTaskParams",
    "PoolParams",
    "ReductionSampleParams",
    "ShardingTaskParams",
    "VariationParams",
    "VariedSampleParams",
    "base_pool",
    "comm_samples",
    "compute_samples",
    "evaluation_samples",
    "generate_pool",
    "generated_tables",
    "paper_settings",
    "reduction_samples",
    "reuse_comparison_frame",
    "sharding_tasks",
    "varied_pool",
    "varied_samples",
]
