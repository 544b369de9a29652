"""Plans as frames: every plan comes back from its rows, with the tiers and kernels of its task."""

from dataclasses import replace

import numpy as np
import pytest
from sequence_draws import sequence_tables

from neuroshard_pipeline.evaluation.plan_frames import plans_frame, shards_from_frame, task_from_frame
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.spread import spread_tables
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task

from .made_plans import TASK, B, mixed_plan, plans

MEMORY: MemoryModel = default_memory()


def tiered_plan(kernel: str = "fused") -> Plan:
    """A table with all tiers and one with a hot tier, beside a sequence table and a pooled table without tiers."""
    tables = sequence_tables("steep", [20, 30, 40], [32, 32, 32], [5000, 6000, 7000], 512)
    pooled = Table("pooled", 1000, 16, 1.0, compute_kernel=kernel)
    limits = {"host_memory_bytes": 2**30} if kernel != "fused" else {}
    task = ShardingTask([*tables, pooled], 4, 512, 2**40, local_world_size=2, tiers=True, **limits)
    variant = tiered_task(task, {tables[0].name: Cuts(10, 20), tables[2].name: Cuts(hot_rows=15)})
    types = {"hot": "data_parallel", "host": "host_row_wise", "cold": "row_wise"}
    spread = spread_tables({t.name: types[t.tier.kind] for t in variant.tables if t.tier}, variant, MEMORY)
    others = [whole(table) for table in variant.tables if table.tier is None]
    return Plan(variant, (*spread.shards, *others), (*spread.ranks, 1, 2), "tiered", memory=MEMORY)


def asked(plan: Plan) -> ShardingTask:
    """The task that the plan was made for, before tiers and kernels were chosen."""
    tables = sequence_tables("steep", [20, 30, 40], [32, 32, 32], [5000, 6000, 7000], 512)
    return replace(plan.task, tables=[*tables, Table("pooled", 1000, 16, 1.0)])


def test_frames_have_the_same_columns_without_plans():
    assert list(plans_frame([]).columns) == list(plans_frame(plans()).columns)
    assert len(plans_frame(plans())) == 10


def test_plans_come_back_from_their_frame():
    for plan in (*plans(), mixed_plan(), tiered_plan()):
        assert shards_from_frame(plans_frame([plan]), plan.task) == (plan.shards, plan.ranks)
    old = plans_frame(plans()[:1]).drop(columns=["sharding_type", "row_offset", "num_rows"])
    assert shards_from_frame(old, TASK)[0] == plans()[0].shards


def test_the_task_of_a_plan_comes_back_from_its_frame():
    """The frame also holds plans without tables in host memory; for them, it names no compute kernels."""
    cached = Table("a", 1000, 16, 1.0, compute_kernel="fused_uvm_caching", cache_load_factor=0.5)
    task = ShardingTask([cached, B], 1, 8, 2**20, host_memory_bytes=2**20)
    plan = Plan(task, (Shard(cached, 0, 8), Shard(cached, 8, 8), whole(B)), (0, 0, 0), "in host memory")
    frame = plans_frame([plan, *plans()])
    rows = dict(list(frame.groupby("sharder", sort=False)))
    before = replace(task, tables=[Table("a", 1000, 16, 1.0), B])
    assert task_from_frame(rows["in host memory"], before) == task
    for other in plans():
        assert task_from_frame(rows[other.sharder], other.task) == other.task


@pytest.mark.parametrize("kernel", ["fused", "fused_uvm"])
def test_tiers_come_back_from_a_frame_of_many_plans(kernel):
    plan = tiered_plan(kernel)
    frame = plans_frame([plan, *plans()])
    rows = dict(list(frame.groupby("sharder", sort=False)))
    assert task_from_frame(rows["tiered"], asked(plan)) == plan.task
    assert shards_from_frame(rows["tiered"], plan.task) == (plan.shards, plan.ranks)
    for other in plans():
        assert task_from_frame(rows[other.sharder], other.task) == other.task
        assert shards_from_frame(rows[other.sharder], other.task) == (other.shards, other.ranks)


def test_rows_of_tiers_are_those_of_the_parent_in_order_of_popularity():
    plan = tiered_plan()
    frame = plan.to_frame()
    first, second = plan.tiers
    assert plan.tiers == {first: Cuts(10, 20), second: Cuts(15)}
    assert {first, second, "pooled"} < set(frame["table"])
    hot, host, cold = (frame[(frame["table"] == first) & (frame["tier"] == kind)] for kind in ("hot", "host", "cold"))
    assert sorted(hot["rank"]) == [0, 1, 2, 3]
    assert set(hot["row_offset"]) == {0}
    assert host.sort_values("rank")["row_offset"].tolist() == [10, 20, 10, 20]
    assert cold["row_offset"].min() == 30
    assert cold["num_rows"].sum() == 5000 - 30
    assert (frame[frame["table"] == "pooled"]["tier"] == "").all()
    assert np.issubdtype(frame["row_offset"].dtype, np.integer)
    assert "tier" not in plans()[0].to_frame()
