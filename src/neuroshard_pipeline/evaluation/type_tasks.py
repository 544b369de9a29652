"""Draws tasks that call for other sharding types than column_wise: giant narrow tables, tiny tables, several hosts."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.augment.task_draws import ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.evaluation.suite_params import SuiteSettings
from neuroshard_pipeline.evaluation.tight_tasks import random_tables
from neuroshard_pipeline.tables.frames import tables_to_frame, tasks_from_frame
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask

_GIANT_STREAM, _TINY_STREAM, _HOSTS_STREAM = 13, 14, 15


def giant_narrow_task(pool: Sequence[Table], settings: SuiteSettings, task_id: str, world_size: int) -> ShardingTask:
    """Draw a task with tables of few columns, whose narrowest column shard exceeds the memory of a rank.

    The memory of a rank and the rows of these giant tables follow from the sizes of the other tables: all tables
    together fill the share `memory_fill` of the memory that shards may use on all ranks.

    Args:
        pool: tables to draw from.
        settings: parameters of the suites. The random generator is seeded with their seed and `task_id`.
        task_id: id of the task.
        world_size: number of ranks.

    Raises:
        TaskError: giant tables alone would fill the share `memory_fill`.
    """
    giant, batch_size = settings.giant_narrow, settings.suites.batch_size
    rng = np.random.default_rng([_GIANT_STREAM, settings.suites.seed, *task_id.encode()])
    count = max(1, giant.giants_per_4_ranks * world_size // 4)
    *others, chosen = random_tables(pool, settings, world_size, rng)
    narrow = [replace(chosen, name=f"{chosen.name}_giant_{at}") for at in range(count)]
    widths = rng.choice(giant.widths, size=count).tolist()
    # What the other tables may fill, as a multiple of what shards may use on a rank. `excess` is the same multiple for
    # the narrowest shard of a giant table.
    free = giant.memory_fill * world_size - giant.excess * sum(widths) / COLUMN_GRANULARITY
    if free <= 0:
        raise TaskError(
            f"{task_id}: {count} tables of {widths} columns, whose shards of {COLUMN_GRANULARITY} columns need "
            f"{giant.excess} times the memory of a rank, do not fit; lower excess, giants_per_4_ranks or widths"
        )
    usable = sum(table.weight_bytes for table in others) / free
    row_bytes = COLUMN_GRANULARITY * BYTES_PER_ELEMENT[chosen.data_type]  # of the narrowest shard
    rows = math.ceil(giant.excess * usable / row_bytes)
    giants = [
        with_profile(replace(table, num_embeddings=rows, embedding_dim=width, unique_rows=None, reuse=None), batch_size)
        for table, width in zip(narrow, widths, strict=True)
    ]
    memory_bytes = math.ceil(usable / (1.0 - settings.memory.reserve_fraction))
    return ShardingTask([*others, *giants], world_size, batch_size, memory_bytes, task_id=task_id)


def many_tiny_task(pool: Sequence[Table], settings: SuiteSettings, task_id: str, world_size: int) -> ShardingTask:
    """Draw a task of many tables, each with fewer rows than the batch has samples (arguments: `giant_narrow_task`)."""
    tiny, batch_size = settings.many_tiny, settings.suites.batch_size
    rng = np.random.default_rng([_TINY_STREAM, settings.suites.seed, *task_id.encode()])
    count = int(rng.integers(tiny.min_tables, tiny.max_tables + 1))
    rows = np.exp(rng.uniform(np.log(tiny.min_rows), np.log(batch_size), size=count)).astype(int).tolist()
    dims = rng.choice(settings.paper.dimensions, size=count).tolist()
    chosen = rng.choice(len(pool), size=count, replace=True).tolist()
    tables = [Table(f"bench_tiny_{at}", rows[at], dims[at], pool[chosen[at]].pooling_factor) for at in range(count)]
    needed = sum(table.weight_bytes for table in tables)
    memory_bytes = math.ceil(needed / (tiny.memory_fill * world_size))
    profiled = [with_profile(table, batch_size) for table in tables]
    return ShardingTask(profiled, world_size, batch_size, memory_bytes, task_id=task_id)


def several_hosts_task(
    pool: Sequence[Table], settings: SuiteSettings, task_id: str, world_size: int, local_world_size: int
) -> ShardingTask:
    """Draw a task as for the suites `paper_4` and `paper_8`, on hosts of `local_world_size` ranks."""
    seed = np.random.default_rng([_HOSTS_STREAM, settings.suites.seed, *task_id.encode()]).integers(2**31)
    params = ShardingTaskParams.model_validate(
        settings.paper.model_dump()
        | {
            "world_sizes": (world_size,),
            "tasks_per_world_size": (1,),
            "batch_size": settings.suites.batch_size,
            "tight_share": 0.0,
            "local_world_size": local_world_size,
            "seed": int(seed),
        }
    )
    (task,) = tasks_from_frame(sharding_tasks(tables_to_frame(pool).drop(columns="embedding_dim"), params))
    return replace(task, task_id=task_id, local_world_size=local_world_size)
