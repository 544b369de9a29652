"""The tasks that policies are trained on, whose tables no other stage uses."""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.augment.drawing import TableLimits
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.augment.task_draws import ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.sharders.policies.params import PolicyTaskParams
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.task import ShardingTask


@dataclass(frozen=True)
class PolicyTasks:
    """Tasks to train on, and tasks that select the weights."""

    training: tuple[ShardingTask, ...]
    validation: tuple[ShardingTask, ...]


def draw_policy_tasks(pool: PoolParams, drawn: ShardingTaskParams, params: PolicyTaskParams) -> PolicyTasks:
    """Draw tasks like those of `augment.sharding_tasks` from another pool.

    The evaluation tasks use nearly all tables of their pool; a second pool with another seed has the same statistics
    and no table in common with it.
    """
    tables = generate_pool(pool.model_copy(update={"seed": params.pool_seed}))
    counts = (params.tasks_per_world_size,) * len(params.world_sizes)
    changed = {name: getattr(params, name) for name in ("seed", "world_sizes", *TableLimits.model_fields)}
    wanted = drawn.model_copy(update=changed | {"tasks_per_world_size": counts, "tight_share": 0.0})
    tasks = tasks_from_frame(sharding_tasks(tables, wanted))
    order = np.random.default_rng(params.seed).permutation(len(tasks))
    shuffled = [tasks[index] for index in order]
    return PolicyTasks(tuple(shuffled[params.validation_tasks :]), tuple(shuffled[: params.validation_tasks]))
