"""Plans are written in TorchRec's terms without TorchRec."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from torchrec_bridge.plan_strategies import WHOLE_TABLE_TYPES, plans

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import SHARDING_TYPES, Shard, Table, whole
from neuroshard_pipeline.torchrec_plan.writer import Devices, torchrec_form, with_equal_widths

TABLE = Table("a", 10, 64, 1.0)


def placed_by_table(plan: Plan) -> list[list[tuple[Shard, int]]]:
    """Shards and ranks of every column-wise table, in the order of their columns."""
    placed = sorted(zip(plan.shards, plan.ranks, strict=True), key=lambda entry: entry[0].column_offset)
    columns = [entry for entry in placed if entry[0].sharding_type == "column_wise"]
    by_table = [[entry for entry in columns if entry[0].table == table] for table in plan.task.tables]
    return [entries for entries in by_table if entries]


def widths_by_rank(placed: list[tuple[Shard, int]]) -> dict[int, list[int]]:
    return {at: [shard.embedding_dim for shard, rank in placed if rank == at] for at in {rank for _, rank in placed}}


@settings(suppress_health_check=list(HealthCheck))
@given(plan=plans())
def test_shards_of_a_table_on_one_rank_become_equally_wide_and_equally_wide_ones_do_not_change(plan):
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


def form_of(placed: list[tuple[Shard, int]], devices: Devices) -> dict:
    """The written form of the tables of these shards, all in one module."""
    tables = list({shard.table.name: shard.table for shard, _ in placed}.values())
    shards, ranks = zip(*placed, strict=True)
    return torchrec_form(tables, shards, ranks, devices, "m")["m"]


def rows_of(name: str, *rows: int, first_rank: int = 0, table: Table = TABLE) -> list[tuple[Shard, int]]:
    """Row shards with these numbers of rows on consecutive ranks."""
    starts = [sum(rows[:at]) for at in range(len(rows))]
    shards = [Shard(table, 0, 64, start, count, name) for start, count in zip(starts, rows, strict=True)]
    return [(shard, first_rank + at) for at, shard in enumerate(shards)]


def test_row_shards_are_written_in_the_order_of_the_ranks_with_torchrecs_block_sizes():
    written = form_of(rows_of("row_wise", 3, 3, 3, 1)[::-1], Devices(4, 2, "cpu"))["a"]
    assert written["sharding_type"] == "row_wise"
    assert written["ranks"] == [0, 1, 2, 3]
    assert [shard["shard_sizes"] for shard in written["sharding_spec"]["shards"]] == [[3, 64]] * 3 + [[1, 64]]
    assert [shard["shard_offsets"] for shard in written["sharding_spec"]["shards"]] == [[0, 0], [3, 0], [6, 0], [9, 0]]


def test_a_rank_without_rows_gets_an_empty_shard_on_gpus_and_is_refused_on_cpus():
    table = Table("a", 3, 64, 1.0)
    placed = rows_of("row_wise", 1, 1, 1, table=table)
    written = form_of(placed, Devices(4))["a"]
    assert [shard["shard_sizes"][0] for shard in written["sharding_spec"]["shards"]] == [1, 1, 1, 0]
    assert written["ranks"] == [0, 1, 2, 3]
    with pytest.raises(PlanError, match="'a' is row_wise, but if its 3 rows are cut over 4 ranks, some ranks get no"):
        form_of(placed, Devices(4, 4, "cpu"))


def test_column_blocks_of_a_grid_on_one_host_become_equally_wide():
    blocks = {0: (8, 1), 8: (32, 0), 40: (24, 1)}  # first column → columns and host
    placed = [
        (shard, 2 * host + at)
        for column, (width, host) in blocks.items()
        for at, shard in enumerate(row_shards(TABLE, "grid_shard", 2, column, width))
    ]
    written = form_of(placed, Devices(4, 2))["a"]
    spec = [(s["shard_offsets"], s["shard_sizes"]) for s in written["sharding_spec"]["shards"]]
    assert spec == [([0, 0], [5, 32]), ([5, 0], [5, 32]), ([0, 32], [5, 32]), ([5, 32], [5, 32])]
    assert written["ranks"] == [2, 3, 0, 1]


def test_replicas_have_the_dense_kernel_and_no_shards():
    placed = [(whole(TABLE, "data_parallel"), rank) for rank in (1, 0)]
    assert form_of(placed, Devices(2))["a"] == {
        "sharding_type": "data_parallel",
        "compute_kernel": "dense",
        "ranks": [0, 1],
        "sharding_spec": None,
    }


@pytest.mark.parametrize(
    "placed",
    [
        rows_of("row_wise", 4, 6),
        [*rows_of("row_wise", 5, 5)[:1], (Shard(TABLE, 0, 64, 5, 5, "row_wise"), 2)],
        [(shard, 1 - rank) for shard, rank in rows_of("row_wise", 5, 5)],
        rows_of("table_row_wise", 4, 6),
        rows_of("table_row_wise", 5, 5, first_rank=1),
        rows_of("table_row_wise", 10),
    ],
)
def test_rows_whose_ids_torchrec_would_send_to_other_ranks_are_refused(placed):
    world_size = 2 if placed[0][0].sharding_type == "row_wise" else 4
    with pytest.raises(PlanError, match=r"'a' is (row_wise|table_row_wise) with \d+ rows on .*blocks of 5 for all 2"):
        form_of(placed, Devices(world_size, 2))


@pytest.mark.parametrize("sharding_type", ["table_row_wise", "grid_shard", "data_parallel"])
def test_sequence_tables_of_types_that_torchrec_cannot_train_are_refused(sharding_type):
    sequence = Table("s", 10, 64, 1.0, pooling="none")
    placed = [(whole(sequence, sharding_type), 0)]
    with pytest.raises(PlanError, match=f"'s' is a sequence table and {sharding_type}"):
        form_of(placed, Devices(1))


def test_sequence_tables_with_column_shards_of_several_widths_are_refused():
    first, second = (Table(name, 10, 64, 1.0, pooling="none") for name in "st")
    halves = [(Shard(second, 0, 32), 0), (Shard(second, 32, 32), 1)]
    forms = form_of([(whole(first), 0), *halves], Devices(2))
    assert {name: form["sharding_type"] for name, form in forms.items()} == {"s": "table_wise", "t": "column_wise"}
    quarters = [(Shard(first, start, 16), 0) for start in range(0, 64, 16)]
    with pytest.raises(PlanError, match="column shards of 16 and 32 columns, for example 's' and 't'"):
        form_of([*quarters, *halves], Devices(2))


MEAN, SUM = Table("mean", 10, 64, 1.0, pooling="mean"), Table("sum", 10, 64, 1.0)
WRONG_PAIRS = [
    *[
        (cut, other)
        for cut in ("row_wise", "table_row_wise")
        for other in ("column_wise", "grid_shard", "data_parallel")
    ],
    *[("grid_shard", other) for other in SHARDING_TYPES],
]


@pytest.mark.parametrize("of_mean", WHOLE_TABLE_TYPES)
@pytest.mark.parametrize("of_sum", WHOLE_TABLE_TYPES)
def test_types_that_torchrec_computes_wrongly_beside_mean_pooling_are_refused(of_mean, of_sum):
    """The pairs were found by training each of them on 4 ranks of 2 hosts and comparing losses."""
    placed = [(whole(MEAN, of_mean), 0), (whole(SUM, of_sum), 0)]
    if (of_mean, of_sum) not in WRONG_PAIRS:
        assert set(form_of(placed, Devices(1))) == {"mean", "sum"}
        return
    message = f"'mean' has mean pooling and is {of_mean}.* wrongly; make ('mean'|it) column_wise"
    with pytest.raises(PlanError, match=message):
        form_of(placed, Devices(1))


def test_tables_in_host_memory_are_written_with_their_kernels_and_cache():
    cached = replace(TABLE, name="b", compute_kernel="fused_uvm_caching", cache_load_factor=0.5)
    managed = replace(TABLE, name="c", compute_kernel="fused_uvm")
    forms = form_of([(whole(table), 0) for table in (TABLE, cached, managed)], Devices(1))
    assert {name: form["compute_kernel"] for name, form in forms.items()} == {
        "a": "fused",
        "b": "fused_uvm_caching",
        "c": "fused_uvm",
    }
    assert [form.get("cache_params") for form in forms.values()] == [None, {"load_factor": 0.5}, None]


def test_tables_in_host_memory_are_refused_on_cpus():
    managed = replace(TABLE, compute_kernel="fused_uvm")
    with pytest.raises(PlanError, match=r"'a' has compute_kernel 'fused_uvm', .* plan is for CPUs; .*'cuda'"):
        form_of([(whole(managed), 0)], Devices(1, compute_device="cpu"))


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
