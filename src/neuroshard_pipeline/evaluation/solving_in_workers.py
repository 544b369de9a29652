"""Solves several sharding tasks at the same time, each in a worker process."""

import math
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.workers import Outcome

Solve = Callable[[Sequence[ShardingTask]], Solutions]


def solve_in_workers(
    solve: Solve,
    tasks: Sequence[ShardingTask],
    sharders: Sequence[str],
    run: Callable[[Solve, Sequence[Sequence[ShardingTask]]], Iterable[Outcome[Solutions]]],
) -> Solutions:
    """Solve all tasks, with distinct `task_id`; the plans and attempts have the order of the tasks.

    `solve` works like `sharders.registry.solve_all`, and `run` like `workers.map_items`. All `sharders` fail at a task
    whose worker died, ran out of time or raised an error.
    """
    found = {}
    for outcome in run(solve, [[task] for task in tasks]):
        found[outcome.index] = outcome.value or _aborted(tasks[outcome.index], sharders, outcome.error)
    ordered = [found[index] for index in range(len(tasks))]
    attempts = pd.concat([solutions.attempts for solutions in ordered], ignore_index=True)
    return Solutions(tuple(plan for solutions in ordered for plan in solutions.plans), attempts)


def _aborted(task: ShardingTask, sharders: Sequence[str], reason: str | None) -> Solutions:
    error = f"{task.task_id}: the worker did not solve this task: {reason}"
    attempt = {"task_id": task.task_id, "sharder": list(sharders), "seconds": math.nan, "error": error}
    return Solutions((), pd.DataFrame(attempt))
