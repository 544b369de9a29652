"""Drawn ids have the given profile exactly if possible, otherwise with as few changes as possible."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.ids import (
    HIGHEST_COUNTS,
    LOWEST_COUNTS,
    apportion,
    bag_lengths,
    distinct_rows,
    draw_ids,
    feasible_rows,
    look_up_counts,
)
from neuroshard_pipeline.tables.profile import reuse_bin, reuse_histogram, with_profile
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Table

PINNED_INDICES = [36, 219, 944, 555, 666, 555, 219, 219, 429, 784, 131, 219, 555, 555, 944, 784]
PINNED_OFFSETS = [0, 3, 4, 7, 8, 9, 12, 15, 16]
PROFILE = (0.5, 0.2, 0.1, 0.1, 0.05, 0.05, *(0.0,) * 11)


@st.composite
def tables(draw):
    """Any table with any profile, feasible or not."""
    num_embeddings = draw(st.integers(1, 3000))
    weights = np.array(draw(st.lists(st.floats(0, 1), min_size=NUM_REUSE_BINS, max_size=NUM_REUSE_BINS)))
    weights[draw(st.integers(0, NUM_REUSE_BINS - 1))] += 0.5
    return Table(
        name=draw(st.text(min_size=1, max_size=5).filter(str.strip)),
        num_embeddings=num_embeddings,
        embedding_dim=8,
        pooling_factor=draw(st.floats(0.01, 60)),
        unique_rows=draw(st.floats(0.01, num_embeddings)),
        reuse=tuple((weights / weights.sum()).tolist()),
    )


@st.composite
def rows_and_ids(draw):
    """Rows per bin, and a number of ids with which every row can have a lookup count of its bin."""
    rows = np.array(draw(st.lists(st.integers(0, 30), min_size=NUM_REUSE_BINS, max_size=NUM_REUSE_BINS)))
    rows[0] += 1
    lowest, highest = int(rows @ LOWEST_COUNTS), int(rows @ HIGHEST_COUNTS)
    return rows, draw(st.integers(lowest, highest))


@settings(max_examples=12)
@given(tables(), st.integers(1, 300), st.integers(0, 2**40))
def test_any_table_gets_valid_ids(table, batch_size, seed):
    ids = draw_ids(table, batch_size, seed)
    expected = round(batch_size * table.pooling_factor)
    assert ids.indices.dtype == ids.offsets.dtype == np.int64
    assert len(ids.indices) == expected
    assert len(ids.offsets) == batch_size + 1
    assert ids.offsets[0] == 0
    assert ids.offsets[-1] == expected
    assert (np.diff(ids.offsets) >= 0).all()
    if expected:
        assert 0 <= ids.indices.min() <= ids.indices.max() < table.num_embeddings
        assert len(np.unique(ids.indices)) == min(max(round(table.unique_rows), 1), expected)


@given(rows_and_ids())
def test_ids_have_a_feasible_profile_exactly(case):
    rows, indices = case
    table = Table("t", 10**9, 8, indices / 4, float(rows.sum()), tuple((rows / rows.sum()).tolist()))
    counts = look_up_counts(table, indices)
    assert counts.sum() == indices
    assert np.bincount(reuse_bin(counts), minlength=NUM_REUSE_BINS).tolist() == rows.tolist()


@pytest.mark.parametrize("batch_size", [64, 512, 65536])
@pytest.mark.parametrize(
    ("num_embeddings", "pooling_factor"), [(4_000_000, 15.81), (40_000_000, 1.0), (3, 1.0), (90, 30.0)]
)
def test_drawn_ids_have_the_default_profile(num_embeddings, pooling_factor, batch_size):
    table = with_profile(Table("t", num_embeddings, 8, pooling_factor), batch_size)
    unique_rows, reuse, _ = reuse_histogram(draw_ids(table, batch_size, seed=0).indices)
    assert unique_rows == max(round(table.unique_rows), 1)
    # Whole numbers of rows deviate from the shares by up to one row per bin.
    assert np.abs(np.cumsum(reuse) - np.cumsum(table.reuse)).max() <= 9 / unique_rows


def test_equal_arguments_draw_equal_ids_for_any_width():
    table = Table("user_id", 5000, 8, 4.0, 500.0, PROFILE)
    first, second = draw_ids(table, 256, seed=3), draw_ids(replace(table, embedding_dim=128), 256, seed=3)
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_array_equal(first.offsets, second.offsets)


def test_draws_do_not_change_between_versions():
    """Stored costs were measured with these ids: a change invalidates every measurement."""
    ids = draw_ids(Table("t", 1000, 8, 2.0, 8.0, (0.5, 0.25, 0.25, *(0.0,) * 14)), 8, seed=1)
    assert len(ids.indices) == 16
    assert sorted(np.unique(ids.indices, return_counts=True)[1].tolist()) == [1, 1, 1, 1, 2, 2, 4, 4]
    assert ids.indices.tolist() == PINNED_INDICES
    assert ids.offsets.tolist() == PINNED_OFFSETS


@pytest.mark.parametrize("change", [{"seed": 4}, {"name": "item_id"}, {"batch_size": 257}])
def test_seed_name_and_batch_size_change_the_ids(change):
    table = Table(change.get("name", "user_id"), 5000, 8, 4.0, 500.0, PROFILE)
    reference = draw_ids(replace(table, name="user_id"), 256, seed=3).indices
    changed = draw_ids(table, change.get("batch_size", 256), change.get("seed", 3)).indices
    assert not np.array_equal(reference, changed[: len(reference)])


def test_a_table_without_profile_gets_the_default_one():
    table = Table("t", 5000, 8, 4.0)
    np.testing.assert_array_equal(draw_ids(table, 128, 0).indices, draw_ids(with_profile(table, 128), 128, 0).indices)


@pytest.mark.parametrize(("batch_size", "seed"), [(0, 0), (-1, 0), (8, -1)])
def test_impossible_arguments_are_refused(batch_size, seed):
    with pytest.raises(TaskError, match="must be at least"):
        draw_ids(Table("t", 10, 8, 1.0), batch_size, seed)


def test_counts_need_a_profile():
    with pytest.raises(TaskError, match="no reuse profile"):
        look_up_counts(Table("t", 10, 8, 1.0), 10)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.data())
def test_as_few_rows_as_possible_change_their_bin(bins, data):
    rows = np.bincount(bins, minlength=NUM_REUSE_BINS)
    indices = data.draw(st.integers(len(bins), 400))
    kept = np.minimum(feasible_rows(rows, indices), rows).sum()
    open_ended = np.append(HIGHEST_COUNTS[:-1], 10**9)
    possible = product(range(10), repeat=len(bins))  # 400 ids never need more than bin 9
    best = max(
        int(np.minimum(np.bincount(other, minlength=NUM_REUSE_BINS), rows).sum())
        for other in possible
        if LOWEST_COUNTS[list(other)].sum() <= indices <= open_ended[list(other)].sum()
    )
    assert kept == best


@given(st.integers(0, 10**9), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_apportionment_has_the_given_sum_and_is_close_to_the_shares(total, weights):
    shares = np.array(weights) + 1e-3
    whole = apportion(total, shares)
    assert whole.sum() == total
    assert (whole >= 0).all()
    assert np.abs(whole - total * shares / shares.sum()).max() < 1.01


def test_apportionment_undoes_a_division():
    rows = np.array([1, 2, 4, 56_123_457])
    assert apportion(rows.sum(), rows / rows.sum()).tolist() == rows.tolist()


@given(st.integers(1, 5000), st.floats(0, 1), st.integers(0, 1000))
def test_distinct_rows_are_distinct(num_embeddings, share, seed):
    count = int(num_embeddings * share)
    rows = distinct_rows(num_embeddings, count, np.random.default_rng(seed))
    assert len(np.unique(rows)) == len(rows) == count
    assert ((rows >= 0) & (rows < num_embeddings)).all()


def test_distinct_rows_are_spread_evenly_and_in_random_order():
    rng = np.random.default_rng(0)
    rows = np.concatenate([distinct_rows(1000, 100, rng) for _ in range(500)])
    assert np.bincount(rows // 100).min() > 4500
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.02


@given(st.integers(0, 5000), st.integers(1, 400), st.integers(0, 1000))
def test_lengths_have_the_given_sum(indices, batch_size, seed):
    lengths = bag_lengths(indices, batch_size, np.random.default_rng(seed))
    assert len(lengths) == batch_size
    assert lengths.sum() == indices
    assert lengths.min() >= 0
    if indices <= batch_size:
        assert lengths.max(initial=0) <= 1


def test_lengths_vary_more_than_independent_ids_would():
    lengths = bag_lengths(200_000, 10_000, np.random.default_rng(0))
    assert lengths.var() == pytest.approx(20 + 20**2 / 2, rel=0.1)
