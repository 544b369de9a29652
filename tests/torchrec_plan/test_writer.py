"""The plan in TorchRec's terms, which needs no TorchRec to write."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from torchrec_bridge.plan_strategies import plans

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.torchrec_plan.writer import Devices, torchrec_form, with_equal_widths

TABLE = Table("a", 10, 64, 1.0)


def placed_by_table(plan: Plan) -> list[list[tuple[Shard, int]]]:
    """Shards and ranks of every table, in the order of their columns."""
    placed = sorted(zip(plan.shards, plan.ranks, strict=True), key=lambda entry: entry[0].column_offset)
    return [[entry for entry in placed if entry[0].table == table] for table in plan.task.tables]


def widths_by_rank(placed: list[tuple[Shard, int]]) -> dict[int, list[int]]:
    return {at: [shard.embedding_dim for shard, rank in placed if rank == at] for at in {rank for _, rank in placed}}


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans())
def test_shards_of_a_table_on_one_rank_are_equally_wide_and_only_those_that_were_not_change(plan):
    for before in placed_by_table(plan):
        after = with_equal_widths(before)
        widths = widths_by_rank(after)
        assert all(len(set(on_rank)) == 1 for on_rank in widths.values())
        assert {rank: sum(on_rank) for rank, on_rank in widths.items()} == {
            rank: sum(on_rank) for rank, on_rank in widths_by_rank(before).items()
        }
        ends = [shard.column_offset + shard.embedding_dim for shard, _ in after]
        assert [shard.column_offset for shard, _ in after] == [0, *ends[:-1]]
        assert ends[-1] == before[0][0].table.embedding_dim
        if all(len(set(on_rank)) == 1 for on_rank in widths_by_rank(before).values()):
            assert after == before
        assert with_equal_widths(after) == after


def test_equally_wide_shards_on_one_rank_stay_as_they_are():
    placed = [(Shard(TABLE, 0, 32), 0), (Shard(TABLE, 32, 16), 1), (Shard(TABLE, 48, 16), 1)]
    assert with_equal_widths(placed) == placed


def test_shards_of_different_widths_on_one_rank_become_one():
    placed = [(Shard(TABLE, 0, 8), 1), (Shard(TABLE, 8, 32), 0), (Shard(TABLE, 40, 24), 1)]
    assert with_equal_widths(placed) == [(Shard(TABLE, 0, 32), 1), (Shard(TABLE, 32, 32), 0)]


def test_tables_keep_their_order_whatever_the_order_of_the_shards():
    tables = [Table(name, 10, 8, 1.0) for name in "cab"]
    shards = [Shard(table, 0, 8) for table in tables][::-1]
    form = torchrec_form(tables, shards, [0, 1, 0], Devices(2), {"c": "m", "a": "n", "b": "m"})
    assert {module: list(tables) for module, tables in form.items()} == {"m": ["c", "b"], "n": ["a"]}


@pytest.mark.parametrize(
    ("devices", "placement"),
    [
        (Devices(16, 8), "rank:9/cuda:1"),
        (Devices(16), "rank:9/cuda:9"),
        (Devices(16, 8, "cpu"), "rank:9/cpu"),
    ],
)
def test_placements_name_the_device_of_a_rank(devices, placement):
    assert devices.placement(9) == placement


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 3), "local_world_size 3 must divide the world_size 4"),
        ((4, 0), "local_world_size 0"),
        ((4, 8), "local_world_size 8"),
        ((4, 4, "tpu"), "'tpu' is unknown; use 'cuda' or 'cpu'"),
    ],
)
def test_impossible_devices_are_refused(arguments, message):
    with pytest.raises(PlanError, match=message):
        Devices(*arguments)
