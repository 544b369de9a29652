"""Tiers (sequence tables cut by popularity of rows) that neuroshard_plus chooses, also against brute force."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from search.settings import QUICK, WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models
from sequence_draws import sequence_tables

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.step import step_cost_ms
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import joined, spread_tables
from neuroshard_pipeline.search.tier_choice import tier_variants
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, cuts_of, parent_tables, tiered_task

H100 = load_cost_models("h100")


def sequence_task(popularity: str, count: int = 2, world_size: int = 16, **options) -> ShardingTask:
    batch_size = 4096 * world_size
    lengths, widths = [50, 20, 100][:count], [64, 64, 128][:count]
    tables = sequence_tables(popularity, lengths, widths, [10**7, 10**6, 3 * 10**6][:count], batch_size)
    kept = {"optimizer": "rowwise_adagrad", "local_world_size": 8, "tiers": True} | options
    return ShardingTask(tables, world_size, batch_size, 2**36, **kept)


@cache
def plan_of(task: ShardingTask) -> Plan:
    return shard(task, H100, "neuroshard_plus", QUICK)


def test_tables_with_popular_rows_get_tiers_that_lower_the_price():
    task = sequence_task("published")
    plan, without = plan_of(task), plan_of(replace(task, tiers=False))
    assert set(cuts_of(plan.task)) == {table.name for table in task.tables}
    assert plan.predicted_cost_ms < 0.8 * without.predicted_cost_ms
    assert without.task == replace(task, tiers=False)
    for parent, table in zip(parent_tables(plan.task), task.tables, strict=True):
        assert (parent.name, parent.num_embeddings) == (table.name, table.num_embeddings)
        assert parent.pooling_factor == pytest.approx(table.pooling_factor)


def test_rows_without_known_popularity_get_no_tiers():
    task = sequence_task("published")
    once = tuple([1.0] + [0.0] * 16)
    tables = [replace(t, unique_rows=float(task.batch_size), reuse=once, pooling_factor=1.0) for t in task.tables]
    flat = replace(task, tables=tables)
    assert tier_variants(Problem(flat, H100, QUICK.memory), usable_types) == []
    assert cuts_of(plan_of(flat).task) == {}


def test_hosts_of_one_rank_have_no_host_tier():
    task = sequence_task("steep", local_world_size=1)
    plan = plan_of(task)
    assert {cuts.host_rows for cuts in cuts_of(plan.task).values()} == {0}
    assert plan.predicted_cost_ms < 0.8 * plan_of(replace(task, tiers=False)).predicted_cost_ms


def test_tasks_that_do_not_ask_for_tiers_tasks_of_one_rank_and_pooled_tables_have_no_variants():
    task = sequence_task("steep")
    for other in (replace(task, tiers=False), replace(task, world_size=1, local_world_size=1)):
        assert tier_variants(Problem(other, H100, QUICK.memory), usable_types) == []
    pooled = replace(task, tables=[replace(table, pooling="sum") for table in task.tables])
    assert tier_variants(Problem(pooled, H100, QUICK.memory), usable_types) == []


def test_tiers_shrink_to_keep_the_memory_limit():
    task = sequence_task("published")
    bare = WEIGHTS_AND_OPTIMIZER
    roomy = cuts_of(plan_of(task).task)
    needed = sum(bare.table_bytes(table, table.embedding_dim, task) for table in task.tables)
    tight = replace(task, memory_bytes=int(1.1 * needed / task.world_size))
    plan = shard(tight, H100, "neuroshard_plus", replace(QUICK, memory=bare))
    assert max(plan.memory_bytes) <= tight.memory_bytes
    found = cuts_of(plan.task)
    assert found
    assert sum(cuts.hot_rows for cuts in found.values()) < sum(cuts.hot_rows for cuts in roomy.values())


def test_constraints_of_the_parent_hold():
    task = sequence_task("steep", 3)
    first, second, third = (table.name for table in task.tables)
    own = [
        TableConstraint(first, sharding_types=("row_wise",)),
        TableConstraint(second, sharding_types=("column_wise", "data_parallel"), split=False),
    ]
    plan = plan_of(replace(task, constraints=Constraints(tables=own)))
    assert set(cuts_of(plan.task)) == {third}
    types = {shard.table.name: shard.sharding_type for shard in plan.shards}
    assert types[first] == "row_wise"
    assert types[second] == "column_wise"


def price_of_cuts_ms(task: ShardingTask, cuts: dict[str, Cuts], models) -> float:
    """The price with these cuts if all cold tiers are row-wise."""
    variant = tiered_task(task, cuts)
    problem = Problem(variant, models, QUICK.memory)
    kinds = {"hot": "data_parallel", "host": "host_row_wise", "cold": "row_wise"}
    types = {table.name: kinds[table.tier.kind] if table.tier else "row_wise" for table in variant.tables}
    placement = joined(problem, None, spread_tables(types, variant, QUICK.memory))
    return price_plan(problem, placement, "tried").predicted_cost_ms


def grid_of_rows(table: Table, points: int) -> list[int]:
    return [0, *np.geomspace(100, table.num_embeddings // 2, points).astype(int).tolist()]


def test_no_cuts_of_two_tables_on_one_host_cost_much_less():
    """The reductions of these models are slow."""
    task, priced = sequence_task("steep", world_size=4, local_world_size=4), step_models(1)
    plan = shard(task, priced, "neuroshard_plus", QUICK)
    first, second = task.tables
    best_ms = min(
        price_of_cuts_ms(task, {first.name: Cuts(of_first), second.name: Cuts(of_second)}, priced)
        for of_first in grid_of_rows(first, 6)
        for of_second in grid_of_rows(second, 6)
    )
    assert plan.predicted_cost_ms <= 1.03 * best_ms


@pytest.mark.parametrize(("popularity", "index_dedup"), [("published", True), ("steep", False)])
def test_no_cuts_of_a_table_on_two_hosts_cost_much_less(popularity, index_dedup):
    task = sequence_task(popularity, 1, 16, index_dedup=index_dedup)
    plan = plan_of(task)
    (table,) = task.tables
    hot_rows, host_rows = grid_of_rows(table, 6), [rows // 8 * 8 for rows in grid_of_rows(table, 6)]
    best_ms = min(
        price_of_cuts_ms(task, {table.name: Cuts(hot, host)}, H100)
        for hot in hot_rows
        for host in host_rows
        if hot + host <= table.num_embeddings
    )
    assert plan.predicted_cost_ms <= 1.03 * best_ms


def tight_task(memory_factor: float, **options) -> ShardingTask:
    """Four tables on ranks whose memory is `memory_factor` times an even share of all weights and optimizer state."""
    tables = sequence_tables("published", [100] * 4, [64] * 4, [3 * 10**6] * 4, 65536)
    task = replace(sequence_task("published", **options), tables=tables)
    needed = sum(WEIGHTS_AND_OPTIMIZER.table_bytes(table, table.embedding_dim, task) for table in tables)
    return replace(task, memory_bytes=int(memory_factor * needed / task.world_size))


@cache
def tight_plan(task: ShardingTask) -> Plan:
    return shard(task, H100, "neuroshard_plus", replace(QUICK, memory=WEIGHTS_AND_OPTIMIZER))


def test_hosts_hold_rows_if_ranks_lack_the_memory_for_them():
    task = tight_task(1.1)
    plan = tight_plan(task)
    assert max(plan.memory_bytes) <= task.memory_bytes
    assert sum(cuts.host_rows for cuts in plan.tiers.values()) > 0
    assert plan.predicted_cost_ms < 0.9 * tight_plan(replace(task, tiers=False)).predicted_cost_ms
    on_one_host = tight_plan(replace(task, local_world_size=16))
    assert on_one_host.tiers
    assert sum(cuts.host_rows for cuts in on_one_host.tiers.values()) == 0


def test_the_explanation_names_tiers_and_says_that_host_tiers_are_modelled():
    plan = tight_plan(tight_task(1.1))
    text = plan.explain()
    name, cuts = next((name, cuts) for name, cuts in plan.tiers.items() if cuts.host_rows)
    (line,) = (line for line in text.splitlines() if line.startswith(f"tiers of {name}:"))
    assert f"host {cuts.host_rows:,} rows on every host" in line
    assert "cold" in line
    assert "4 tables in" in text.splitlines()[0]
    assert "host tiers: modelled" in text
    assert "host tiers" not in tight_plan(tight_task(1.1, tiers=False)).explain()


@pytest.mark.parametrize(("hosts", "most"), [(2, 1.4), (4, 1.1)])
def test_reductions_of_host_tiers_cost_at_least_what_the_lab_says_and_little_more(hosts, most):
    """The ranks of a host reduce their rows at the same time, over the same network cards (`GroupReduction.priced_as`).

    The price must be less than `most` times that of the lab.
    """
    task = replace(tight_task(1.1), world_size=8 * hosts)
    cuts = {table.name: Cuts(hot_rows=1000, host_rows=20_000) for table in task.tables}
    variant = tiered_task(task, cuts)
    kinds = {"hot": "data_parallel", "host": "host_row_wise", "cold": "row_wise"}
    spread = spread_tables({t.name: kinds[t.tier.kind] for t in variant.tables}, variant, WEIGHTS_AND_OPTIMIZER)
    problem = Problem(variant, H100, WEIGHTS_AND_OPTIMIZER)
    plan = price_plan(problem, joined(problem, None, spread), "tried")
    judged = step_cost_ms(variant, plan.shards, plan.ranks, modelled_device("h100"), network_preset("h100-ib400"))
    assert 0.99 < np.mean(plan.predicted.reduction_ms) / judged.reduction_ms.mean() < most
    assert plan.predicted_cost_ms == pytest.approx(judged.step_ms, rel=0.2)
