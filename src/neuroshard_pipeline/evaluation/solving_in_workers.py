"""Solves several sharding tasks at the same time, each in a worker process.

An attempt is the record of one sharder on one task: how long it took, and why there is no plan if there is none.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions, solve_all
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.workers import Outcome


@dataclass(frozen=True)
class TaskSolver:
    """Solves one task with all sharders, in a worker process.

    Attributes:
        sharders: names of the sharders.
        models: cost models.
        settings: settings of the searches and of the memory model.
        seed: seed of the sharders. Their random numbers do not depend on the worker.
    """

    sharders: tuple[str, ...]
    models: CostModels
    settings: SharderSettings
    seed: int

    def __call__(self, task: ShardingTask) -> Solutions:
        """The plans and attempts of `task`."""
        return solve_all([task], self.sharders, self.models, self.settings, self.seed)

    def aborted(self, task: ShardingTask, reason: str | None) -> Solutions:
        """A failed attempt of every sharder, for a task whose worker died, ran out of time or raised an error."""
        error = f"{task.task_id}: the worker did not solve this task: {reason}"
        attempt = {"task_id": task.task_id, "sharder": self.sharders, "seconds": math.nan, "error": error}
        return Solutions((), pd.DataFrame(attempt))


def solve_in_workers(
    solver: TaskSolver,
    tasks: Sequence[ShardingTask],
    run: Callable[[TaskSolver, Sequence[ShardingTask]], Iterable[Outcome[Solutions]]],
    solved: Callable[[], object],
) -> Solutions:
    """Solve all tasks; the plans and attempts have the order of the tasks.

    Args:
        solver: the sharders and what they need.
        tasks: sharding tasks with distinct `task_id`.
        run: applies a function to items and yields each outcome as soon as it is known, as `workers.map_items` does.
        solved: called after every task, for example to advance a progress bar.
    """
    found: list[Solutions | None] = [None] * len(tasks)
    for outcome in run(solver, tasks):
        found[outcome.index] = outcome.value or solver.aborted(tasks[outcome.index], outcome.error)
        solved()
    each = [solutions for solutions in found if solutions is not None]
    attempts = pd.concat([solutions.attempts for solutions in each], ignore_index=True)
    return Solutions(tuple(plan for solutions in each for plan in solutions.plans), attempts)
