"""Sequence tables with a stated popularity: its curve, its profile, and ids that follow it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_popularity import POPULARITIES, row_popularity
from sequence_draws import SequenceIds, sequence_tables

from neuroshard_pipeline.augment.published import BATCH_SIZE, INDICES, TABLES, rows_per_table
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.profile import expected_rows, reuse_histogram
from neuroshard_pipeline.tables.table import Table


@pytest.mark.parametrize("name", POPULARITIES)
@given(num_embeddings=st.integers(1, 10**9))
def test_a_popularity_covers_all_rows_and_all_ids_hottest_first(name, num_embeddings):
    found = row_popularity(name, num_embeddings)
    assert found.num_rows == num_embeddings
    assert found.rows @ found.popularity == pytest.approx(1.0)
    assert (np.diff(found.popularity) <= 0).all()
    assert found.share_of(0) == 0.0
    assert found.share_of(num_embeddings) == pytest.approx(1.0)


def test_published_popularity_has_the_published_histogram():
    found = row_popularity("published", 4_000_000)
    rows = expected_rows(found.rows.astype(float), found.popularity, round(INDICES / TABLES))
    assert rows == pytest.approx(rows_per_table(BATCH_SIZE), rel=0.05, abs=4)  # every bucket has a whole number of rows


def test_steep_and_flat_surround_the_published_curve():
    shares = [row_popularity(name, 4_000_000).share_of(40_000) for name in ("steep", "published", "flat")]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[2] > 0.4


def test_unknown_popularity_is_refused_with_the_known_ones():
    with pytest.raises(TaskError, match="'stepe' is unknown; use one of published, steep, flat; did you mean 'steep'"):
        row_popularity("stepe", 100)


@pytest.mark.parametrize("name", POPULARITIES)
def test_drawn_ids_have_the_profile_of_their_table(name):
    table = sequence_tables(name, [30], [64], [20_000], batch_size=1024)[0]
    ids = SequenceIds(table, row_popularity(name, 20_000)).draw(1024, seed=1)
    unique, shares, _ = reuse_histogram(ids.indices)
    assert len(ids.indices) == 30 * 1024 == ids.offsets[-1]
    assert unique == pytest.approx(table.unique_rows, rel=0.03)
    assert shares == pytest.approx(table.reuse, abs=0.02)


def test_popular_rows_get_their_share_of_the_ids_of_every_batch():
    popularity = row_popularity("published", 50_000)
    source = SequenceIds(Table("t", 50_000, 64, 20.0, pooling="none"), popularity)
    hot = source.popular_rows(1_000)
    assert len(np.unique(hot)) == 1_000
    for seed in range(3):
        drawn = source.draw(2048, seed).indices
        assert np.isin(drawn, hot).mean() == pytest.approx(popularity.share_of(1_000), abs=0.01)


@given(size=st.integers(1, 3000), share=st.floats(0, 1))
def test_row_numbers_are_a_bijection_of_the_places(size, share):
    source = SequenceIds(Table("t", size, 4, 1.0, pooling="none"), row_popularity("flat", size), share)
    assert sorted(source.rows_at(np.arange(size))) == list(range(size))


def test_swapped_rows_grow_with_the_share():
    size = 10_000
    table, popularity = Table("t", size, 4, 1.0, pooling="none"), row_popularity("flat", size)
    before = SequenceIds(table, popularity).popular_rows(size // 2)
    kept = [
        np.isin(SequenceIds(table, popularity, share).popular_rows(size // 2), before).mean()
        for share in (0.0, 0.25, 0.5, 1.0)
    ]
    assert kept == pytest.approx([1.0, 0.75, 0.5, 0.0], abs=0.02)


def test_tables_of_equal_width_share_a_module():
    tables = sequence_tables("flat", [10, 20, 30], [32, 64, 32], [100, 100, 100], batch_size=16)
    assert [table.module for table in tables] == [f"sequences_of_width_{width}" for width in (32, 64, 32)]
    assert all(table.pooling == "none" for table in tables)
