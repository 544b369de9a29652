"""EMBark with a step cost model: whole tables, ranges of rows and replicas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models

from neuroshard_pipeline.errors import ConstraintError, DoesNotFitError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.embark import EmbarkSharder
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.row_blocks import row_blocks
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.writer import Devices, torchrec_form

BATCH = 512


def plan_of(task, network_slowdown=10.0, replica_rows_per_sample=0.0):
    problem = Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER)
    sharder = EmbarkSharder(network_slowdown, replica_rows_per_sample)
    placement = sharder.shard(problem, np.random.default_rng(0))
    return Plan(task, placement.shards, placement.ranks, "embark", memory=WEIGHTS_AND_OPTIMIZER)


def types_of(plan):
    return {shard.table.name: shard.sharding_type for shard in plan.shards}


def test_the_table_of_highest_load_is_split_over_a_host_and_then_over_all_ranks():
    cold = [Table(f"cold{index}", 1000, 16, 2.0) for index in range(8)]
    found = []
    for pooling_factor in (10.0, 30.0, 10_000.0):
        task = ShardingTask([Table("hot", 1000, 16, pooling_factor), *cold], 4, BATCH, 2**30, local_world_size=2)
        plan = plan_of(task)
        found.append(types_of(plan).pop("hot"))
        assert {of for name, of in types_of(plan).items() if name != "hot"} == {"column_wise"}
    assert found == ["column_wise", "table_row_wise", "row_wise"]


def test_ranges_of_rows_send_all_columns_so_that_a_slow_network_prevents_splits():
    tables = [Table("hot", 1000, 16, 200.0), *(Table(f"cold{index}", 1000, 16, 2.0) for index in range(8))]
    task = ShardingTask(tables, 2, BATCH, 2**30)
    assert types_of(plan_of(task, network_slowdown=1.0))["hot"] == "row_wise"
    assert types_of(plan_of(task, network_slowdown=1000.0))["hot"] == "column_wise"


def test_tables_of_few_rows_per_sample_are_replicated():
    tables = [Table("tiny", 71, 16, 2.0), Table("small", 72, 16, 2.0), Table("large", 10_000, 16, 2.0)]
    task = ShardingTask(tables, 2, BATCH, 2**30)
    plan = plan_of(task, replica_rows_per_sample=71 / BATCH)
    assert types_of(plan) == {"tiny": "data_parallel", "small": "column_wise", "large": "column_wise"}


def test_nothing_is_replicated_if_replicas_leave_no_room():
    tables = [Table("tiny", 64, 16, 2.0), Table("large", 256, 16, 2.0)]
    task = ShardingTask(tables, 2, BATCH, (200 * 64, 130 * 64))
    plan = plan_of(task, replica_rows_per_sample=1.0)
    assert "data_parallel" not in types_of(plan).values()


def test_a_table_that_no_column_split_can_hold_is_split_by_rows():
    giant = Table("giant", 10_000, 4, 5.0)
    assert types_of(plan_of(ShardingTask([giant], 4, BATCH, giant.weight_bytes // 4))) == {"giant": "row_wise"}
    with pytest.raises(DoesNotFitError, match=r": 4 bytes are missing, .* at least 40000 bytes"):
        plan_of(ShardingTask([giant], 4, BATCH, giant.weight_bytes // 4 - 1))


def test_constraints_on_ranks_types_and_groups_are_kept():
    tables = [Table(name, 1000, 16, 5.0) for name in ("pinned", "rows", "replica", "one", "two")]
    constraints = Constraints(
        (
            TableConstraint("pinned", ranks=(3,)),
            TableConstraint("rows", sharding_types=("table_row_wise",), ranks=(0, 2, 3)),
            TableConstraint("replica", sharding_types=("data_parallel",)),
        ),
        together=(("one", "two"),),
    )
    plan = plan_of(ShardingTask(tables, 4, BATCH, 2**30, constraints=constraints, local_world_size=2))
    ranks = {shard.table.name: rank for shard, rank in zip(plan.shards, plan.ranks, strict=True)}
    assert types_of(plan)["rows"] == "table_row_wise"
    assert types_of(plan)["replica"] == "data_parallel"
    assert (ranks["pinned"], ranks["rows"]) == (3, 3)
    assert ranks["one"] == ranks["two"]


def test_a_table_that_may_only_be_a_grid_is_refused():
    constraints = Constraints(sharding_types=("grid_shard",))
    task = ShardingTask([Table("t", 1000, 16, 5.0)], 4, BATCH, 2**30, constraints=constraints, local_world_size=2)
    with pytest.raises(ConstraintError, match="'t' may only be grid_shard"):
        plan_of(task)


@st.composite
def tasks(draw):
    rows, dims, poolings = st.integers(8, 3000), st.sampled_from([4, 8, 64]), st.floats(0.5, 50)
    tables = [
        Table(f"t{index}", draw(rows), draw(dims), draw(poolings), pooling=draw(st.sampled_from(["sum", "none"])))
        for index in range(draw(st.integers(1, 12)))
    ]
    world_size, local = draw(st.sampled_from([(1, None), (2, None), (4, 2), (8, 4), (6, 2)]))
    needed = sum(table.weight_bytes for table in tables)
    memory = int(draw(st.floats(0.8, 3.0)) * needed / world_size) + 1
    return ShardingTask(tables, world_size, BATCH, memory, local_world_size=local)


@settings(max_examples=60)
@given(task=tasks(), share=st.sampled_from([0.0, 0.14, 2.0]))
def test_plans_can_be_trained_and_a_task_that_fits_in_equal_ranges_of_rows_is_solved(task, share):
    try:
        plan = plan_of(task, replica_rows_per_sample=share)
    except DoesNotFitError:
        largest = sum(
            row_blocks(table.num_embeddings, task.world_size)[0][1] * table.embedding_dim * 4 for table in task.tables
        )
        can_be_cut = all(row_blocks(table.num_embeddings, task.world_size)[-1][1] for table in task.tables)
        assert largest > task.memory_bytes or not can_be_cut
    else:
        devices = Devices(task.world_size, task.local_world_size, "cpu")
        torchrec_form(task.tables, plan.shards, plan.ranks, devices, {table.name: table.name for table in task.tables})
