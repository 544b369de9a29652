"""Draws tasks that no placement of whole tables solves but some plan with column splits does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.packing import pack_by_size
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: Maximum number of draws until a task is tight.
_MAX_DRAWS = 1000

_TIGHT_STREAM = 11


@dataclass(frozen=True)
class TightDraw:
    """What all tight tasks have in common.

    Attributes:
        pool: tables to draw from.
        dimensions: widths, drawn uniformly.
        batch_size: global batch.
        memory_fill: share of the memory of all ranks that the tables take.
        memory: what counts against the memory of a rank.
        seed: decides every draw together with the id of the task.
    """

    pool: Sequence[Table]
    dimensions: Sequence[int]
    batch_size: int
    memory_fill: float
    memory: MemoryModel
    seed: int


def tight_task(draw: TightDraw, task_id: str, world_size: int, num_tables: tuple[int, int]) -> ShardingTask:
    """Draw a task whose largest table fits no rank, although all tables take only `memory_fill` of the memory.

    Args:
        draw: what tasks are drawn from.
        task_id: id of the task.
        world_size: number of ranks.
        num_tables: minimum and maximum number of tables.

    Raises:
        TaskError: no draw was tight.
    """
    rng = np.random.default_rng([_TIGHT_STREAM, draw.seed, *task_id.encode()])
    for _ in range(_MAX_DRAWS):
        count = int(rng.integers(num_tables[0], min(num_tables[1], len(draw.pool)) + 1))
        chosen = rng.choice(len(draw.pool), size=count, replace=False)
        dims = rng.choice(draw.dimensions, size=count)
        tables = [replace(draw.pool[at], embedding_dim=int(dim)) for at, dim in zip(chosen, dims, strict=True)]
        task = _with_just_enough_memory(ShardingTask(tables, world_size, draw.batch_size, 1, task_id=task_id), draw)
        if is_tight(task, draw.memory):
            return task
    raise TaskError(
        f"{task_id}: none of {_MAX_DRAWS} draws of {num_tables[0]} to {num_tables[1]} tables has one that is larger "
        f"than the memory of a rank at memory_fill {draw.memory_fill}; raise memory_fill or draw fewer tables"
    )


def is_tight(task: ShardingTask, memory: MemoryModel) -> bool:
    """Whether only column splits can solve `task`: its largest table fits no rank, but its narrowest shards all fit.

    An example proves the second condition: all tables are cut into shards of the minimum width and packed by size.
    """
    limits = memory.limits(task)
    if max(memory.table_bytes(table, table.embedding_dim, task) for table in task.tables) <= max(limits):
        return False
    return not pack_by_size(_narrowest_bytes(task, memory), limits)[1]


def _with_just_enough_memory(task: ShardingTask, draw: TightDraw) -> ShardingTask:
    needed = sum(_narrowest_bytes(task, draw.memory))
    usable = task.world_size * draw.memory_fill * (1.0 - draw.memory.reserve_fraction)
    return replace(task, memory_bytes=math.ceil(needed / usable))


def _narrowest_bytes(task: ShardingTask, memory: MemoryModel) -> list[int]:
    """Bytes of every shard when all tables are cut into shards of the minimum width."""
    return [
        memory.table_bytes(table, COLUMN_GRANULARITY, task)
        for table in task.tables
        for _ in range(table.embedding_dim // COLUMN_GRANULARITY)
    ]
