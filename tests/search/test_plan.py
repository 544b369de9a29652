import dataclasses

import pytest

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

A, B = Table("a", 100, 16, 1.0), Table("b", 50, 8, 3.0)
TASK = ShardingTask([A, B], world_size=3, batch_size=32, memory_bytes=2**20)


def test_columns_bytes_and_shards_per_rank():
    plan = Plan(TASK, (Shard(A, 0, 4), Shard(A, 4, 12), whole(B)), (2, 0, 0), "by hand")
    assert plan.dim_sums == (20, 0, 4)
    assert plan.memory_bytes == (100 * 12 * 4 + 50 * 8 * 4, 0, 100 * 4 * 4)
    assert plan.shards_by_rank == tuple(plan.shards_of(rank) for rank in range(3))
    assert plan.to_frame()["column_offset"].tolist() == [0, 4, 0]


def test_repr_is_one_line():
    plan = Plan(TASK, (Shard(A, 0, 4), Shard(A, 4, 12), whole(B)), (2, 0, 0), "hand")
    assert repr(plan) == "Plan('task' by hand: 2 tables in 3 shards on 3 ranks, unpriced)"
    cost = PlanCost((1.0, 0.0, 0.0), (0.5, 0.0, 0.0), (0.25,) * 3, (0.25,) * 3)
    assert "2 ms predicted" in repr(dataclasses.replace(plan, predicted=cost))
    assert repr(TASK) == "ShardingTask('task': 2 tables for 3 ranks, batch_size 32, sgd)"


@pytest.mark.parametrize(
    ("shards", "ranks", "message"),
    [
        ((whole(A),), (0,), "'b' has columns not covered"),
        ((Shard(A, 0, 8), whole(B)), (0, 0), "'a' has columns not covered from 8"),
        ((Shard(A, 0, 8), Shard(A, 4, 12), whole(B)), (0, 1, 0), "covered twice at 4"),
        ((whole(A), whole(B)), (0, 3), "rank 3 lies outside"),
        ((whole(A), whole(B)), (0,), "2 shards, but 1 ranks"),
        ((whole(A), whole(B), whole(Table("c", 5, 4, 1.0))), (0, 0, 0), "'c' is in the plan but not in the task"),
    ],
)
def test_an_invalid_plan_is_refused(shards, ranks, message):
    with pytest.raises(PlanError, match=message):
        Plan(TASK, shards, ranks, "by hand")


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (Constraints([TableConstraint("a", ranks=[0, 1])]), r"'a' lies on rank 2, but may only lie on \[0, 1\]"),
        (Constraints([TableConstraint("b", forbidden_ranks=[0])]), r"'b' lies on rank 0, but may only lie on \[1, 2\]"),
        (Constraints(min_width=8), "'a' has a shard of 4 columns, but its shards need at least 8"),
        (
            Constraints([TableConstraint("a", split=False)]),
            "'a' has its columns cut into 2 parts, but may have at most 1",
        ),
        (Constraints(together=[["a", "b"]]), r"'a', 'b' must be kept together, but lie on ranks \[0, 2\]"),
    ],
)
def test_a_violated_constraint_is_refused(constraints, message):
    task = dataclasses.replace(TASK, constraints=constraints)
    with pytest.raises(PlanError, match=message):
        Plan(task, (Shard(A, 0, 4), Shard(A, 4, 12), whole(B)), (2, 0, 0), "by hand")


def test_explanation_names_the_slowest_rank_and_its_largest_part():
    cost = PlanCost((1.0, 0.0, 0.1), (2.0, 0.0, 0.2), (0.5, 3.0, 3.0), (0.25, 0.25, 0.25))
    plan = Plan(TASK, (Shard(A, 0, 4), Shard(A, 4, 12), whole(B)), (2, 0, 0), "by hand", cost)
    text = plan.explain()
    assert "predicted 3.750 ms" in text
    assert "rank 0 with compute 3.000 + backward communication 0.250 + forward communication 0.500 = 3.750 ms\n" in text
    assert "limited by: compute of rank 0 (80% of its step)" in text
    assert "a[4:16], b" in text
    assert "(empty)" in text
    assert "6.25 KiB, 1% of 1.00 MiB; compute" in text
    assert "assumed for 2 of 2 tables: a, b" in text


def test_explanation_without_costs_and_with_profiles():
    profiled = [dataclasses.replace(table, unique_rows=10.0, reuse=(1.0,) + (0.0,) * 16) for table in (A, B)]
    task = ShardingTask(profiled, 1, 32, 2**20)
    text = Plan(task, tuple(map(whole, profiled)), (0, 0), "by hand").explain()
    assert "no predicted cost" in text
    assert "slowest rank" not in text
    assert "reuse profiles: given for every table" in text
