import numpy as np
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.embark import EmbarkSharder
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask


def plan_of(task, network_slowdown=10.0):
    problem = Problem(task, small_models(), WEIGHTS_AND_OPTIMIZER)
    placement = EmbarkSharder(network_slowdown, 0.14).shard(problem, np.random.default_rng(0))
    return Plan(task, placement.shards, placement.ranks, "embark")


def widths_of(plan, name):
    return sorted(shard.embedding_dim for shard in plan.shards if shard.table.name == name)


def test_tables_are_split_if_whole_ones_do_not_fit():
    tables = [Table(f"t{index}", 1000, 8, 1.0) for index in range(3)]
    plan = plan_of(ShardingTask(tables, 2, 16, 50_000))
    assert sorted(shard.embedding_dim for shard in plan.shards) == [4, 4, 8, 8]  # one split is enough


def test_the_table_of_highest_load_is_split_until_loads_are_even():
    tables = [Table("hot", 100, 64, 100.0), *(Table(f"cold{index}", 100, 16, 1.0) for index in range(4))]
    plan = plan_of(ShardingTask(tables, 4, 16, 2**30))
    assert widths_of(plan, "hot") == [16, 16, 16, 16]
    assert len({rank for shard, rank in zip(plan.shards, plan.ranks, strict=True) if shard.table.name == "hot"}) == 4
    assert all(widths_of(plan, f"cold{index}") == [16] for index in range(4))


def test_tables_of_even_load_are_not_split():
    tables = [Table(f"t{index}", 100, 16, 5.0) for index in range(8)]
    plan = plan_of(ShardingTask(tables, 4, 16, 2**30))
    assert len(plan.shards) == 8
    assert plan.dim_sums == (32, 32, 32, 32)


def test_a_slow_network_makes_columns_count_more_than_look_ups():
    tables = [Table("wide", 100, 64, 1.0), Table("read", 100, 4, 16.0), *(Table(f"w{i}", 100, 32, 1.0) for i in (0, 1))]
    fast, slow = (plan_of(ShardingTask(tables, 2, 16, 2**30), slowdown) for slowdown in (0.0, 1000.0))
    assert max(slow.dim_sums) - min(slow.dim_sums) <= 4
    assert slow.dim_sums != fast.dim_sums
