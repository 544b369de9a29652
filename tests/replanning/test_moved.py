"""The bytes of a change of plan against a count of single cells."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import neuroshard_pipeline as ns
from neuroshard_pipeline.replanning.moved import move_of, moved_bytes
from neuroshard_pipeline.replanning.nearest import nearest
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import whole

ROWS, COLUMNS, WORLD, LOCAL = 13, 24, 4, 2


def drawn_shards(table, rng, world):
    """Shards of one table of a random sharding type, and their ranks."""
    kind = rng.choice(["column_wise", "row_wise", "table_row_wise", "grid_shard", "data_parallel"])
    if kind == "data_parallel":
        return [(whole(table, kind), rank) for rank in range(world)]
    if kind == "row_wise":
        return list(zip(row_shards(table, kind, world), range(world), strict=False))
    if kind == "column_wise":
        ends = [0, *sorted(rng.choice([4, 8, 12, 16, 20], rng.integers(0, 4), replace=False).tolist()), COLUMNS]
        return [(ns.Shard(table, start, end - start), int(rng.integers(world))) for start, end in pairwise(ends)]
    blocks = [(0, COLUMNS)] if kind == "table_row_wise" else [(0, 8), (8, 16)]
    found = []
    for column, width in blocks:
        first = int(rng.integers(world // LOCAL)) * LOCAL
        found += [(shard, first + at) for at, shard in enumerate(row_shards(table, kind, LOCAL, column, width))]
    return found


def cells(placed, rank):
    """Rows and columns that a rank holds, as pairs."""
    return {
        (row, column)
        for shard, at in placed
        if at == rank
        for row in range(shard.row_offset, shard.row_offset + shard.num_rows)
        for column in range(shard.column_offset, shard.column_offset + shard.embedding_dim)
    }


@pytest.mark.parametrize("seed", range(40))
def test_every_rank_receives_the_cells_that_it_lacks(seed):
    rng = np.random.default_rng(seed)
    old_world, new_world = (int(world) for world in rng.choice([2, 4, 8], 2))
    optimizer, cell_bytes = [("sgd", 4), ("adam", 12)][seed % 2]
    table = ns.Table("t", ROWS, COLUMNS, 1.0)
    task = ns.ShardingTask([table], new_world, 64, 2**30, optimizer, local_world_size=LOCAL)
    old, new = drawn_shards(table, rng, old_world), drawn_shards(table, rng, new_world)
    present = Present(tuple(s for s, _ in old), tuple(r for _, r in old), old_world)
    between = moved_bytes(present, tuple(s for s, _ in new), tuple(r for _, r in new), task)
    for rank in range(new_world):
        lacking = cells(new, rank) - cells(old, rank)
        assert between[:, rank].sum() == cell_bytes * len(lacking), rank
    for sender, receiver in np.argwhere(between):
        assert between[sender, receiver] <= cell_bytes * len(cells(old, sender) & cells(new, receiver))


def test_row_wise_adagrad_moves_one_number_per_row_of_every_shard():
    table = ns.Table("t", ROWS, COLUMNS, 1.0)
    task = ns.ShardingTask([table], 2, 64, 2**30, "rowwise_adagrad")
    present = Present((whole(table),), (0,), 2)
    between = moved_bytes(present, (ns.Shard(table, 0, 16), ns.Shard(table, 16, 8)), (0, 1), task)
    assert between.tolist() == [[0, ROWS * (8 * 4 + 4)], [0, 0]]


def test_new_tables_and_new_rows_move_nothing():
    old, grown, new = ns.Table("t", 10, 8, 1.0), ns.Table("t", 30, 8, 1.0), ns.Table("n", 10, 8, 1.0)
    task = ns.ShardingTask([grown, new], 2, 64, 2**30)
    between = moved_bytes(Present((whole(old),), (0,), 2), (whole(grown), whole(new)), (1, 1), task)
    assert between.tolist() == [[0, 10 * 8 * 4], [0, 0]]


def test_a_move_between_hosts_takes_longer_than_one_inside_a_host():
    models, table = ns.load_cost_models("h100"), ns.Table("t", 1_000_000, 64, 1.0)
    task = ns.ShardingTask([table], 16, 16_384, 2**34, local_world_size=8)
    present = Present((whole(table),), (0,), 16)
    inside, across = (move_of(moved_bytes(present, (whole(table),), (to,), task), task, models) for to in (1, 8))
    assert inside.rank_bytes == across.rank_bytes == across.link_bytes == 256_000_000
    assert inside.link_bytes == 0
    assert 0 < inside.move_ms < across.move_ms
    assert move_of(inside.between + np.diag([2**30] * 16), task, models).move_ms > inside.move_ms
    nothing = move_of(np.zeros((16, 16), dtype=np.int64), task, models)
    assert (nothing.move_ms, nothing.rank_bytes) == (0.0, 0)


def test_what_stays_takes_as_long_as_its_measured_copy():
    h100, table = ns.load_cost_models("h100"), ns.Table("t", 1_000_000, 64, 1.0)
    task = ns.ShardingTask([table], 2, 2048, 2**34)
    hardware = h100.compute.provenance["hardware"] | {"copy_ms_per_gib": 100.0}
    compute = replace(h100.compute, provenance=h100.compute.provenance | {"hardware": hardware})
    models, moving = replace(h100, compute=compute), np.array([[0, 2**20], [2**20, 0]])
    without, with_copy = (move_of(moving + np.diag([stay, 0]), task, models).move_ms for stay in (0, 2**30))
    assert with_copy - without == pytest.approx(100.0)


def test_renamed_ranks_and_columns_are_found():
    models, rng = ns.load_cost_models("h100"), np.random.default_rng(0)
    tables = [ns.Table(f"t{i}", 10_000 * (i + 1), 64, 2.0) for i in range(8)]
    task = ns.ShardingTask(tables, 4, 4096, 2**34)
    shards = tuple(ns.Shard(table, start, 32) for table in tables for start in (0, 32))
    ranks = rng.permutation(np.repeat(np.arange(4), 4))
    swap = np.arange(16).reshape(8, 2)[:, ::-1].ravel()  # both halves of every table exchange their columns
    renamed = Placement(shards, tuple((3 - ranks[swap]).tolist()))
    present = Present(shards, tuple(ranks.tolist()), 4)
    problem = Problem(task, models, default_memory())
    found = nearest(problem, renamed, present)
    assert moved_bytes(present, renamed.shards, renamed.ranks, task).any()
    assert not moved_bytes(present, found.shards, found.ranks, task).any()
