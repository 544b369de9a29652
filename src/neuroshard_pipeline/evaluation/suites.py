"""Draws the suites of the benchmark. A suite is a named set of sharding tasks.

The tables of random tasks are drawn for the benchmark alone; no cost model or policy is trained on them.
The tasks of a suite form groups, such as all tasks with 4 ranks. Results are given by suite and by group.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from neuroshard_pipeline.augment.pool import PoolParams, base_pool, generate_pool
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.evaluation import suite_tasks
from neuroshard_pipeline.evaluation.suite_params import SuiteParams, SuiteSettings
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.sharders.registry import on_hosts_of
from neuroshard_pipeline.tables.frames import tables_from_frame, tasks_to_frame
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import ShardingTask, on_hosts, task_from_tables
from neuroshard_pipeline.tables.task_file import read_tasks
from neuroshard_pipeline.tables.tiers import possible_tiers

#: Columns of `benchmark.tasks` in addition to those of `augment.sharding_tasks`.
SUITE_COLUMNS: tuple[str, ...] = ("suite", "group", "is_measured")

_SCALE_STREAM = 12


#: The name of a group within a suite, and one task of this group.
GroupedTask = tuple[str, ShardingTask]


def draw_suites(settings: SuiteSettings, models: Models) -> pd.DataFrame:
    """`benchmark.tasks`, the tasks of all suites: the columns of `augment.sharding_tasks` and `SUITE_COLUMNS`.

    If the cost models belong to a modelled cluster, tasks that state no ranks per host get the cluster's, provided that
    their ranks fill several of its hosts.

    Raises:
        TaskError: a suite has no task, a task cannot be drawn, or two tasks have the same id.
        TableFileError: a file of tables or tasks cannot be used.
    """
    pool, params = _renamed(tables_from_frame(base_pool(settings.pool))), settings.suites
    makers = _makers(pool, settings)
    drawn = {name: list(makers[name]()) for name in params.names}
    for name, path in params.user.items():
        read = [replace(task, task_id=f"{name}-{task.task_id}") for task in read_tasks(path)]
        drawn[name] = [(f"{task.world_size} ranks", task) for task in read]
    tasks, own = list[ShardingTask](), dict[str, tuple[str, str, bool]]()
    for suite, members in drawn.items():
        if not members:
            raise TaskError(f"suite {suite!r} has no task; add one to benchmark.public.tasks or leave out the suite")
        for group, member in members:
            task_id = member.task_id
            if task_id in own:
                raise TaskError(
                    f"two tasks are called {task_id!r} (suites: {own[task_id][0]}, {suite}); rename one of them"
                )
            tasks.append(on_hosts_of(models, on_hosts(member, params.local_world_size)))
            own[task_id] = suite, group, _is_measured(tasks[-1], params)
    return tasks_to_frame(tasks).join(pd.DataFrame.from_dict(own, "index", columns=SUITE_COLUMNS), on="task_id")


def _makers(pool: Sequence[Table], settings: SuiteSettings) -> dict[str, Callable[[], Iterable[GroupedTask]]]:
    """Functions that draw the tasks of each of `SUITES`."""
    makers: dict[str, Callable[[], Iterable[GroupedTask]]] = {
        "paper_4": lambda: _paper(pool, settings, 4),
        "paper_8": lambda: _paper(pool, settings, 8),
        "criteo": lambda: _public(settings, "criteo"),
        "hugectr_t510": lambda: _public(settings, "hugectr_t510"),
        "scale": lambda: _scale(settings),
    }
    cycled: dict[str, Callable[..., ShardingTask]] = {
        "tight": suite_tasks.tight_task,
        "giant_narrow": suite_tasks.giant_narrow_task,
        "many_tiny": suite_tasks.many_tiny_task,
        "several_hosts": suite_tasks.several_hosts_task,
        "sequences": suite_tasks.sequences_task,
    }
    for name, draw in cycled.items():
        own = getattr(settings, name)
        ranks = own.ranks if name == "several_hosts" else [(size,) for size in own.world_sizes]
        count = getattr(own, "tasks", settings.suites.tasks)
        makers[name] = partial(_cycled, name, count, ranks, partial(draw, pool, settings))
    return makers


def suite_of_tasks(tasks: pd.DataFrame) -> pd.DataFrame:
    """One row per task of `benchmark.tasks`: `suite, group, is_measured`, indexed by `task_id`."""
    return tasks.drop_duplicates("task_id").set_index("task_id")[list(SUITE_COLUMNS)]


def _is_measured(task: ShardingTask, params: SuiteParams) -> bool:
    """Whether the task has few enough ranks for measurements, and all its possible plans can be measured."""
    has_hosts = 1 < task.ranks_per_host < task.world_size  # otherwise, the search makes no host tiers
    if task.tiers and has_hosts and any("host" in possible_tiers(task, table) for table in task.tables):
        return False
    if task.num_replica_groups > 1 or task.host_memory_bytes is not None:
        return False
    return task.world_size <= params.most_measured_ranks


def _renamed(tables: Sequence[Table]) -> list[Table]:
    """Copies of the tables with new names. They look up other ids, because a table's name seeds the draw of its ids."""
    return [replace(table, name=f"bench_{table.name}") for table in tables]


def _paper(pool: Sequence[Table], settings: SuiteSettings, world_size: int) -> Iterable[GroupedTask]:
    """Draw the same number of tasks, plus or minus 1, for every maximum dimension in `paper.dimensions`."""
    suites, dimensions = settings.suites, settings.paper.dimensions
    for place, largest in enumerate(sorted(dimensions)):
        count = len(range(place, suites.tasks, len(dimensions)))
        narrow = {"dimensions": tuple(dim for dim in dimensions if dim <= largest)}
        drawn = {"local_world_size": suites.local_world_size, "seed": 1000 * suites.seed + largest, **narrow}
        for index, task in enumerate(suite_tasks.paper_tasks(pool, settings, world_size, count, **drawn)):
            task_id = f"paper_{world_size}-max{largest:03d}-{index:03d}"
            yield f"max dimension {largest}", replace(task, task_id=task_id)


def _cycled(
    suite: str, count: int, ranks: Sequence[tuple[int, ...]], draw: Callable[..., ShardingTask]
) -> Iterable[GroupedTask]:
    """Draw `count` tasks, which cycle through `ranks`: (number of ranks,) or (number of ranks, ranks per host)."""
    for index in range(count):
        turn, at = divmod(index, len(ranks))
        world_size, *local = ranks[at]
        placed = f"{world_size // local[0]}x{local[0]}" if local else f"{world_size}"
        yield f"{placed} ranks", draw(f"{suite}-{placed}-ranks-{turn:03d}", *ranks[at])


def _scale(settings: SuiteSettings) -> Iterable[GroupedTask]:
    scale, suites = settings.scale, settings.suites
    for num_tables, world_size in scale.sizes:
        drawn = PoolParams(
            num_tables=num_tables, batch_size=suites.batch_size, row_scale=scale.row_scale, seed=settings.pool.seed
        )
        rng = np.random.default_rng([_SCALE_STREAM, suites.seed, num_tables, world_size])
        tables = _renamed(tables_from_frame(generate_pool(drawn)))
        dims = rng.choice(settings.paper.dimensions, size=num_tables)
        sized = [replace(table, embedding_dim=int(dim)) for table, dim in zip(tables, dims, strict=True)]
        needed = sum(table.weight_bytes for table in sized)
        memory_bytes = int(needed / (scale.memory_fill * world_size)) + 1
        task_id = f"scale-{num_tables}-tables-{world_size}-ranks"
        task = ShardingTask(sized, world_size, suites.batch_size, memory_bytes, task_id=task_id)
        yield f"{num_tables:,} tables", task


def _public(settings: SuiteSettings, suite: str) -> Iterable[GroupedTask]:
    for params in settings.public.tasks:
        if params.suite == suite:
            task = task_from_tables(
                read_tables(params.tables),
                params.world_size,
                settings.suites.batch_size,
                params.memory_bytes,
                params.row_scale,
                params.task_id,
            )
            yield f"{params.world_size} ranks", task
