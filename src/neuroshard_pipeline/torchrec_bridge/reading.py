"""Plans that TorchRec made, as plans of this project."""

from __future__ import annotations

from neuroshard_pipeline.search.memory import WEIGHTS_AND_OPTIMIZER, MemoryModel
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.structures import ShardingPlan, read_sharding_plan


def from_torchrec(
    plan: ShardingPlan, task: ShardingTask, sharder: str = "torchrec", memory: MemoryModel = WEIGHTS_AND_OPTIMIZER
) -> Plan:
    """The `Plan` with the shards of all modules of a `ShardingPlan`.

    Args:
        plan: a plan of table-wise and column-wise shards.
        task: the task that it solves; its tables have the names that they have in TorchRec's plan.
        sharder: the sharder that the plan names as its author.
        memory: what counts against the memory of a rank.

    Raises:
        PlanError: the plan has another sharding type, an unknown table or a table with another number of rows, or it
            violates an invariant of `Plan`.
    """
    shards, ranks = read_sharding_plan(plan, {table.name: table for table in task.tables})
    return Plan(task, shards, ranks, sharder, memory=memory)
