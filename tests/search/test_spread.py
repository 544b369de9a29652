"""Spread tables (replicated or cut by rows): their shards and ranks, and the search for the other tables."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.host_load import host_loads_ms
from neuroshard_pipeline.search.packing import check_room
from neuroshard_pipeline.search.parts import step_parts
from neuroshard_pipeline.search.placement import placed_state
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import Spread, column_part, column_problem, joined, spread_of, spread_tables
from neuroshard_pipeline.search.spread_choice import cut_tables
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.small_step import step_models
from search.tasks import random_tables

SPREAD_TYPES = ("data_parallel", "row_wise", "table_row_wise", "grid_shard")


def task_of(seed: int, num_tables: int = 6, world_size: int = 4, hosts: int = 1) -> ShardingTask:
    tables = random_tables(np.random.default_rng(seed), num_tables)
    return ShardingTask(tables, world_size, 512, 2**40, local_world_size=world_size // hosts)


def drawn_types(task: ShardingTask, rng: np.random.Generator, kinds=SPREAD_TYPES) -> dict:
    drawn = {table.name: rng.choice([*kinds, "column_wise"]) for table in task.tables}
    return {name: str(kind) for name, kind in drawn.items() if kind != "column_wise"}


@given(st.integers(0, 10**6), st.sampled_from([1, 2]))
def test_spread_tables_and_any_columns_make_a_valid_plan(seed, hosts):
    rng, task = np.random.default_rng(seed), task_of(seed, hosts=hosts)
    problem = Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER)
    spread = spread_tables(drawn_types(task, rng), task, WEIGHTS_AND_OPTIMIZER)
    columns = column_problem(problem, spread)
    found = None
    if columns is not None:
        found = columns.whole_placement(rng.integers(task.world_size, size=len(columns.units)))
    placement = joined(problem, found, spread)
    plan = Plan(task, placement.shards, placement.ranks, "drawn", memory=WEIGHTS_AND_OPTIMIZER)
    assert {shard.table.name: shard.sharding_type for shard in plan.shards if shard.sharding_type != "column_wise"} == (
        spread.types
    )
    assert spread_of(placement).types == spread.types
    assert len(column_part(placement).shards) == len(task.tables) - len(spread.types)


@given(st.integers(0, 10**6), st.booleans())
def test_a_search_beside_spread_tables_sees_the_price_of_the_whole_plan_except_the_second_wait(seed, is_spread):
    """In the second wait, ranks wait for each other at the exchange of ids between the halves (`price.predicted_cost`).

    A search without spread tables sees the same price, because searches with and without them are compared.
    """
    rng, task = np.random.default_rng(seed), task_of(seed)
    problem = Problem(task, step_models(seed), WEIGHTS_AND_OPTIMIZER)
    types = drawn_types(task, rng, ("data_parallel", "row_wise")) if is_spread else {}
    spread = spread_tables(types, task, WEIGHTS_AND_OPTIMIZER)
    columns = column_problem(problem, spread)
    if columns is None:
        return
    halved = [int(kind) for kind in columns.whole_tables if columns.can_halve[kind] and rng.random() < 0.5]
    kept = [int(kind) for kind in columns.whole_tables if int(kind) not in halved]
    kinds = np.array([*kept, *columns.halves(halved).ravel()], dtype=np.int64)
    state = placed_state(kinds, rng.integers(task.world_size, size=len(kinds)), columns)
    plan = price_plan(problem, joined(problem, columns.placement(state.kinds, state.ranks), spread), "drawn")
    input_dist_ms = step_parts(task, plan.shards, plan.ranks, problem.models).input_dist_ms
    second_wait_ms = plan.predicted.input_dist_ms[0] - input_dist_ms[0]
    assert second_wait_ms >= 0.0
    assert state.cost / 1e9 == pytest.approx(plan.predicted_cost_ms - second_wait_ms, rel=1e-6)


def test_the_all_to_all_of_tables_on_single_hosts_is_a_fixed_cost_of_the_search():
    task, models = task_of(1, hosts=2), step_models()
    spread = spread_tables({t.name: "table_row_wise" for t in task.tables[:3]}, task, WEIGHTS_AND_OPTIMIZER)
    parts = step_parts(task, spread.shards, spread.ranks, models)
    (dims,) = parts.dim_sums.values()
    backward_ms = models.comm.backward_ms(dims, task.batch_size)
    forward_ms = models.comm.forward_ms(dims, backward_ms - backward_ms.min(), task.batch_size)
    found = column_problem(Problem(task, models, WEIGHTS_AND_OPTIMIZER), spread).background_ms
    group_ms = found - parts.own_ms - backward_ms - forward_ms
    assert group_ms[0] > 0
    assert group_ms == pytest.approx(group_ms[0])


def test_column_tables_get_the_memory_that_spread_tables_leave():
    task = replace(task_of(3), memory_bytes=2**33)
    types = {task.tables[0].name: "data_parallel", task.tables[1].name: "row_wise"}
    problem = Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER)
    spread = spread_tables(types, task, WEIGHTS_AND_OPTIMIZER)
    columns = column_problem(problem, spread)
    taken = [0] * task.world_size
    for shard, rank in zip(spread.shards, spread.ranks, strict=True):
        taken[rank] += WEIGHTS_AND_OPTIMIZER.shard_bytes(shard, task)
    assert columns.limits.tolist() == [2**33 - bytes_ for bytes_ in taken]


def test_tables_cut_on_one_host_go_to_the_host_with_most_memory_left():
    tables = [Table(f"t{i}", 1000, 8, 1.0) for i in range(4)]
    task = ShardingTask(tables, 4, 64, 2**20, local_world_size=2)
    spread = spread_tables({table.name: "table_row_wise" for table in tables}, task, WEIGHTS_AND_OPTIMIZER)
    hosts = [rank // 2 for rank in spread.ranks]
    assert hosts.count(0) == hosts.count(1)


def hosts_of(spread) -> dict[str, int]:
    return {shard.table.name: rank // 2 for shard, rank in zip(spread.shards, spread.ranks, strict=True)}


def test_hosts_are_balanced_by_cost_if_memory_allows():
    tables = [Table(f"t{i}", 1000, 8, float(i)) for i in range(1, 6)]
    types = {table.name: "table_row_wise" for table in tables}
    task = ShardingTask(tables, 4, 64, 2**20, local_world_size=2)

    def load_ms(shards):
        return np.array([shard.table.pooling_factor for shard in shards])

    found = hosts_of(spread_tables(types, task, WEIGHTS_AND_OPTIMIZER, load_ms))
    assert found["t5"] == found["t2"] == found["t1"] != found["t4"] == found["t3"]
    most = 3 * WEIGHTS_AND_OPTIMIZER.shard_bytes(row_shards(tables[0], "table_row_wise", 2)[0], task)
    heavy = [*tables, Table("t6", 1000, 8, 0.1)]
    tight = replace(task, tables=heavy, memory_bytes=most)
    found = hosts_of(spread_tables({t.name: "table_row_wise" for t in heavy}, tight, WEIGHTS_AND_OPTIMIZER, load_ms))
    assert list(found.values()).count(0) == 3
    with pytest.raises(DoesNotFitError, match="bytes for its parts of spread tables"):
        spread_tables(types, replace(task, memory_bytes=most // 3), WEIGHTS_AND_OPTIMIZER, load_ms)


def test_the_load_of_a_host_is_what_its_tables_add_to_a_rank():
    """The load is the work that a table adds to an idle rank, plus what a second equal one adds to the reductions."""
    tables = [Table("few", 4000, 16, 1.0), Table("many", 4000, 16, 20.0), Table("wide", 4000, 64, 20.0)]
    task, models = ShardingTask(tables, 4, 4096, 2**30, local_world_size=2), step_models()
    cut = [row_shards(table, "table_row_wise", 2) for table in tables]
    found = host_loads_ms(Problem(task, models, WEIGHTS_AND_OPTIMIZER), [shards[0] for shards in cut])
    idle_ms = models.compute.costs_from_sums(np.zeros(32), task.batch_size).sum()
    for table, shards, load_ms in zip(tables, cut, found, strict=True):
        twins = row_shards(replace(table, name="twin"), "table_row_wise", 2)
        parts = step_parts(task, shards, (0, 1), models)
        both = step_parts(task, [*shards, *twins], (0, 1, 0, 1), models)
        work_ms = parts.input_dist_ms + parts.module_ms
        added_ms = parts.compute_ms[0].sum() - idle_ms + work_ms[0] - work_ms[2]
        assert load_ms == pytest.approx(added_ms + both.reduction_ms[0] - parts.reduction_ms[0])


def test_a_table_that_may_be_on_one_host_only_is_cut_there():
    constraints = Constraints([TableConstraint("t0", ranks=[2, 3])])
    task = ShardingTask([Table("t0", 1000, 8, 1.0)], 4, 64, 2**20, constraints=constraints, local_world_size=2)
    assert spread_tables({"t0": "table_row_wise"}, task, WEIGHTS_AND_OPTIMIZER).ranks == (2, 3)


def test_replicas_that_exceed_a_rank_are_refused():
    task = ShardingTask([Table("t0", 10_000, 64, 1.0), Table("t1", 10, 8, 1.0)], 2, 64, 3_000_000)
    with pytest.raises(DoesNotFitError, match="lacks"):
        spread_tables({"t0": "data_parallel"}, task, WEIGHTS_AND_OPTIMIZER)


def test_the_rows_of_a_table_are_cut_if_no_split_by_columns_fits():
    """The 20 columns may be cut once, at best into 12 and 8 columns. 1000 rows of 12 columns take 48,000 bytes."""
    constraints = Constraints([TableConstraint("t0", max_shards=2)])
    task = ShardingTask([Table("t0", 1000, 20, 1.0)], 4, 64, 48_000, constraints=constraints)
    types = {"t0": ("column_wise", "row_wise")}
    assert cut_tables(Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER), types) == {}
    check_room(task, WEIGHTS_AND_OPTIMIZER)
    tight = replace(task, memory_bytes=47_999)
    assert cut_tables(Problem(tight, step_models(), WEIGHTS_AND_OPTIMIZER), types) == {"t0": "row_wise"}
    with pytest.raises(DoesNotFitError, match=r"even a shard of 12 columns .*needs 48000 bytes"):
        check_room(tight, WEIGHTS_AND_OPTIMIZER)


def test_without_spread_tables_the_problem_has_the_task_itself():
    task = task_of(1)
    columns = column_problem(Problem(task, small_models(), WEIGHTS_AND_OPTIMIZER), Spread({}))
    assert columns.task is task
    assert columns.prices is None
