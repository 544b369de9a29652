"""Plans of a small task, and one plan of several sharding types."""

import dataclasses

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.plan_data import PlanCost
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

A, B, C = (Table(name, 100, 16, 2.0) for name in "abc")
GRID = Table("grid", 90, 16, 4.0, module="other")


TASK = ShardingTask([A, B, C], world_size=3, batch_size=32, memory_bytes=2**20, task_id="first")
COST = PlanCost((1.0, 2.0, 0.0), (1.0, 2.0, 0.0), (0.5, 0.1, 4.0), (0.2, 0.2, 0.1))


def plans():
    left, right = Shard(A, 0, 8), Shard(A, 8, 8)
    return [
        Plan(TASK, (whole(A), whole(B), whole(C)), (0, 0, 1), "one", COST),
        Plan(TASK, (whole(B), whole(C), whole(A)), (2, 1, 2), "two", COST),
        Plan(TASK, (left, whole(B), right, whole(C)), (0, 1, 2, 2), "three", COST),
    ]


def mixed_plan():
    """Whole, row-wise and replicated tables of one module, and a `grid_shard` one of another, on 2 hosts of 2 ranks."""
    half = Table("half", 100, 16, 2.0, data_type="fp16")
    task = ShardingTask([A, B, C, GRID, half], 4, 32, 2**20, task_id="mixed", local_world_size=2)
    placed = [
        (whole(A), 0),
        (whole(half), 0),
        *zip(row_shards(B, "row_wise", 4), range(4), strict=True),
        *((whole(C, "data_parallel"), rank) for rank in range(4)),
        *zip(row_shards(GRID, "grid_shard", 2, 0, 12), (0, 1), strict=True),
        *zip(row_shards(GRID, "grid_shard", 2, 12, 4), (2, 3), strict=True),
    ]
    shards, ranks = zip(*placed, strict=True)
    cost = dataclasses.replace(COST, **{field.name: (1.0,) * 4 for field in dataclasses.fields(COST)})
    return Plan(task, shards, ranks, "mixed", cost)
