"""The explanation of plans with all sharding types, and of plans on many ranks."""

import dataclasses

import numpy as np
import pytest

from neuroshard_pipeline.search.explain import numbers_text, table_rows
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task
from search.small_models import small_models
from search.tasks import random_tables
from search.test_parts import planned, stepping_models
from search.test_price import PlainModels


@pytest.fixture(scope="module")
def plan():
    return planned(stepping_models())


def test_every_part_of_every_rank_is_shown(plan):
    """The parts of each line add up to the cost of the rank."""
    lines = [line for line in plan.explain().splitlines() if line.startswith("rank")]
    assert [line.split(":")[0] for line in lines] == ["ranks 0-1", "rank 2", "rank 3"]
    for rank, line in zip((0, 2, 3), lines, strict=True):
        parts, total = line.split("; ")[1].split(" ms")[0].split(" = ")
        names = [part.rpartition(" ")[0] for part in parts.split(" + ")]
        values = [float(part.rpartition(" ")[2]) for part in parts.split(" + ")]
        assert names[:3] == ["compute", "backward communication", "forward communication"]
        assert names[3:] == ["reductions", "input dist", "TorchRec's module"]
        assert sum(values) == pytest.approx(float(total), abs=4e-3)
        assert float(total) == pytest.approx(plan.predicted.rank_ms[rank], abs=1e-3)


def test_shards_show_type_and_rows_and_replicas_are_listed_once(plan):
    text = plan.explain()
    assert "rows[row_wise]" in text
    assert "host[table_row_wise]" in text
    assert "grid[columns 0:12, grid_shard]" in text
    assert text.count("copied") == 3  # among tables by cost, replicas, and assumed reuse profiles
    assert "on every rank (data_parallel): copied\n" in text
    assert "sharding types: 1 column_wise, 1 row_wise, 1 table_row_wise, 1 grid_shard, 1 data_parallel\n" in text
    assert "(empty)" not in text


def test_what_has_no_price_is_said():
    assert "not priced" not in planned(stepping_models()).explain()
    assert "the trainer sends the ids" in planned(stepping_models(), pipelines_input_dist=True).explain()
    table = Table("t", 100, 16, 2.0)
    plain = priced(Plan(ShardingTask([table], 1, 16, 2**60), (whole(table),), (0,), "one"), PlainModels())
    assert "not priced: input dist and TorchRec's own work" in plain.explain()
    assert "reductions" not in plain.explain()


def test_the_number_format_of_the_links_and_replica_groups_are_said():
    said = planned(stepping_models(), comm_precision="fp16", num_replica_groups=3, sync_interval=5).explain()
    assert "communication: rows and their gradients are fp16 on the links\n" in said
    assert "replica groups: 3 groups of 4 ranks average their weights every 5 steps; the cost of" in said
    assert "replica groups" not in planned(stepping_models()).explain()
    assert "on the links" not in planned(stepping_models()).explain()


def test_only_the_most_expensive_of_many_ranks_are_described():
    tables = random_tables(np.random.default_rng(0), 100, dims=(8,))
    task = ShardingTask(tables, 40, 16, 2**60)
    plan = priced(Plan(task, tuple(map(whole, tables)), tuple(np.arange(100) % 40), "round robin"), PlainModels())
    lines = [line for line in plan.explain().splitlines() if line.startswith("rank ")]
    told = {int(line.split(":")[0].removeprefix("rank ")) for line in lines}
    assert len(told) == 16
    cost = plan.predicted.rank_ms
    assert min(cost[rank] for rank in told) >= max(cost[rank] for rank in set(range(40)) - told)
    (others,) = (line for line in plan.explain().splitlines() if "other ranks: " in line and "shards" in line)
    assert others.startswith("24 other ranks: 2 to 3 shards")
    unpriced = Plan(task, plan.shards, plan.ranks, "round robin")
    assert "24 other ranks" in unpriced.explain()
    replicated = dataclasses.replace(
        unpriced,
        shards=(whole(tables[0], "data_parallel"),) * 40 + plan.shards[1:],
        ranks=(*range(40), *plan.ranks[1:]),
    )
    assert "24 other ranks: 2 to 3 shards" in replicated.explain()  # the replica on every rank is not counted


def test_equal_ranks_are_described_once_and_ten_lines_come_first():
    tables = [Table(f"t{number}", 100, 8, 2.0) for number in range(3)]
    shards = [(shard, rank) for table in tables for rank, shard in enumerate(row_shards(table, "row_wise", 8))]
    task = ShardingTask(tables, 8, 16, 2**60)
    plan = priced(Plan(task, *map(tuple, zip(*shards, strict=True)), "by hand"), stepping_models())
    rival = dataclasses.replace(plan, sharder="rival")
    summary, by_cost, ranks, _ = plan.explain([rival]).split("\n\n")
    assert len(summary.splitlines()) <= 10
    assert f"other sharders on this task, predicted: rival {plan.predicted_cost_ms:.3f} ms (+0%)" in summary
    assert "slowest rank: rank 0 with compute" in summary
    assert "limited by: " in summary
    assert len(by_cost.splitlines()) == 4
    assert [line for line in ranks.splitlines() if line.startswith("rank")] == [ranks.splitlines()[0]]
    assert ranks.startswith("ranks 0-7: 3 shards")


def test_tables_are_in_the_order_of_their_lookups(plan):
    rows = table_rows(plan)
    costs = [float(ms) for _, _, _, ms, *_ in rows]
    assert costs == sorted(costs, reverse=True)
    of_table = {name: 0.0 for name, *_ in rows}
    for shard, ms in zip(plan.shards, plan.lookup_ms, strict=True):
        of_table[shard.table.name] += ms
    assert costs == pytest.approx([of_table[name] for name, *_ in rows], abs=6e-4)


@pytest.mark.parametrize(("numbers", "text"), [([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8")])
def test_neighbours_are_a_range(numbers, text):
    assert numbers_text(numbers) == text


def test_columns_alone_are_written_as_in_python():
    table = Table("t", 100, 16, 2.0)
    task = ShardingTask([table], 2, 16, 2**60)
    assert "t[4:16]" in Plan(task, (Shard(table, 0, 4), Shard(table, 4, 12)), (0, 1), "by hand").explain()


def test_an_interval_that_says_nothing_is_not_shown_in_numbers(plan):
    """The intervals of lookups far outside the training range reach thousands of times their cost."""
    wide = dataclasses.replace(plan, interval_ms=((0.0, 1e9), *plan.interval_ms[1:]))
    lines = [line for line in wide.explain().splitlines() if line.startswith("rank ")]
    assert lines[0].endswith("(90 % prediction interval: too wide, it ends above 10 times the cost)")
    assert all(" to " in line.partition("interval")[2] for line in lines[1:])


def test_the_assumed_profile_of_a_table_with_tiers_is_said():
    counted = Table("counted", 1000, 16, 2.0, 32.0, (1.0, *(0.0,) * 16))
    tables = [Table("items", 10_000, 16, 20.0, pooling="none"), counted]
    tiered = tiered_task(ShardingTask(tables, 2, 16, 2**30, tiers=True), {"items": Cuts(100)})
    hot, cold, _ = tiered.tables
    shards = (whole(hot, "data_parallel"), whole(hot, "data_parallel"), whole(cold), whole(counted))
    text = Plan(tiered, shards, (0, 1, 0, 1), "by hand").explain()
    assert "reuse profiles: assumed for 1 of 2 tables: items" in text
    assert "from the assumed reuse profile of one batch: items" in text
    assert "contradictory" not in text


def test_profiles_that_contradict_the_pooling_factor_are_said():
    table = Table("t", 10_000, 16, 3.0, 500.0, (1.0, *(0.0,) * 16))
    text = Plan(ShardingTask([table], 1, 512, 2**30), (whole(table),), (0,), "by hand").explain()
    assert "reuse profiles: contradictory for 1 of 1 tables: t (at most 500 ids" in text


@pytest.mark.parametrize(("uppers", "said"), [((), "no other"), ((1,), "one other"), ((1, 2), "2 other")])
def test_the_ranks_whose_intervals_reach_the_slowest_rank_are_counted(plan, uppers, said):
    slowest = max(range(4), key=lambda rank: plan.predicted.rank_ms[rank])
    others = [rank for rank in range(4) if rank != slowest]
    reaching = {others[number] for number in uppers}
    intervals = tuple((0.0, 1e9 if rank in reaching else 0.0) for rank in range(4))
    (line,) = _uncertainty(dataclasses.replace(plan, interval_ms=intervals))
    assert line.startswith(f"uncertainty: {said} rank")


def test_with_one_rank_nothing_is_said_about_other_ranks():
    table = Table("t", 100, 16, 2.0)
    plan = priced(Plan(ShardingTask([table], 1, 16, 2**60), (whole(table),), (0,), "by hand"), small_models())
    assert plan.interval_ms
    assert _uncertainty(plan) == []


def _uncertainty(plan):
    return [line for line in plan.explain().splitlines() if line.startswith("uncertainty")]
