"""The sharding tasks whose plans are measured."""

from dataclasses import replace

import pandas as pd

from neuroshard_pipeline.augment import ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.frames import tasks_from_frame, tasks_to_frame
from neuroshard_pipeline.torchrec_bridge.truth.params import TruthTaskParams


def truth_tasks(pool: pd.DataFrame, drawing: ShardingTaskParams, params: TruthTaskParams) -> pd.DataFrame:
    """Draw tasks for `params.drawn_for_ranks` ranks, and give their tables to `params.world_size` ranks.

    The tables of a task are those of the task of the same name in the dataset `augment.sharding_tasks`. Every
    rank then has more tables than usual, so that the lookups, in which plans differ, are a large part of a step.

    Args:
        pool: the dataset `augment.table_pool`.
        drawing: the parameters `augment.sharding_tasks`; their numbers of ranks, ranks per host and tasks do not
            count.
        params: numbers of ranks and tasks.

    Returns:
        One row per table of a task, like the dataset `augment.sharding_tasks`.

    Raises:
        TaskError: a batch cannot be divided equally among the ranks.
    """
    if drawing.batch_size % params.world_size:
        raise TaskError(
            f"truth.task.world_size {params.world_size} must divide augment.sharding_tasks.batch_size "
            f"{drawing.batch_size}; give another number of ranks"
        )
    counts = {
        "world_sizes": (params.drawn_for_ranks,),
        "tasks_per_world_size": (params.num_tasks,),
        "local_world_size": None,
    }
    drawn = tasks_from_frame(sharding_tasks(pool, drawing.model_copy(update=counts)))
    memory_bytes = drawing.memory_bytes * params.drawn_for_ranks // params.world_size
    return tasks_to_frame([replace(task, world_size=params.world_size, memory_bytes=memory_bytes) for task in drawn])
