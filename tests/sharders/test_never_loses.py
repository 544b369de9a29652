"""No plan of `neuroshard_plus` is dearer than that of a sharder that uses no measurement, under the same models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search.settings import QUICK
from search.small_step import step_models

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.sharders.greedy import GREEDY_WEIGHTS
from neuroshard_pipeline.sharders.registry import shard, solve_all
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

RIVALS = (*GREEDY_WEIGHTS, "embark", "neuroshard")


@st.composite
def tasks(draw) -> ShardingTask:
    """One to four tables of all poolings and data types, one to four ranks on one or several hosts, uneven memory."""
    world_size = draw(st.integers(1, 4))
    tables = [
        Table(
            f"t{number}",
            draw(st.integers(4, 5000)),
            draw(st.sampled_from([4, 12, 32])),
            draw(st.floats(0.5, 30)),
            data_type=draw(st.sampled_from(["fp32", "fp16"])),
            pooling=draw(st.sampled_from(["sum", "mean", "none"])),
        )
        for number in range(draw(st.integers(1, 4)))
    ]
    largest = max(table.weight_bytes for table in tables)
    memory = [round(largest * draw(st.floats(0.5, 6))) for _ in range(world_size)]
    local = draw(st.sampled_from([size for size in range(1, world_size + 1) if world_size % size == 0]))
    return ShardingTask(tables, world_size, 64 * world_size, memory, local_world_size=local)


@settings(max_examples=10)
@given(tasks(), st.floats(0.001, 0.3))
def test_no_rival_has_a_cheaper_plan(task: ShardingTask, ms_per_mib: float):
    found = solve_all([task], ["neuroshard_plus", *RIVALS], step_models(ms_per_mib=ms_per_mib), QUICK)
    costs = {plan.sharder: plan.predicted_cost_ms for plan in found.plans}
    if costs:
        assert costs["neuroshard_plus"] <= 1.001 * min(costs.values())


def test_an_input_dist_costs_nothing_on_a_single_rank():
    """TorchRec exchanges no ids with one rank, so the tables of one rank cost the same with and without a pipeline."""
    tables = [Table("a", 500, 16, 2.0), Table("b", 90, 8, 5.0, pooling="mean")]
    tasks = [ShardingTask(tables, 1, 512, 2**30, task_id="now")]
    tasks.append(replace(tasks[0], task_id="ahead", pipelines_input_dist=True))
    plans = solve_all(tasks, ["neuroshard_plus", "embark"], step_models(), QUICK).plans
    assert [plan.predicted_cost_ms for plan in plans] == pytest.approx([plans[0].predicted_cost_ms] * 4)
    assert {shard.sharding_type for plan in plans for shard in plan.shards} == {"column_wise"}


def test_grid_sharded_tables_may_have_fewer_column_blocks_than_there_are_hosts():
    """From plans with as many blocks as hosts, no change of a single table leads to the cheaper plans."""
    rows = (2321, 9_497_058, 11, 1266, 805, 418_438, 21_432, 16_124)
    factors = (0.243, 1.084, 0.554, 0.284, 0.217, 1.282, 0.617, 2.219)
    dims = (4, 4, 4, 4, 256, 256, 256, 256)
    tables = [Table(f"t{at}", *each) for at, each in enumerate(zip(rows, dims, factors, strict=True))]
    own = TableConstraint("t3", min_width=32, split=False)
    types = Constraints((own,), max_shards=3, sharding_types=("grid_shard", "data_parallel"))
    options = {"local_world_size": 2, "comm_precision": "fp16", "constraints": types}
    task = ShardingTask(tables, 6, 39_282, 442_694_765, "adam", **options)
    assert (
        shard(task, load_cost_models("a100"), params=QUICK).predicted_cost_ms < 2.1
    )  # 2.23 with as many blocks as hosts


def test_modules_may_have_different_sharding_types():
    """Two weighted tables are best grid-sharded together, the other one row-wise; no single change leads there."""
    tables = [
        Table("t0", 740, 64, 17.9, num_features=2, is_weighted=True),
        Table("t1", 114_099, 64, 0.523, num_features=3, data_type="fp16"),
        Table("t2", 1745, 64, 93.4, num_features=2, data_type="fp16", is_weighted=True),
    ]
    options = {"local_world_size": 1, "pipelines_input_dist": True}
    task = ShardingTask(tables, 5, 285, 16_601_884, "adam", **options)
    plan = shard(task, load_cost_models("h100"), params=QUICK)
    assert plan.predicted_cost_ms < 0.5  # 0.523 if all tables are row-wise


def test_one_module_may_be_replicated_and_the_other_one_column_wise():
    rows, dims = (31, 2365, 49, 27, 43, 13, 19), (20, 48, 48, 64, 20, 32, 64)
    factors, weighted = (6.69, 0.561, 59.0, 0.201, 6.23, 2.53, 0.509), (1, 3, 6)
    tables = [
        Table(f"t{at}", *each, pooling="mean" if at in (2, 5) else "sum", data_type="fp16", is_weighted=at in weighted)
        for at, each in enumerate(zip(rows, dims, factors, strict=True))
    ]
    task = ShardingTask(tables, 5, 14_010, 503_224, "rowwise_adagrad", num_replica_groups=2)
    plan = shard(task, load_cost_models("h100"), params=QUICK)
    assert plan.predicted_cost_ms < 1.3  # 1.36 with the same types in both modules


def test_a_rank_that_the_cost_models_tell_apart_from_others_is_tried():
    """Ranks 0 to 7 share a host of the modelled cluster, but not of the task. Rank 8 makes the all-to-alls cheaper."""
    tables = [Table("t0", 21, 8, 0.768, data_type="fp16"), Table("t1", 46, 8, 2.348, data_type="fp16")]
    options = {"local_world_size": 1, "pipelines_input_dist": True}
    task = ShardingTask(tables, 9, 225, 5955, "adam", **options)
    plan = shard(task, load_cost_models("h100"), params=QUICK)
    assert plan.predicted_cost_ms < 0.298  # 0.302 without rank 8


def test_a_table_in_host_memory_gets_a_cache_where_memory_is_left_for_one():
    rows, factors = (191, 42, 320, 812, 777), (0.576, 0.428, 0.738, 0.204, 0.52)
    types = ("fp32", "fp32", "fp16", "fp16", "fp32")
    named = enumerate(zip(rows, factors, types, strict=True))
    tables = [Table(f"t{at}", n, 128, p, data_type=t, pooling="sum" if at else "mean") for at, (n, p, t) in named]
    task = ShardingTask(tables, 1, 97, 537_941, host_memory_bytes=1_613_824, index_dedup=True)
    plan = shard(task, load_cost_models("h100"), params=QUICK)
    assert [s.table.name for s in plan.shards if s.table.compute_kernel == "fused_uvm_caching"] == ["t4"]
