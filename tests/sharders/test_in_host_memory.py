"""Tasks that do not fit GPU memory get plans with tables in host memory."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.settings import QUICK, WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models
from search.tasks import random_tables

from neuroshard_pipeline.cost_models.caveats import host_memory
from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import DoesNotFitError, memory_text
from neuroshard_pipeline.search.changes import rejected_changes
from neuroshard_pipeline.search.host_memory import LOAD_FACTORS, host_memory_tasks
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

MEMORY = WEIGHTS_AND_OPTIMIZER
SETTINGS = replace(QUICK, memory=MEMORY)
PLENTY = 2**40
COLUMNS_ONLY = Constraints(sharding_types=("column_wise",))


def tight_task(share=0.5, host_memory_bytes=PLENTY, seed=1, count=4, **fields):
    """A task whose ranks have `share` of the GPU memory that its tables need."""
    tables = [replace(t, embedding_dim=32) for t in random_tables(np.random.default_rng(seed), count)]
    total = sum(table.weight_bytes for table in tables)
    return ShardingTask(tables, 2, 2048, int(total * share / 2), host_memory_bytes=host_memory_bytes, **fields)


def gpu_bytes(task):
    return sum(MEMORY.shard_bytes(whole(table), task) for table in task.tables)


@cache
def plan_of(task):
    return shard(task, step_models(), "neuroshard_plus", SETTINGS)


def test_a_task_larger_than_gpu_memory_gets_a_plan_with_tables_in_host_memory():
    task = tight_task()
    plan = plan_of(task)
    assert any(table.is_in_host_memory for table in plan.task.tables)
    assert sum(plan.host_memory_bytes) == sum(MEMORY.host_bytes(shard, plan.task) for shard in plan.shards)
    assert max(plan.memory_bytes) <= task.memory_bytes
    assert replace(plan.task, tables=task.tables) == task


def test_a_task_that_fits_stays_in_gpu_memory():
    task = tight_task(1.2)
    without = plan_of(replace(task, host_memory_bytes=None))
    plan = plan_of(task)
    assert (plan.shards, plan.ranks) == (without.shards, without.ranks)


def test_a_task_without_host_memory_says_how_much_would_do():
    """Four equally large tables must go to host memory, two on each rank."""
    task = ShardingTask([Table(f"t{at}", 50_000, 32, 1.0 + at) for at in range(4)], 2, 2048, 600_000)
    needed = 2 * 50_000 * 32 * 4
    amount = re.escape(memory_text(needed))
    with pytest.raises(DoesNotFitError, match=f"or allow tables in host memory.* about {amount} per rank, and more if"):
        plan_of(task)
    assert plan_of(replace(task, host_memory_bytes=needed)).host_memory_bytes == (needed, needed)
    with pytest.raises(DoesNotFitError, match=rf"about {amount} of host memory, but has .*\({needed - 1} bytes\)"):
        plan_of(replace(task, host_memory_bytes=needed - 1))


@pytest.mark.parametrize("seed", range(2))
def test_a_tenth_more_than_the_named_amount_is_enough_if_tables_must_be_cut_by_rows(seed):
    with pytest.raises(DoesNotFitError, match="per rank") as refusal:
        plan_of(tight_task(host_memory_bytes=None, seed=seed))
    needed = int(re.search(r"about \S+ GiB \((\d+) bytes\) per rank, and more if", str(refusal.value))[1])
    plan = plan_of(tight_task(host_memory_bytes=round(1.1 * needed), seed=seed))
    assert max(plan.host_memory_bytes) <= 1.1 * needed


def test_too_little_host_memory_is_refused_with_the_amount():
    with pytest.raises(DoesNotFitError, match=r"no plan with tables in host memory.* but has 1000 bytes; allow"):
        plan_of(tight_task(host_memory_bytes=1000))


def test_host_memory_is_kept_although_another_plan_would_be_cheaper():
    """Four equally large tables must go to host memory, which has room for two on each rank.

    One of them costs more than the three others, so that a search without this limit puts these on the other rank.
    """
    tables = [Table(f"t{i}", 50_000, 32, ids) for i, ids in enumerate((60.0, 1.0, 1.0, 1.0))]
    two = 2 * tables[0].weight_bytes
    whole_only = Constraints(sharding_types=("table_wise",))
    task = ShardingTask(tables, 2, 2048, 600_000, host_memory_bytes=two, constraints=whole_only)
    plan = plan_of(task)
    assert plan.host_memory_bytes == (two, two)
    assert plan.task.constraints == task.constraints


def test_column_cuts_balance_host_memory():
    """No rank has host memory for the whole large table, whose rows may not be cut."""
    tables = [Table("large", 50_000, 32, 5.0), Table("small", 4000, 32, 5.0)]
    task = ShardingTask(tables, 3, 2048, 700_000, host_memory_bytes=3_300_000, constraints=COLUMNS_ONLY)
    plan = plan_of(task)
    assert sum(plan.host_memory_bytes) == tables[0].weight_bytes
    assert max(plan.host_memory_bytes) <= task.host_memory_bytes


def test_a_table_that_no_rank_can_hold_may_go_to_host_memory_uncut():
    tables = [Table("large", 50_000, 32, 5.0), Table("middle", 9000, 32, 5.0)]
    variants = host_memory_tasks(ShardingTask(tables, 3, 2048, 900_000, host_memory_bytes=PLENTY), MEMORY)
    in_host = {tuple(table.is_in_host_memory for table in variant.tables) for variant in variants}
    assert in_host == {(True, False), (True, True)}


@given(seed=st.integers(0, 20), share=st.floats(0.05, 0.9))
def test_the_tables_of_a_variant_fit_and_the_first_variant_moves_none_without_need(seed, share):
    task = tight_task(share, seed=seed, count=8)
    variants = host_memory_tasks(task, MEMORY)
    for variant in variants:
        assert gpu_bytes(variant) <= 2 * task.memory_bytes
        for before, after in zip(task.tables, variant.tables, strict=True):
            assert after == before or after.is_in_host_memory
    if not variants:
        return
    least = variants[0]  # up to 99 % of the memory may be used
    for index, before in enumerate(task.tables):
        if least.tables[index] != before:
            back = replace(least, tables=(*least.tables[:index], before, *least.tables[index + 1 :]))
            assert gpu_bytes(back) > 0.99 * 2 * task.memory_bytes


def test_tables_that_must_stay_in_gpu_memory_do_and_tables_of_other_widths_get_no_cache():
    kept = Table("kept", 100_000, 32, 1.0)
    others = [Table("wide", 200_000, 32, 1.0), Table("narrow", 100_000, 8, 1.0)]
    constraints = Constraints([TableConstraint("kept", in_gpu_memory=True)])
    task = ShardingTask([kept, *others], 2, 64, 7_000_000, host_memory_bytes=PLENTY, constraints=constraints)
    variants = host_memory_tasks(task, MEMORY)
    assert variants
    for variant in variants:
        of = {table.name: table.compute_kernel for table in variant.tables}
        assert of["kept"] == "fused"
        assert of["narrow"] in ("fused", "fused_uvm")  # its cache would have slots of 32 columns
    assert host_memory_tasks(replace(task, host_memory_bytes=None), MEMORY) == []


def test_the_explanation_names_the_tables_in_host_memory():
    plan = plan_of(tight_task())
    moved = [table for table in plan.task.tables if table.is_in_host_memory]
    (line,) = [line for line in plan.explain().splitlines() if line.startswith("in host memory: ")]
    assert all(table.name in line for table in moved)
    assert "rank " in line
    assert "of 1.00 TiB" in line


def test_a_change_beyond_the_host_memory_of_a_rank_is_forbidden():
    """`busy` and `idle` are in host memory, which has room for one of them on each rank."""
    tables = [Table(name, 10_000, 32, ids, compute_kernel="fused_uvm") for name, ids in (("busy", 50.0), ("idle", 1.0))]
    others = [Table(f"small_{at}", 1000, 32, 2.0) for at in range(4)]
    task = ShardingTask([*tables, *others], 2, 2048, 2**30, host_memory_bytes=tables[0].weight_bytes + 1000)
    ranks = (0, 1, 0, 0, 0, 0)
    problem = Problem(task, step_models(), MEMORY)
    changes = rejected_changes(problem, Placement(tuple(map(whole, task.tables)), ranks))
    (move,) = (change for change in changes if change.text == "move busy from rank 0 to rank 1")
    assert move.hindrance == f"rank 1 would need {tables[0].weight_bytes - 1000} bytes of host memory more than it has"
    roomy = rejected_changes(
        Problem(replace(task, host_memory_bytes=PLENTY), step_models(), MEMORY),
        Placement(tuple(map(whole, task.tables)), ranks),
    )
    assert [change.hindrance for change in roomy] == [""]


def test_caveats_state_the_traffic_and_whether_it_is_priced():
    task = replace(tight_task(), tables=[Table("a", 1000, 32, 1.0, compute_kernel="fused_uvm")])
    (unpriced,) = host_memory(task, step_models().step)
    assert "'a' in host memory: these cost models have no price for host links" in unpriced
    (priced,) = host_memory(task, load_cost_models("h100").step)
    assert "modelled: table 'a' in host memory: all ranks together read" in priced
    assert list(host_memory(tight_task(), step_models().step)) == []


def test_no_cache_could_be_larger_in_the_memory_that_a_plan_leaves_free():
    """The search chooses caches before it places tables, as if the memory of all ranks were one."""
    tables, size = [Table("large", 1000, 256, 8.0), Table("small", 100, 4, 2.0)], 4000 * 256
    models, task = load_cost_models("h200"), ShardingTask(tables, 3, 12_000, 3 * size // 10, host_memory_bytes=size)
    plan = shard(task, models, params=QUICK)
    large, small = plan.task.tables
    assert large.compute_kernel == "fused_uvm_caching"
    for load_factor in (factor for factor in LOAD_FACTORS if factor > large.cache_load_factor):
        larger = replace(large, cache_load_factor=load_factor)
        shards = tuple(replace(s, table=larger) if s.table == large else s for s in plan.shards)
        problem = Problem(replace(plan.task, tables=[larger, small]), models, default_memory())
        assert not problem.allows(Placement(shards, plan.ranks))


def test_the_search_leaves_a_cache_as_large_as_the_task_says():
    tables = [Table("given", 1000, 128, 8.0, compute_kernel="fused_uvm_caching", cache_load_factor=0.05)]
    task = ShardingTask([*tables, Table("large", 1000, 128, 8.0)], 3, 12_000, 160_000, host_memory_bytes=PLENTY)
    given, large = shard(task, load_cost_models("h200"), params=QUICK).task.tables
    assert given == tables[0]
    assert large.is_in_host_memory
