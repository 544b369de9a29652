"""Draws tasks of the suites: as in the paper, tight, with giant narrow, tiny or sequence tables, on several hosts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from neuroshard_pipeline.augment.task_draws import ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.evaluation.suite_params import SuiteSettings
from neuroshard_pipeline.tables.frames import tables_to_frame, tasks_from_frame
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask

_TIGHT_STREAM, _GIANT_STREAM, _TINY_STREAM, _HOSTS_STREAM, _SEQUENCES_STREAM = 11, 13, 14, 15, 16


def paper_tasks(
    pool: Sequence[Table], settings: SuiteSettings, world_size: int, count: int, **others: Any
) -> list[ShardingTask]:
    """Draw `count` tasks of the suites `paper_4` and `paper_8`; `others` are further `ShardingTaskParams`."""
    sizes = {"world_sizes": (world_size,), "tasks_per_world_size": (count,), "batch_size": settings.suites.batch_size}
    defaults = settings.paper.model_dump() | sizes | {"local_world_size": None, "tight_share": 0.0}
    params = ShardingTaskParams.model_validate(defaults | others)
    return tasks_from_frame(sharding_tasks(tables_to_frame(pool).drop(columns="embedding_dim"), params))


def tight_task(pool: Sequence[Table], settings: SuiteSettings, task_id: str, world_size: int) -> ShardingTask:
    """Draw a task as for the suites `paper_4` and `paper_8`, except that its largest table fits no rank.

    The random generator is seeded with the seed of the suites and `task_id`.

    Raises:
        TaskError: none of the drawn tasks is tight.
    """
    memory_fill = settings.tight.memory_fill * (1.0 - settings.memory.reserve_fraction)
    return _paper_task(_TIGHT_STREAM, pool, settings, task_id, world_size, tight_share=1.0, memory_fill=memory_fill)


def random_tables(
    pool: Sequence[Table], settings: SuiteSettings, world_size: int, rng: np.random.Generator
) -> list[Table]:
    """Draw different tables of the pool with random widths; their number has the limits of `paper_4` and `paper_8`."""
    fewest, most = settings.paper.table_limits(world_size)
    count = int(rng.integers(fewest, min(most, len(pool)) + 1))
    chosen = rng.choice(len(pool), size=count, replace=False)
    dims = rng.choice(settings.paper.dimensions, size=count)
    return [replace(pool[at], embedding_dim=int(dim)) for at, dim in zip(chosen, dims, strict=True)]


def giant_narrow_task(pool: Sequence[Table], settings: SuiteSettings, task_id: str, world_size: int) -> ShardingTask:
    """Draw a task with tables of few columns, whose narrowest column shard exceeds the memory of a rank.

    The memory of a rank and the rows of these giant tables follow from the sizes of the other tables: all tables
    together fill the share `memory_fill` of the memory that shards may use on all ranks. The random generator is seeded
    with the seed of the suites and `task_id`.

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
    return _paper_task(_HOSTS_STREAM, pool, settings, task_id, world_size, local_world_size=local_world_size)


def _paper_task(
    stream: int, pool: Sequence[Table], settings: SuiteSettings, task_id: str, world_size: int, **others: Any
) -> ShardingTask:
    seed = np.random.default_rng([stream, settings.suites.seed, *task_id.encode()]).integers(2**31)
    (task,) = paper_tasks(pool, settings, world_size, 1, seed=int(seed), **others)
    return replace(task, task_id=task_id)


def sequences_task(pool: Sequence[Table], settings: SuiteSettings, task_id: str, world_size: int) -> ShardingTask:
    """Draw a task whose largest tables are sequence tables of one width (arguments: `giant_narrow_task`)."""
    asked, batch_size = settings.sequences, settings.suites.batch_size
    rng = np.random.default_rng([_SEQUENCES_STREAM, settings.suites.seed, *task_id.encode()])
    tables = sorted(random_tables(pool, settings, world_size, rng), key=lambda table: -table.num_embeddings)
    count = max(1, asked.sequences_per_4_ranks * world_size // 4)
    sequences = [replace(table, pooling="none", embedding_dim=asked.embedding_dim) for table in tables[:count]]
    task = ShardingTask([*sequences, *tables[count:]], world_size, batch_size, memory_bytes=1, task_id=task_id)
    needed = sum(settings.memory.table_bytes(table, table.embedding_dim, task) for table in task.tables)
    usable = world_size * asked.memory_fill * (1.0 - settings.memory.reserve_fraction)
    return replace(task, memory_bytes=math.ceil(needed / usable))
