"""Tasks that no placement of whole tables solves and some plan with column splits does, with the proof of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.packing import pack_by_size
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: A task that is no tight one is drawn again at most this often.
_MAX_REDRAWS = 1000

_TIGHT_STREAM = 11


def tight_task(
    pool: Sequence[Table],
    num_tables: tuple[int, int],
    dimensions: Sequence[int],
    world_size: int,
    batch_size: int,
    memory_fill: float,
    memory: MemoryModel,
    task_id: str,
    seed: int,
) -> ShardingTask:
    """A task whose memory is `1 / memory_fill` times what its tables need, and whose largest table fits no rank.

    Args:
        pool: what tables are drawn from.
        num_tables: fewest and most tables.
        dimensions: widths, drawn uniformly.
        world_size: ranks.
        batch_size: global batch.
        memory_fill: share of the memory of all ranks that the tables take.
        memory: what counts against the memory of a rank.
        task_id: its name; decides, with `seed`, every draw.
        seed: see `task_id`.

    Raises:
        TaskError: no draw was tight.
    """
    rng = np.random.default_rng([_TIGHT_STREAM, seed, *task_id.encode()])
    for _ in range(_MAX_REDRAWS):
        count = int(rng.integers(num_tables[0], min(num_tables[1], len(pool)) + 1))
        chosen = rng.choice(len(pool), size=count, replace=False)
        dims = rng.choice(dimensions, size=count)
        tables = [replace(pool[at], embedding_dim=int(dim)) for at, dim in zip(chosen, dims, strict=True)]
        task = _with_just_enough_memory(
            ShardingTask(tables, world_size, batch_size, 1, task_id=task_id), memory_fill, memory
        )
        if is_tight(task, memory):
            return task
    raise TaskError(
        f"{task_id}: none of {_MAX_REDRAWS} draws of {num_tables[0]} to {num_tables[1]} tables has one that is larger "
        f"than the memory of a rank at memory_fill {memory_fill}; raise memory_fill or draw fewer tables"
    )


def is_tight(task: ShardingTask, memory: MemoryModel) -> bool:
    """Whether only column splits can solve `task`: its largest table fits no rank, its narrowest shards fit together.

    The second half is shown by a witness: all tables cut into shards of four columns and packed by their bytes.
    """
    limits = memory.limits(task)
    if max(memory.table_bytes(table, table.embedding_dim, task) for table in task.tables) <= max(limits):
        return False
    return not pack_by_size(_narrowest_bytes(task, memory), limits)[1]


def _with_just_enough_memory(task: ShardingTask, memory_fill: float, memory: MemoryModel) -> ShardingTask:
    needed = sum(_narrowest_bytes(task, memory))
    usable = task.world_size * memory_fill * (1.0 - memory.reserve_fraction)
    return replace(task, memory_bytes=math.ceil(needed / usable))


def _narrowest_bytes(task: ShardingTask, memory: MemoryModel) -> list[int]:
    """Bytes of every shard where every table is cut as finely as can be."""
    return [
        memory.table_bytes(table, COLUMN_GRANULARITY, task)
        for table in task.tables
        for _ in range(table.embedding_dim // COLUMN_GRANULARITY)
    ]
