"""Suites of sharding tasks, each repeatable from its parameters alone.

The pool that tasks are drawn from is the benchmark's own: no cost model and no policy has been trained on its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.augment.task_draws import ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.evaluation.benchmark.params import (
    PaperSuiteParams,
    PublicSuiteParams,
    ScaleSuiteParams,
    SuiteParams,
    TightSuiteParams,
)
from neuroshard_pipeline.evaluation.benchmark.tight import tight_task
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.tables.frames import tables_from_frame, tables_to_frame, tasks_from_frame, tasks_to_frame
from neuroshard_pipeline.tables.readers import read_tables
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask, task_from_tables
from neuroshard_pipeline.tables.task_file import read_tasks

#: Columns of `benchmark.tasks` besides those of `augment.sharding_tasks`.
SUITE_COLUMNS: tuple[str, ...] = ("suite", "group", "is_measured")

_SCALE_STREAM = 12


@dataclass(frozen=True)
class SuiteSettings:
    """What decides all suites: the fields are the parameters of the same names."""

    suites: SuiteParams
    pool: PoolParams
    paper: PaperSuiteParams
    tight: TightSuiteParams
    scale: ScaleSuiteParams
    public: PublicSuiteParams
    memory: MemoryModel


@dataclass(frozen=True)
class SuiteTask:
    """A task, and the group of its suite that it is counted in."""

    group: str
    task: ShardingTask


def draw_suites(settings: SuiteSettings) -> pd.DataFrame:
    """All suites' tasks: the columns of `augment.sharding_tasks` and `SUITE_COLUMNS`, one row per table of a task.

    Raises:
        TaskError: a suite cannot be drawn, or two tasks share a name.
        TableFileError: a file of tables or tasks cannot be used.
    """
    pool = _unseen(tables_from_frame(generate_pool(settings.pool)))
    makers: dict[str, Callable[[], Iterable[SuiteTask]]] = {
        "paper_4": lambda: _paper(pool, settings, 4, "paper_4"),
        "paper_8": lambda: _paper(pool, settings, 8, "paper_8"),
        "criteo": lambda: _public(settings, "criteo"),
        "hugectr_t510": lambda: _public(settings, "hugectr_t510"),
        "scale": lambda: _scale(settings),
        "tight": lambda: _tight(pool, settings),
    }
    frames = [_frame(name, makers[name](), settings.suites) for name in settings.suites.names]
    frames += [_frame(name, _of_user(name, path), settings.suites) for name, path in settings.suites.user.items()]
    _check_unique(frames)
    return pd.concat(frames, ignore_index=True)


def suite_of_tasks(tasks: pd.DataFrame) -> pd.DataFrame:
    """One row per task of `benchmark.tasks`: `suite, group, is_measured`, indexed by `task_id` in their order."""
    return tasks.drop_duplicates("task_id").set_index("task_id")[list(SUITE_COLUMNS)]


def _frame(suite: str, tasks: Iterable[SuiteTask], params: SuiteParams) -> pd.DataFrame:
    frames = [
        tasks_to_frame([each.task]).assign(
            suite=suite, group=each.group, is_measured=each.task.world_size <= params.most_measured_ranks
        )
        for each in tasks
    ]
    if not frames:
        raise TaskError(f"suite {suite!r} has no task; list some, or leave the suite out of benchmark.suites.names")
    return pd.concat(frames, ignore_index=True)


def _check_unique(frames: Sequence[pd.DataFrame]) -> None:
    owner: dict[str, str] = {}
    for frame in frames:
        suite = str(frame["suite"].iloc[0])
        for task_id in frame["task_id"].unique():
            if task_id in owner:
                raise TaskError(f"task {task_id!r} stands in the suites {owner[task_id]} and {suite}; rename one")
            owner[task_id] = suite


def _unseen(tables: Sequence[Table]) -> list[Table]:
    """Names of their own, as the ids of a table are drawn by its name."""
    return [replace(table, name=f"bench_{table.name}") for table in tables]


def _paper(pool: Sequence[Table], settings: SuiteSettings, world_size: int, suite: str) -> Iterable[SuiteTask]:
    """As many tasks for every maximum dimension; the first dimensions get one more where it does not come out even."""
    paper, suites = settings.paper, settings.suites
    frame = _pool_frame(pool)
    for place, largest in enumerate(sorted(paper.dimensions)):
        count = len(range(place, suites.tasks, len(paper.dimensions)))
        params = ShardingTaskParams(
            world_sizes=(world_size,),
            tasks_per_world_size=(count,),
            batch_size=suites.batch_size,
            dimensions=tuple(dim for dim in paper.dimensions if dim <= largest),
            min_tables_per_4_ranks=paper.min_tables_per_4_ranks,
            max_tables_per_4_ranks=paper.max_tables_per_4_ranks,
            memory_bytes=paper.memory_bytes,
            memory_fill=paper.memory_fill,
            seed=1000 * suites.seed + largest,
        )
        for index, task in enumerate(tasks_from_frame(sharding_tasks(frame, params))):
            task_id = f"{suite}-max{largest:03d}-{index:03d}"
            yield SuiteTask(f"max dimension {largest}", replace(task, task_id=task_id))


def _pool_frame(pool: Sequence[Table]) -> pd.DataFrame:
    return tables_to_frame(pool).drop(columns="embedding_dim")


def _tight(pool: Sequence[Table], settings: SuiteSettings) -> Iterable[SuiteTask]:
    paper, tight, suites = settings.paper, settings.tight, settings.suites
    for index in range(suites.tasks):
        world_size = tight.world_sizes[index % len(tight.world_sizes)]
        task = tight_task(
            pool, paper.table_limits(world_size), paper.dimensions, world_size, suites.batch_size, tight.memory_fill,
            settings.memory, f"tight-{world_size}-ranks-{index // len(tight.world_sizes):03d}", suites.seed,
        )  # fmt: skip
        yield SuiteTask(f"{world_size} ranks", task)


def _scale(settings: SuiteSettings) -> Iterable[SuiteTask]:
    scale, suites = settings.scale, settings.suites
    for num_tables, world_size in zip(scale.num_tables, scale.world_sizes, strict=True):
        drawn = PoolParams(
            num_tables=num_tables, batch_size=suites.batch_size, row_scale=scale.row_scale, seed=settings.pool.seed
        )
        rng = np.random.default_rng([_SCALE_STREAM, suites.seed, num_tables, world_size])
        tables = _unseen(tables_from_frame(generate_pool(drawn)))
        dims = rng.choice(settings.paper.dimensions, size=num_tables)
        sized = [replace(table, embedding_dim=int(dim)) for table, dim in zip(tables, dims, strict=True)]
        needed = sum(table.weight_bytes for table in sized)
        memory_bytes = int(needed / (scale.memory_fill * world_size)) + 1
        task_id = f"scale-{num_tables}-tables-{world_size}-ranks"
        yield SuiteTask(f"{num_tables:,} tables", ShardingTask(
            sized, world_size, suites.batch_size, memory_bytes, task_id=task_id
        ))  # fmt: skip


def _public(settings: SuiteSettings, suite: str) -> Iterable[SuiteTask]:
    for params in settings.public.tasks:
        if params.suite == suite:
            task = task_from_tables(
                read_tables(params.tables), params.world_size, settings.suites.batch_size, params.memory_bytes,
                params.row_scale, params.task_id,
            )  # fmt: skip
            yield SuiteTask(f"{params.world_size} ranks", task)


def _of_user(suite: str, path: str) -> Iterable[SuiteTask]:
    for task in read_tasks(path):
        yield SuiteTask(f"{task.world_size} ranks", replace(task, task_id=f"{suite}-{task.task_id}"))
