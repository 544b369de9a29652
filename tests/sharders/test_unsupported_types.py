"""Sharders that cannot make row shards refuse tables that need them, while other sharders of the run continue."""

from __future__ import annotations

import pytest
from search.small_models import small_models
from search.small_step import step_models

from neuroshard_pipeline.errors import ConstraintError
from neuroshard_pipeline.sharders.registry import GREEDY_WEIGHTS, LEARNED, shard, solve_all
from neuroshard_pipeline.tables.constraint_file import read_constraints
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from sharders.policy_makers import untrained_policies

TABLES = (Table("free", 100, 16, 5.0), Table("rows", 400, 16, 5.0))
ROWS_ONLY = Constraints((TableConstraint("rows", sharding_types=("row_wise",)),))
TASK = ShardingTask(TABLES, 2, 64, 2**30, constraints=ROWS_ONLY, task_id="rows-only")
COLUMN_SHARDS_ONLY = ("random", *GREEDY_WEIGHTS, "milp", "neuroshard", *LEARNED)


@pytest.mark.parametrize("name", COLUMN_SHARDS_ONLY)
def test_the_refusal_names_task_table_and_sharder(name):
    with pytest.raises(ConstraintError, match=rf"rows-only: table 'rows' may only be row_wise, but {name} makes"):
        shard(TASK, step_models(), name, policies=untrained_policies())


def test_without_a_step_cost_model_neuroshard_plus_refuses_too():
    with pytest.raises(ConstraintError, match="use neuroshard_plus with a step cost model"):
        shard(TASK, small_models(), "neuroshard_plus")


def test_a_refusal_is_a_failed_attempt_and_the_other_sharders_continue():
    solutions = solve_all([TASK], ["random", "neuroshard_plus"], step_models())
    assert [plan.sharder for plan in solutions.plans] == ["neuroshard_plus"]
    (failure,) = solutions.failures.itertuples()
    assert (failure.task_id, failure.sharder) == ("rows-only", "random")
    assert "may only be row_wise" in failure.error


def refused(table, local_world_size=None, **constraints):
    """The message about a task on four ranks whose only table can have no type."""
    own = Constraints((TableConstraint(table.name, **constraints),))
    task = ShardingTask([table], 4, 64, 2**30, constraints=own, local_world_size=local_world_size)
    with pytest.raises(ConstraintError) as caught:
        shard(task, step_models(), "neuroshard_plus")
    return str(caught.value)


def test_every_type_has_its_true_reason_and_every_type_that_works_is_offered():
    several = refused(TABLES[1], sharding_types=["grid_shard"])
    assert "(grid_shard: it needs several hosts" in several
    assert several.endswith("; allow column_wise or row_wise or data_parallel")
    for name in several.rpartition("allow ")[2].split(" or "):
        free = Constraints((TableConstraint("rows", sharding_types=[name]),))
        assert shard(ShardingTask(TABLES[1:], 4, 64, 2**30, constraints=free), step_models()).shards
    few = refused(Table("few", 5, 16, 5.0), sharding_types=["row_wise", "table_row_wise"])
    assert "row_wise: at least one of 4 ranks would get none of its 5 rows; table_row_wise: it needs several" in few
    assert few.endswith("; allow column_wise or data_parallel")
    single = refused(Table("one", 1, 16, 5.0), 2, sharding_types=["row_wise", "table_row_wise"], forbidden_ranks=[3])
    assert "row_wise: it needs every rank, and some ranks are not allowed; table_row_wise: at least one of 2" in single
    assert single.endswith("; allow column_wise")


def test_the_file_of_the_constraints_is_named(tmp_path):
    path = tmp_path / "rules.yml"
    path.write_text("tables: {rows: {sharding_types: [grid_shard]}}")
    grids = ShardingTask(TABLES, 2, 64, 2**30, constraints=read_constraints(path), task_id="grids")
    with pytest.raises(ConstraintError, match=r"grids: .*rules\.yml: table 'rows' can have none"):
        shard(grids, step_models(), "neuroshard_plus")
    with pytest.raises(ConstraintError, match=r"grids: .*rules\.yml: table 'rows' may only be grid_shard, but random"):
        shard(grids, step_models(), "random")
