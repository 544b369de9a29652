"""Ids that every rank sends once, against ids that are drawn, dealt out to ranks and counted."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.tables.dedup import deduplicated, exchanged, looked_up
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.lookups import local_table, lookup_shard
from neuroshard_pipeline.tables.profile import reuse_histogram
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

BATCH = 2048
TABLES = [
    Table("long", 20_000, 16, 60.0, pooling="none"),
    Table("short", 500_000, 16, 5.0, pooling="none"),
    Table("tiny", 50, 16, 20.0, pooling="none"),
]


def ids_of_ranks(table, world_size, seed=0):
    ids = draw_ids(table, BATCH, seed)
    bounds = ids.offsets[:: BATCH // world_size]
    return [ids.indices[first:end] for first, end in pairwise(bounds)]


@pytest.mark.parametrize("world_size", [2, 8, 32])
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_ids_and_reuse_agree_with_drawn_ids(table, world_size):
    sent = np.concatenate([np.unique(ids) for ids in ids_of_ranks(table, world_size)])
    found = deduplicated(table, BATCH, world_size)
    assert BATCH * found.pooling_factor == pytest.approx(len(sent), rel=0.05)
    unique, shares, _ = reuse_histogram(sent)
    assert found.unique_rows == pytest.approx(unique, rel=0.01)
    assert np.abs(np.array(found.reuse) - shares).sum() / 2 < 0.04


@st.composite
def profiled_tables(draw):
    rows, unique = draw(st.integers(1, 10**7)), draw(st.floats(0.01, 1.0))
    shares = np.array(draw(st.lists(st.integers(0, 5), min_size=17, max_size=17).filter(any)), dtype=float)
    reuse = tuple((shares / shares.sum()).tolist())
    return Table("t", rows, 8, draw(st.floats(0.01, 300.0)), unique * rows, reuse, pooling="none")


@given(profiled_tables(), st.sampled_from([1, 2, 3, 8, 128]), st.sampled_from([64, 65536]))
def test_no_rank_sends_more_ids_or_finds_more_rows(table, world_size, batch_size):
    found = deduplicated(table, batch_size, world_size)
    assert found.pooling_factor <= table.pooling_factor
    assert found.unique_rows == table.unique_rows
    assert sum(found.reuse) == pytest.approx(1.0)
    above, found_above = (np.cumsum(seen.reuse[::-1]) for seen in (table, found))
    assert (found_above <= above * (1 + 1e-9) + 1e-9).all()  # no row moves to a higher reuse bin
    most = int(np.flatnonzero(found.reuse)[-1])
    assert 2 ** (most - 1) < world_size  # a row has at most one id per rank


def test_one_rank_sends_each_row_once():
    table = deduplicated(TABLES[0], BATCH, 1)
    assert table.reuse == (1.0, *(0.0,) * 16)
    assert BATCH * table.pooling_factor == pytest.approx(table.unique_rows)


def task(**fields):
    return ShardingTask(TABLES, 8, BATCH, 2**40, local_world_size=4, **fields)


def test_only_exchanged_shards_of_sequence_tables_change():
    table = TABLES[0]
    cut, replica = whole(table), whole(table, "data_parallel")
    pooled = whole(replace(table, pooling="sum"))
    assert exchanged(cut, task()) is cut
    dedup = task(index_dedup=True)
    assert exchanged(cut, dedup) == whole(deduplicated(table, BATCH, 8))
    assert exchanged(replica, dedup) is replica
    assert exchanged(pooled, dedup) is pooled


def test_what_kernels_see():
    table = TABLES[0]
    rows = row_shards(table, "row_wise", 8)[1]
    assert looked_up(rows, task()) == (lookup_shard(rows, BATCH, 8), BATCH)
    replica = whole(table, "data_parallel")
    assert looked_up(replica, task(index_dedup=True)) == (whole(local_table(table, BATCH, 8)), BATCH // 8)
    dedup = deduplicated(table, BATCH, 8)
    assert looked_up(whole(table), task(index_dedup=True)) == (whole(dedup), BATCH)


@pytest.mark.parametrize("index_dedup", [False, True])
def test_a_shard_of_a_hosts_rows_sees_the_ids_of_its_hosts_samples(index_dedup):
    for table in TABLES:
        shard = Shard(table, 0, 16, 0, -(-table.num_embeddings // 4), "host_row_wise")
        seen, samples = looked_up(shard, task(index_dedup=index_dedup))
        assert samples == BATCH // 2
        of_host = ids_of_ranks(table, 8)[:4]
        sent = np.concatenate([np.unique(ids) if index_dedup else ids for ids in of_host])
        own = sent[sent < shard.num_rows]
        unique, _, _ = reuse_histogram(own)
        assert seen.num_rows == shard.num_rows
        rows = table.num_embeddings / shard.num_rows  # popular rows are at random places
        assert samples * seen.table.pooling_factor == pytest.approx(len(sent) / rows, rel=0.05)
        assert abs(unique - seen.table.unique_rows) <= 5 * np.sqrt(seen.table.unique_rows) + 1
