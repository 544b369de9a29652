"""Draws sharding tasks from the table pool, as in [Zha2023] §4.1."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from neuroshard_pipeline.augment.drawing import (
    BatchSize,
    Share,
    TableLimits,
    WorldSizeHere,
    WorldSizesHere,
    redraw_until_fits,
)
from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.frames import tables_from_frame, tasks_to_frame
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask, on_hosts

_TASK_STREAM = 3


class ShardingTaskParams(TableLimits):
    """Parameters of the sharding tasks, in addition to the limits on the number of tables.

    Attributes:
        world_sizes: numbers of ranks, all different; null: the number that this machine runs side by side.
        tasks_per_world_size: number of tasks for each of `world_sizes`.
        batch_size: global batch size; the reuse profiles of the pool must hold for it.
        memory_bytes: memory of every rank.
        memory_fill: largest share of the memory of all ranks that the weights of a task may occupy.
        tight_share: share of the tasks of every world size, the last ones, whose largest table exceeds the memory of a
            rank, so that a plan must cut it. Their memory is such that the weights take `memory_fill` of it.
        local_world_size: ranks per host; null if all ranks of a task are on one host.
        seed: seed of the draws; the random numbers of a task depend only on the seed, its world size and its index.
    """

    world_sizes: WorldSizesHere
    tasks_per_world_size: tuple[int, ...] = Field(min_length=1)
    batch_size: BatchSize
    memory_bytes: int = Field(gt=0)
    memory_fill: float = Field(gt=0, le=1)
    tight_share: Share
    local_world_size: int | None = Field(ge=1)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.world_sizes)) < len(self.world_sizes):
            raise ValueError(f"world_sizes {self.world_sizes} must differ from each other")
        if len(self.tasks_per_world_size) != len(self.world_sizes) or min(self.tasks_per_world_size) < 0:
            raise ValueError(
                f"tasks_per_world_size {self.tasks_per_world_size} must be one number, at least 0, for each of "
                f"world_sizes {self.world_sizes}"
            )
        return self


class FileTaskParams(Parameters):
    """Parameters of a sharding task whose tables are read from a file: the arguments of `tables.task_from_tables`.

    Attributes:
        task_id: name of the task in frames and in the report.
        world_size: number of ranks; null: the number that this machine runs side by side.
        batch_size: global batch size.
        memory_bytes: memory of every rank.
        row_scale: divisor of every table's number of rows.
    """

    task_id: str = Field(min_length=1)
    world_size: WorldSizeHere
    batch_size: BatchSize
    memory_bytes: int = Field(gt=0)
    row_scale: float = Field(gt=0, le=1e9)


def sharding_tasks(pool: pd.DataFrame, params: ShardingTaskParams) -> pd.DataFrame:
    """Draw tasks of distinct pool tables; each table gets a random width and keeps its reuse profile.

    A task whose weights exceed `memory_fill` of the memory of all ranks is drawn again as a whole, and so is a tight
    task whose largest table fits a rank. Tables whose narrowest column shard exceeds the memory of one rank are not
    drawn, because no column-wise plan could place them.

    Returns:
        The dataset `augment.sharding_tasks` (`frames.TASK_COLUMNS`): one row per table of a task.

    Raises:
        TaskError: the pool is too small, or no task fits the memory.
    """
    narrowest = tables_from_frame(generated_tables(pool).assign(embedding_dim=COLUMN_GRANULARITY))
    tables = [table for table in narrowest if table.weight_bytes <= params.memory_bytes]
    tasks = [
        _draw_task(tables, world_size, index, params, index >= count * (1.0 - params.tight_share))
        for world_size, count in zip(params.world_sizes, params.tasks_per_world_size, strict=True)
        for index in range(count)
    ]
    return tasks_to_frame(tasks)


def _draw_task(
    tables: Sequence[Table], world_size: int, index: int, params: ShardingTaskParams, is_tight: bool
) -> ShardingTask:
    task_id = f"{world_size}-ranks-{index:03d}"
    least, most = params.table_limits(world_size)
    if most > len(tables):
        raise TaskError(
            f"{task_id}: a task has up to {most} distinct tables, but {len(tables)} of the pool fit memory_bytes "
            f"{params.memory_bytes}; lower max_tables_per_4_ranks, generate a larger pool or raise memory_bytes"
        )
    rng = np.random.default_rng([_TASK_STREAM, params.seed, world_size, index])

    def draw() -> list[Table]:
        chosen = rng.choice(len(tables), size=rng.integers(least, most + 1), replace=False)
        dims = rng.choice(params.dimensions, size=len(chosen))
        return [replace(tables[at], embedding_dim=int(dim)) for at, dim in zip(chosen, dims, strict=True)]

    def needed_bytes(drawn: list[Table]) -> float:
        """Bytes of the weights; infinite if a tight task were to fit without a cut."""
        largest = max(table.weight_bytes for table in drawn)
        return math.inf if is_tight and largest <= _memory_of(drawn, world_size, params) else _weight_bytes(drawn)

    drawn = redraw_until_fits(draw, needed_bytes, int(params.memory_fill * world_size * params.memory_bytes), task_id)
    memory_bytes = _memory_of(drawn, world_size, params) if is_tight else params.memory_bytes
    task = ShardingTask(drawn, world_size, params.batch_size, memory_bytes, task_id=task_id)
    return on_hosts(task, params.local_world_size)


def _weight_bytes(tables: Sequence[Table]) -> int:
    return sum(table.weight_bytes for table in tables)


def _memory_of(tables: Sequence[Table], world_size: int, params: ShardingTaskParams) -> int:
    """Memory of a rank of a tight task with these tables."""
    return math.ceil(_weight_bytes(tables) / (params.memory_fill * world_size))
