"""Popularity curves against later ids of the same popularity, and counts against a plain loop."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.popularity import (
    curve_of_counts,
    curve_of_profile,
    id_counts,
    popular_rows,
    rows_and_ids,
)
from neuroshard_pipeline.tables.profile import reuse_histogram, with_profile
from neuroshard_pipeline.tables.table import Table

BATCH = 1000


def profiled(ids, num_embeddings):
    """A table with the profile of these ids, as one batch."""
    unique, reuse, _ = reuse_histogram(ids)
    return Table("t", num_embeddings, 8, len(ids) / BATCH, float(unique), tuple(reuse.tolist()), pooling="none")


@cache
def two_draws(num_embeddings, exponent, count):
    rng = np.random.default_rng(0)
    return [zipf_ids(num_embeddings, exponent, count, rng) for _ in range(2)]


def zipf_ids(num_embeddings, exponent, count, rng):
    """Independent ids; the popularity of row k is proportional to (k + 1)**-exponent."""
    popularity = np.arange(1, num_embeddings + 1.0) ** -exponent
    return rng.choice(num_embeddings, size=count, p=popularity / popularity.sum())


def assert_concave(curve, num_embeddings):
    assert (curve.rows[0], curve.rows[-1], curve.shares[0], curve.shares[-1]) == (0, num_embeddings, 0, 1)
    assert (np.diff(curve.rows) > 0).all()
    slopes = np.diff(curve.shares) / np.diff(curve.rows)
    assert (slopes >= -1e-15).all()
    assert (np.diff(slopes) <= 1e-12 + 1e-9 * slopes[:-1]).all()


@pytest.mark.parametrize("source", ["profile", "counts"])
@pytest.mark.parametrize(
    ("num_embeddings", "exponent", "count"),
    [(100_000, 1.1, 200_000), (1_000_000, 1.1, 200_000), (100_000, 0.8, 200_000), (100_000, 0.5, 1_000_000),
     (20_000, 0.0, 200_000), (100_000, 0.0, 200_000), (1000, 1.1, 50_000), (1_000_000, 0.9, 20_000)],
)  # fmt: skip
def test_a_curve_promises_no_more_than_later_ids_give(num_embeddings, exponent, count, source):
    first, later = two_draws(num_embeddings, exponent, count)
    counts = id_counts([first], num_embeddings)
    curve = curve_of_counts(counts) if source == "counts" else curve_of_profile(profiled(first, num_embeddings), BATCH)
    assert_concave(curve, num_embeddings)
    rows = np.unique(np.geomspace(1, num_embeddings, 60).astype(int))
    held_out, seen = (
        np.cumsum(np.bincount(ids, minlength=num_embeddings)[popular_rows(counts, num_embeddings)])[rows - 1] / count
        for ids in (later, first)
    )
    noise = 4 * np.sqrt(seen * (1 - seen) / count) + 4 / count
    promised = curve.share_of(rows)
    assert (promised <= held_out + noise).all()
    hot = (rows >= num_embeddings // 1000) & (rows <= num_embeddings // 100)
    if count >= num_embeddings // 5:
        assert (promised[hot] >= 0.8 * held_out[hot] - noise[hot]).all()  # nor does it promise far too little
    if exponent == 0:  # rows are equally popular, although by chance some have many times the lookups of others
        assert seen[rows <= num_embeddings // 3][-1] > 0.4
        assert curve.share_of(num_embeddings // 3) < 0.35


@pytest.mark.parametrize("pooling_factor", [20.0, 200.0])
def test_a_curve_of_half_a_drawn_batch_holds_for_the_other_half(pooling_factor):
    """The ids are those of one batch of `draw_ids`, in random order."""
    table = with_profile(Table("t", 200_000, 8, pooling_factor), BATCH)
    ids = draw_ids(table, BATCH, seed=3).indices
    half = len(ids) // 2
    counts = id_counts([ids[:half]], table.num_embeddings)
    curve = curve_of_profile(profiled(ids[:half], table.num_embeddings), BATCH)
    rows = np.unique(np.geomspace(1, table.num_embeddings, 40).astype(int))
    later = np.bincount(ids[half:], minlength=table.num_embeddings)[popular_rows(counts, table.num_embeddings)]
    held_out = np.cumsum(later)[rows - 1] / later.sum()
    assert (curve.share_of(rows) <= held_out + 4 * np.sqrt(held_out / half) + 4 / half).all()


@st.composite
def profiled_tables(draw):
    rows, unique = draw(st.integers(1, 10**7)), draw(st.floats(0.001, 1.0))
    shares = np.array(draw(st.lists(st.integers(0, 5), min_size=17, max_size=17).filter(any)), dtype=float)
    reuse = tuple((shares / shares.sum()).tolist())
    return Table("t", rows, 8, draw(st.floats(0.01, 300.0)), unique * rows, reuse, pooling="none")


@given(profiled_tables(), st.sampled_from([64, 65536]))
def test_curves_of_any_profile_are_concave_and_account_for_all_ids(table, batch_size):
    curve = curve_of_profile(table, batch_size)
    assert_concave(curve, table.num_embeddings)
    assert curve.num_embeddings == table.num_embeddings
    np.testing.assert_allclose(curve.share_of([0, table.num_embeddings]), [0, 1], atol=1e-9)
    rows, ids = rows_and_ids(table, batch_size)
    assert ids.sum() == pytest.approx(batch_size * table.pooling_factor)
    np.testing.assert_allclose(rows, table.unique_rows * np.array(table.reuse), rtol=1e-9)
    assert (ids[rows == 0] == 0).all()


@given(st.lists(arrays(np.int64, st.integers(0, 20), elements=st.integers(0, 9)), max_size=5), st.integers(0, 10))
def test_counts_and_popular_rows_agree_with_a_loop(batches, num_rows):
    counted = id_counts(batches, 10)
    expected = Counter(int(row) for batch in batches for row in batch)
    assert dict(zip(counted.rows.tolist(), counted.counts.tolist(), strict=True)) == expected
    hottest = sorted(range(10), key=lambda row: (-expected[row], row))
    assert popular_rows(counted, num_rows).tolist() == hottest[:num_rows]


def test_impossible_requests_are_refused():
    with pytest.raises(TaskError, match=r"ids are 0 to 5, but the table.s rows are 0 to 4"):
        id_counts([np.array([0, 5])], 5)
    with pytest.raises(TaskError, match="no ids were counted"):
        curve_of_counts(id_counts([], 5))
    with pytest.raises(TaskError, match="num_rows is 6, but the table has only 5 rows"):
        popular_rows(id_counts([np.array([1])], 5), 6)


def test_points_of_a_curve_end_at_all_rows():
    """Rows of the bins may add up to a little more than all rows."""
    shares = (0.0, 0.0, 0.3, 0.1, 0.3, 0.2, 0.1, *(0.0,) * 10)
    for rows in range(900, 1000):
        table = Table("t", rows, 8, 20.0, float(rows), shares, pooling="none")
        assert curve_of_profile(table, BATCH).rows[-1] == rows
        assert replace(table, popularity=curve_of_profile(table, BATCH).points)
