"""Bytes that a change of tiers moves, compared with a count of the (rank, row, column) that the ranks lack."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.replanning.recut_bytes import RowPlaces, places_without_tiers, received_bytes
from neuroshard_pipeline.tables.row_blocks import row_blocks
from neuroshard_pipeline.tables.table import Shard, Table

ROWS, WIDTH, WORLD, HOSTS = 40, 8, 4, 2
ROW_BYTES = 36.0


def cold_shards(rows, kind):
    table = Table("t", rows, WIDTH, 10.0, pooling="none")
    if kind == "data_parallel":
        return tuple(Shard(table, 0, WIDTH, sharding_type="data_parallel") for _ in range(WORLD)), tuple(range(WORLD))
    if kind == "row_wise":
        blocks = row_blocks(rows, WORLD)
        return tuple(Shard(table, 0, WIDTH, first, count, "row_wise") for first, count in blocks), tuple(range(WORLD))
    return (Shard(table, 0, 4), Shard(table, 4, 4)), (0, 3) if kind == "columns" else (1, 3)


@st.composite
def places(draw):
    popular = draw(st.lists(st.integers(0, ROWS - 1), unique=True, max_size=16))
    hot = draw(st.integers(0, len(popular)))
    shards, ranks = cold_shards(ROWS - len(popular), draw(st.sampled_from(["row_wise", "columns", "other columns"])))
    rows = np.array(popular, dtype=np.int64)
    return RowPlaces(rows[:hot], rows[hot:], shards, ranks)


def held(found: RowPlaces) -> set[tuple[int, int, int]]:
    """(rank, row, column) of hot and cold rows."""
    cold = [row for row in range(ROWS) if row not in set(found.popular.tolist())]
    triples = {(rank, row, c) for rank in range(WORLD) for row in found.hot.tolist() for c in range(WIDTH)}
    for shard, rank in zip(found.shards, found.ranks, strict=True):
        for row in cold[shard.row_offset : shard.row_offset + shard.num_rows]:
            triples |= {(rank, row, shard.column_offset + c) for c in range(shard.embedding_dim)}
    return triples


@settings(max_examples=60)
@given(old=places(), new=places())
def test_rows_outside_the_host_tier_move_to_the_ranks_that_lack_them(old, new):
    """Rows that are in the host tier before or after the change count as `received_bytes` describes."""
    host = set(old.host.tolist()) | set(new.host.tolist())
    lacking = {place for place in held(new) - held(old) if place[1] not in host}
    host_rows = sum(
        WORLD - HOSTS
        if row in old.host and row in new.hot
        else HOSTS - 1
        if row in new.host and row not in old.popular
        else 0
        for row in host
    ) + sum(row not in new.popular for row in old.host)
    expected = ROW_BYTES * (len(lacking) / WIDTH + host_rows)
    assert received_bytes(old, new, ROW_BYTES, WORLD, HOSTS) == pytest.approx(expected)


@given(same=places())
def test_nothing_moves_without_a_change(same):
    assert received_bytes(same, same, ROW_BYTES, WORLD, HOSTS) == 0.0


def test_row_numbers_of_the_cold_tier_leave_out_popular_rows():
    rows = np.array([0, 3, 4, 39])
    found = RowPlaces(rows[:2], rows[2:], *cold_shards(ROWS - 4, "columns"))
    assert found.row_number(np.arange(ROWS - 4)).tolist() == [row for row in range(ROWS) if row not in rows]


def test_replicas_have_every_row_everywhere():
    replicas = places_without_tiers(*cold_shards(ROWS, "data_parallel"))
    sharded = places_without_tiers(*cold_shards(ROWS, "row_wise"))
    assert received_bytes(replicas, sharded, ROW_BYTES, WORLD, HOSTS) == 0.0
    assert received_bytes(sharded, replicas, ROW_BYTES, WORLD, HOSTS) == ROW_BYTES * ROWS * (WORLD - 1)
    hot = RowPlaces(np.arange(5), np.arange(0), *cold_shards(ROWS - 5, "row_wise"))
    assert received_bytes(replicas, hot, ROW_BYTES, WORLD, HOSTS) == 0.0
