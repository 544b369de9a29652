"""Draws sharding tasks from a pool, or makes one of a user's tables [Zha2023] §4.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, model_validator

from neuroshard_pipeline.augment.comm_draws import (
    check_dimensions,
    check_range,
    check_world_sizes,
    redraw_until_fits,
    table_range,
)
from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.frames import tables_from_frame, tasks_to_frame
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: A table that is scaled down keeps at least this many rows.
LEAST_SCALED_ROWS = 4

_TASK_STREAM = 3


class ShardingTaskParams(BaseModel):
    """What decides the sharding tasks.

    Attributes:
        world_sizes: numbers of ranks.
        tasks_per_world_size: how many tasks for each of `world_sizes`.
        batch_size: global batch; the one that the pool's profiles belong to.
        dimensions: widths of the tables, drawn uniformly.
        min_tables_per_4_ranks: fewest tables of a task, for every 4 ranks.
        max_tables_per_4_ranks: most tables of a task, for every 4 ranks.
        memory_bytes: memory of every rank.
        memory_fill: the weights of a task take at most this share of the memory of all ranks.
        seed: decides every task, together with its world size and index.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    world_sizes: tuple[int, ...] = Field(min_length=1)
    tasks_per_world_size: tuple[int, ...] = Field(min_length=1)
    batch_size: int = Field(ge=1, le=2**24)
    dimensions: tuple[int, ...] = Field(min_length=1)
    min_tables_per_4_ranks: int = Field(ge=1, le=10_000)
    max_tables_per_4_ranks: int = Field(ge=1, le=10_000)
    memory_bytes: int = Field(gt=0)
    memory_fill: float = Field(gt=0, le=1)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> ShardingTaskParams:
        check_dimensions(self.dimensions)
        check_world_sizes(self.world_sizes)
        check_range(
            "min_tables_per_4_ranks",
            self.min_tables_per_4_ranks,
            "max_tables_per_4_ranks",
            self.max_tables_per_4_ranks,
        )
        if len(set(self.world_sizes)) < len(self.world_sizes):
            raise ValueError(f"world_sizes {self.world_sizes} must differ from each other")
        if len(self.tasks_per_world_size) != len(self.world_sizes) or min(self.tasks_per_world_size) < 0:
            raise ValueError(
                f"tasks_per_world_size {self.tasks_per_world_size} must be one number, at least 0, for each of "
                f"world_sizes {self.world_sizes}"
            )
        return self


class FileTaskParams(BaseModel):
    """What makes a sharding task of a table file.

    Attributes:
        task_id: how frames and the report call the task.
        world_size: number of ranks.
        batch_size: global batch.
        memory_bytes: memory of every rank.
        row_scale: the tables' rows are divided by this.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task_id: str = Field(min_length=1)
    world_size: int = Field(ge=2, le=4096)
    batch_size: int = Field(ge=1, le=2**24)
    memory_bytes: int = Field(gt=0)
    row_scale: float = Field(gt=0, le=1e9)


def sharding_tasks(pool: pd.DataFrame, params: ShardingTaskParams) -> pd.DataFrame:
    """Draw tasks of distinct pool tables, each of a random width.

    A task is drawn again as a whole until its weights fit `memory_fill` of the memory of all ranks. Tables whose
    narrowest shard exceeds the memory of one rank are never drawn: no plan could place them.

    Returns:
        `augment.sharding_tasks`: one row per table of a task, see `frames.TASK_COLUMNS`; profiles are the pool's.

    Raises:
        TaskError: the pool is too small, or no task fits the memory.
    """
    tables = [
        table for table in tables_from_frame(generated_tables(pool)) if _narrowest_bytes(table) <= params.memory_bytes
    ]
    tasks = [
        _draw_task(tables, world_size, index, params)
        for world_size, count in zip(params.world_sizes, params.tasks_per_world_size, strict=True)
        for index in range(count)
    ]
    return tasks_to_frame(tasks)


def _narrowest_bytes(table: Table) -> int:
    return table.num_embeddings * COLUMN_GRANULARITY * BYTES_PER_ELEMENT[table.data_type]


def _draw_task(tables: Sequence[Table], world_size: int, index: int, params: ShardingTaskParams) -> ShardingTask:
    task_id = f"{world_size}-ranks-{index:03d}"
    least, most = (
        table_range(number, world_size) for number in (params.min_tables_per_4_ranks, params.max_tables_per_4_ranks)
    )
    if most > len(tables):
        raise TaskError(
            f"{task_id}: up to {most} distinct tables are wanted, but the pool has {len(tables)} that "
            f"fit memory_bytes {params.memory_bytes}; lower max_tables_per_4_ranks, generate a larger "
            "pool or raise memory_bytes"
        )
    rng = np.random.default_rng([_TASK_STREAM, params.seed, world_size, index])

    def draw() -> list[Table]:
        chosen = rng.choice(len(tables), size=rng.integers(least, most + 1), replace=False)
        dims = rng.choice(params.dimensions, size=len(chosen))
        return [replace(tables[at], embedding_dim=int(dim)) for at, dim in zip(chosen, dims, strict=True)]

    def weight_bytes(drawn: list[Table]) -> int:
        return sum(table.weight_bytes for table in drawn)

    memory_bytes = int(params.memory_fill * world_size * params.memory_bytes)
    drawn = redraw_until_fits(draw, weight_bytes, memory_bytes, task_id)
    return ShardingTask(drawn, world_size, params.batch_size, params.memory_bytes, task_id=task_id)


def task_from_tables(
    tables: Sequence[Table], world_size: int, batch_size: int, memory_bytes: int, row_scale: float, task_id: str
) -> ShardingTask:
    """A task of a user's tables, their rows divided by `row_scale` (see `FileTaskParams` for the arguments).

    A table keeps at least `LEAST_SCALED_ROWS` rows, or what it had. A reuse profile that it brings along stays, its
    unique rows limited to the rows that are left; without one it gets the default profile of the scaled rows.

    Raises:
        TaskError: a value is impossible.
    """
    if not row_scale > 0:
        raise TaskError(f"{task_id}: row_scale {row_scale} must be above 0; 1 keeps the tables as they are")
    scaled = [with_profile(scale_rows(table, row_scale), batch_size) for table in tables]
    return ShardingTask(scaled, world_size, batch_size, memory_bytes, task_id=task_id)


def scale_rows(table: Table, row_scale: float) -> Table:
    """`table` with its rows, and the unique rows of its profile, divided by `row_scale`."""
    least = min(table.num_embeddings, LEAST_SCALED_ROWS)
    rows = max(least, round(table.num_embeddings / row_scale))
    unique_rows = None if table.unique_rows is None else min(max(table.unique_rows / row_scale, 1.0), float(rows))
    return replace(table, num_embeddings=rows, unique_rows=unique_rows)
