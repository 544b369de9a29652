"""Sums over distinct shards are compared with loops over all shards."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.tables.placed import _FEW_PRODUCTS, distinct_shards, placed_shards
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole

WORLD_SIZE = 4


@st.composite
def plans(draw):
    placed = []
    for index in range(draw(st.integers(1, 6))):
        table = Table(f"t{index}", draw(st.integers(5, 100)), 8, 2.0)
        kind = draw(st.sampled_from(("column_wise", "data_parallel", "row_wise")))
        if kind == "column_wise":
            placed += [(Shard(table, offset, 4), draw(st.integers(0, WORLD_SIZE - 1))) for offset in (0, 4)]
        else:
            shards = row_shards(table, kind, WORLD_SIZE) if kind == "row_wise" else [whole(table, kind)] * WORLD_SIZE
            placed += list(zip(shards, range(len(shards)), strict=True))
    return tuple(zip(*placed, strict=True))


@given(plans(), st.sampled_from([1, _FEW_PRODUCTS]))
def test_sums_per_rank_are_those_of_a_loop_over_all_shards(plan, copies):
    """Both without a sparse matrix and, if there are many copies of the values, with one."""
    shards, ranks = plan
    placed = placed_shards(shards, ranks, WORLD_SIZE)
    values = np.array([(shard.num_rows, 2**40 * shard.embedding_dim) for shard in placed.shards])
    found = placed.per_rank(np.tile(values, copies))
    expected = np.zeros((WORLD_SIZE, 2), dtype=np.int64)
    for shard, rank in zip(shards, ranks, strict=True):
        expected[rank] += (shard.num_rows, 2**40 * shard.embedding_dim)
    assert found.tolist() == np.tile(expected, copies).tolist()
    assert placed.times.sum() == len(shards)


@given(plans())
def test_every_shard_has_an_equal_among_the_distinct_ones(plan):
    shards, _ = plan
    distinct, place = distinct_shards(shards)
    for shard, number in zip(shards, place, strict=True):
        equal = distinct[number]
        assert (equal.table, equal.embedding_dim, equal.num_rows) == (shard.table, shard.embedding_dim, shard.num_rows)
        assert equal.sharding_type == shard.sharding_type
    keys = {(s.table.name, s.embedding_dim, s.num_rows, s.sharding_type) for s in shards}
    assert len(distinct) == len(keys)


@given(plans())
def test_groups_have_the_shards_of_their_key_and_keep_the_ranks(plan):
    shards, ranks = plan
    groups = placed_shards(shards, ranks, WORLD_SIZE).by(lambda shard: shard.sharding_type)
    for kind, group in groups.items():
        expected = [rank for shard, rank in zip(shards, ranks, strict=True) if shard.sharding_type == kind]
        counts = group.per_rank(np.ones(len(group.shards), dtype=np.int64))
        assert counts.tolist() == np.bincount(expected, minlength=WORLD_SIZE).tolist()
    assert list(groups) == list(dict.fromkeys(shard.sharding_type for shard in shards))


def test_a_plan_without_shards_has_sums_of_nothing():
    placed = placed_shards((), (), WORLD_SIZE)
    assert placed.per_rank(np.zeros((0, 3))).tolist() == [[0.0] * 3] * WORLD_SIZE
    assert placed.times.tolist() == []
