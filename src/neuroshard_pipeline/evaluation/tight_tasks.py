"""Draws tight tasks: they have no plan of whole tables, but they have plans with column splits."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.evaluation.suite_params import SuiteSettings
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.packing import pack_by_size
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: Maximum number of draws for one tight task.
_MAX_DRAWS = 1000
_TIGHT_STREAM = 11


def tight_task(pool: Sequence[Table], settings: SuiteSettings, task_id: str, world_size: int) -> ShardingTask:
    """Draw a task whose largest table fits no rank, although all tables fill only a share `memory_fill` of all memory.

    Args:
        pool: tables to draw from.
        settings: number and widths of the tables, batch size, memory and seed. The random generator is seeded with
            this seed and `task_id`.
        task_id: id of the task.
        world_size: number of ranks.

    Raises:
        TaskError: none of the drawn tasks is tight.
    """
    fill, batch_size = settings.tight.memory_fill, settings.suites.batch_size
    fewest, most = settings.paper.table_limits(world_size)
    rng = np.random.default_rng([_TIGHT_STREAM, settings.suites.seed, *task_id.encode()])
    for _ in range(_MAX_DRAWS):
        tables = random_tables(pool, settings, world_size, rng)
        roomless = ShardingTask(tables, world_size, batch_size, memory_bytes=1, task_id=task_id)
        task = _with_just_enough_memory(roomless, settings.memory, fill)
        if is_tight(task, settings.memory):
            return task
    raise TaskError(
        f"{task_id}: none of {_MAX_DRAWS} drawn tasks with {fewest} to {most} tables has a table that is larger than "
        f"the memory of a rank and can be split to fit at memory_fill {fill}; raise memory_fill (lower it if it is "
        "almost 1) or draw fewer tables"
    )


def random_tables(
    pool: Sequence[Table], settings: SuiteSettings, world_size: int, rng: np.random.Generator
) -> list[Table]:
    """Draw different tables of the pool with random widths; their number has the limits of `paper_4` and `paper_8`."""
    fewest, most = settings.paper.table_limits(world_size)
    count = int(rng.integers(fewest, min(most, len(pool)) + 1))
    chosen = rng.choice(len(pool), size=count, replace=False)
    dims = rng.choice(settings.paper.dimensions, size=count)
    return [replace(pool[at], embedding_dim=int(dim)) for at, dim in zip(chosen, dims, strict=True)]


def is_tight(task: ShardingTask, memory: MemoryModel) -> bool:
    """Whether `task` has no plan of whole tables, but a plan with column splits.

    The largest table must fit no rank. The second condition is checked by packing: all tables are cut into shards of
    the minimum width, which are placed largest first.
    """
    limits = memory.limits(task)
    if max(memory.table_bytes(table, table.embedding_dim, task) for table in task.tables) <= max(limits):
        return False
    return not pack_by_size(_narrowest_bytes(task, memory), limits)[1]


def _with_just_enough_memory(task: ShardingTask, memory: MemoryModel, fill: float) -> ShardingTask:
    needed = sum(_narrowest_bytes(task, memory))
    usable = task.world_size * fill * (1.0 - memory.reserve_fraction)
    return replace(task, memory_bytes=math.ceil(needed / usable))


def _narrowest_bytes(task: ShardingTask, memory: MemoryModel) -> list[int]:
    """Bytes of every shard when all tables are cut into shards of the minimum width."""
    return [
        memory.table_bytes(table, COLUMN_GRANULARITY, task)
        for table in task.tables
        for _ in range(table.embedding_dim // COLUMN_GRANULARITY)
    ]
