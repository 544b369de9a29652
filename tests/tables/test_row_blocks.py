"""The blocks of rows that TorchRec gives to ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.tables.row_blocks import last_rank_has_rows, row_blocks, row_shards
from neuroshard_pipeline.tables.table import Table


@pytest.mark.parametrize(
    ("rows", "ranks", "blocks"),
    [
        (10, 4, [(0, 3), (3, 3), (6, 3), (9, 1)]),
        (8, 4, [(0, 2), (2, 2), (4, 2), (6, 2)]),
        (5, 4, [(0, 2), (2, 2), (4, 1), (5, 0)]),
        (1, 3, [(0, 1), (1, 0), (1, 0)]),
    ],
)
def test_blocks_have_the_sizes_that_torchrec_documents(rows, ranks, blocks):
    """`sharding_plan._calculate_rw_shard_sizes_and_offsets` of TorchRec 1.8 documents the first and third example."""
    assert row_blocks(rows, ranks) == blocks


@given(rows=st.integers(1, 10**12), ranks=st.integers(1, 200))
def test_blocks_cover_the_rows_in_order(rows, ranks):
    blocks = row_blocks(rows, ranks)
    assert len(blocks) == ranks
    ends = [start + count for start, count in blocks]
    assert [start for start, _ in blocks] == [0, *ends[:-1]]
    assert ends[-1] == rows
    assert all(0 <= count <= blocks[0][1] for _, count in blocks)
    assert last_rank_has_rows(rows, ranks) == (blocks[-1][1] > 0)


def test_shards_are_the_blocks_with_rows():
    table = Table("a", 5, 64, 1.0)
    shards = row_shards(table, "grid_shard", 4, 16, 32)
    assert [(shard.row_offset, shard.num_rows) for shard in shards] == [(0, 2), (2, 2), (4, 1)]
    assert {(shard.column_offset, shard.embedding_dim, shard.sharding_type) for shard in shards} == {
        (16, 32, "grid_shard")
    }
