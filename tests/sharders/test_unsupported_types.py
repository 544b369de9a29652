"""Sharders that cannot make row shards refuse tables that need them, while other sharders of the run continue."""

from __future__ import annotations

import pytest
from search.small_models import small_models
from search.small_step import step_models

from neuroshard_pipeline.errors import ConstraintError
from neuroshard_pipeline.sharders.registry import GREEDY_WEIGHTS, LEARNED, shard, solve_all
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
