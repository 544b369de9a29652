"""What the kernel of a row shard or a replica sees is compared with drawn ids, cut by rows or by samples."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.tables.frames import tables_from_frame
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.lookups import local_table, lookup_batch_size, lookup_shard
from neuroshard_pipeline.tables.profile import reuse_histogram, with_profile
from neuroshard_pipeline.tables.table import Shard, Table, whole

BATCH_SIZE = 4096


@pytest.fixture(scope="module")
def pool():
    frame = generate_pool(PoolParams(num_tables=60, batch_size=BATCH_SIZE, row_scale=16, seed=0))
    return tables_from_frame(frame)


@st.composite
def profiled_tables(draw):
    rows, unique = draw(st.integers(1, 10**7)), draw(st.floats(0.01, 1.0))
    shares = np.array(draw(st.lists(st.integers(0, 5), min_size=17, max_size=17).filter(any)), dtype=float)
    reuse = tuple((shares / shares.sum()).tolist())
    return Table("t", rows, 8, draw(st.floats(0.01, 100.0)), unique * rows, reuse)


@st.composite
def row_shards(draw):
    """All row shards of a table with a profile, or of one without."""
    table = draw(profiled_tables())
    if draw(st.booleans()):
        table = Table("t", table.num_embeddings, 8, table.pooling_factor)
    cuts = sorted(draw(st.sets(st.integers(1, max(1, table.num_embeddings - 1)), max_size=6)))
    edges = [0, *(cut for cut in cuts if cut < table.num_embeddings), table.num_embeddings]
    sharding_type = draw(st.sampled_from(["row_wise", "table_row_wise", "grid_shard"]))
    return [Shard(table, 0, 8, first, end - first, sharding_type) for first, end in pairwise(edges)]


@given(row_shards())
def test_row_shards_sum_to_the_rows_ids_and_unique_rows_of_their_table(shards):
    seen = [lookup_shard(shard, 512, len(shards)) for shard in shards]
    table = with_profile(shards[0].table, 512)
    assert sum(shard.num_rows for shard in seen) == table.num_embeddings
    assert sum(shard.table.pooling_factor for shard in seen) == pytest.approx(table.pooling_factor)
    assert sum(shard.table.unique_rows for shard in seen) == pytest.approx(table.unique_rows, rel=1e-6, abs=0.01)
    assert sum(shard.weight_bytes for shard in seen) == table.weight_bytes
    assert {shard.table.reuse for shard in seen} == {table.reuse}
    assert {lookup_batch_size(shard, 512, len(shards)) for shard in shards} == {512}


@given(profiled_tables(), st.sampled_from([1, 2, 3, 8, 64, 1024]), st.sampled_from([64, 65536]))
def test_a_replica_looks_up_no_more_rows_than_the_whole_batch(table, world_size, batch_size):
    local = local_table(table, batch_size, world_size)
    assert local == dataclasses.replace(table, unique_rows=local.unique_rows, reuse=local.reuse)
    assert local.unique_rows <= table.unique_rows * (1 + 1e-9)
    assert local.unique_rows * world_size >= table.unique_rows * (1 - 1e-9)
    assert sum(local.reuse) == pytest.approx(1.0)
    above, local_above = (seen.unique_rows * np.cumsum(seen.reuse[::-1]) for seen in (table, local))
    assert (local_above <= above * (1 + 1e-9) + 1e-9).all()  # no row moves to a higher reuse bin


def test_a_column_shard_is_seen_as_it_is():
    shard = Shard(Table("t", 100, 16, 2.0), 4, 8)
    assert lookup_shard(shard, 64, 8) is shard
    assert lookup_batch_size(shard, 64, 8) == 64


def test_a_replica_looks_up_the_batch_of_its_rank():
    shard = whole(Table("t", 100, 16, 2.0), "data_parallel")
    assert [lookup_batch_size(shard, 64, ranks) for ranks in (1, 8, 60, 100)] == [64, 8, 2, 1]
    assert lookup_shard(shard, 64, 8) == whole(local_table(shard.table, 64, 8))


@pytest.mark.parametrize("world_size", [2, 32])
def test_a_replicas_rows_and_reuse_agree_with_drawn_ids(pool, world_size):
    local_batch = BATCH_SIZE // world_size
    errors, distances = [], []
    for table in pool:
        ids = draw_ids(table, BATCH_SIZE, seed=1)
        bounds = ids.offsets[::local_batch]
        parts = [ids.indices[first:end] for first, end in pairwise(bounds)]
        unique, shares, _ = zip(*(reuse_histogram(part) for part in parts if len(part)), strict=True)
        local = local_table(table, BATCH_SIZE, world_size)
        errors.append(local.unique_rows / np.mean(unique) - 1)
        distances.append(np.abs(np.array(local.reuse) - np.mean(shares, axis=0)).sum() / 2)
    assert abs(np.mean(errors)) < 0.02
    assert np.quantile(np.abs(errors), 0.9) < 0.05
    assert np.median(distances) < 0.03
    assert np.quantile(distances, 0.9) < 0.08


@pytest.mark.parametrize("parts", [2, 8])
def test_a_row_shards_ids_and_rows_agree_with_drawn_ids(pool, parts):
    for table in pool:
        ids = draw_ids(table, BATCH_SIZE, seed=1)
        shard = Shard(table, 0, table.embedding_dim, 0, -(-table.num_embeddings // parts), "row_wise")
        seen = lookup_shard(shard, BATCH_SIZE, parts).table
        own = ids.indices[ids.indices < shard.num_rows]
        unique = reuse_histogram(own)[0]
        # The number of ids is the sum of the lookups of the shard's rows; popular rows make its variance large.
        lookups = np.unique(ids.indices, return_counts=True)[1]
        expected = seen.pooling_factor * BATCH_SIZE
        assert abs(len(own) - expected) <= 5 * np.sqrt((lookups**2).sum() / parts) + 1
        # The rows that a batch looks up are random rows: their number in a shard has a hypergeometric distribution.
        assert abs(unique - seen.unique_rows) <= 5 * np.sqrt(seen.unique_rows) + 1


def test_ids_of_a_row_shard_are_drawn_with_empty_bags():
    """TorchRec gives a row shard an empty bag for every sample that has no id among its rows."""
    table = Table("t", 1000, 8, 2.0)
    seen = lookup_shard(Shard(table, 0, 8, 0, 125, "row_wise"), 512, 8).table
    lengths = np.diff(draw_ids(seen, 512, seed=0).offsets)
    assert seen.pooling_factor == 0.25
    assert lengths.sum() == 128
    assert len(lengths) == 512
    assert (lengths == 0).mean() > 0.5
