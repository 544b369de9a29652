"""Reuse profiles: counted ids, and the default profile of tables without a known one."""

from collections import Counter

import numpy as np
import pytest
from augment.published_shape import MEAN_POOLING_FACTOR, UNIQUE_ROWS_PER_TABLE
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import brentq

from neuroshard_pipeline.augment.published import BATCH_SIZE, MEAN_NUM_EMBEDDINGS
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.id_batches import observed
from neuroshard_pipeline.tables.profile import (
    DEFAULT_POPULARITY_EXPONENT,
    contradiction,
    default_profile,
    expected_rows,
    is_assumed,
    profile_problems,
    reuse_histogram,
    with_profile,
    zipf_buckets,
)
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Table


def bin_by_definition(count):
    """Index of the bin that contains `count`: (0,1], (1,2], (2,4], ..."""
    bin_index, upper = 0, 1
    while count > upper and bin_index < NUM_REUSE_BINS - 1:
        bin_index, upper = bin_index + 1, upper * 2
    return bin_index


@given(hnp.arrays(np.int64, st.integers(1, 300), elements=st.integers(0, 40)))
def test_histogram_counts_like_a_plain_counter(indices):
    counts = Counter(indices.tolist())
    rows, ids = [0] * NUM_REUSE_BINS, [0] * NUM_REUSE_BINS
    for count in counts.values():
        rows[bin_by_definition(count)] += 1
        ids[bin_by_definition(count)] += count
    unique_rows, share_of_rows, share_of_ids = reuse_histogram(indices)
    assert unique_rows == len(counts)
    np.testing.assert_allclose(share_of_rows, np.array(rows) / len(counts))
    np.testing.assert_allclose(share_of_ids, np.array(ids) / len(indices))


def test_histogram_has_an_open_last_bin():
    indices = np.repeat([7, 8, 9], [32768, 32769, 10**6])
    _, rows, _ = reuse_histogram(indices)
    assert rows[15] == pytest.approx(1 / 3)
    assert rows[16] == pytest.approx(2 / 3)


def test_histogram_without_ids_is_empty():
    unique_rows, rows, ids = reuse_histogram(np.empty(0, dtype=np.int64))
    assert unique_rows == 0
    assert rows.sum() == ids.sum() == 0


def test_the_exponent_explains_the_published_unique_rows():
    indices = round(MEAN_POOLING_FACTOR * BATCH_SIZE)

    def surplus(exponent):
        expected = expected_rows(*zipf_buckets(int(MEAN_NUM_EMBEDDINGS), exponent), indices).sum()
        return expected - UNIQUE_ROWS_PER_TABLE

    assert brentq(surplus, 0.5, 1.5) == pytest.approx(DEFAULT_POPULARITY_EXPONENT, abs=5e-4)


@pytest.mark.parametrize("num_embeddings", [1, 3, 255, 256, 257, 5000, 60_000])
def test_buckets_agree_with_a_sum_over_all_rows(num_embeddings):
    popularity = np.arange(1, num_embeddings + 1.0) ** -1.1
    popularity /= popularity.sum()
    exact = expected_rows(np.ones(num_embeddings), popularity, 20_000)
    rows, mean_popularity = zipf_buckets(num_embeddings, 1.1)
    assert rows.sum() == num_embeddings
    assert (rows * mean_popularity).sum() == pytest.approx(1.0)
    np.testing.assert_allclose(expected_rows(rows, mean_popularity, 20_000), exact, atol=0.002 * exact.sum())


def test_default_profile_agrees_with_simulated_draws():
    num_embeddings, batch_size = 400, 64
    popularity = np.arange(1, num_embeddings + 1.0) ** -DEFAULT_POPULARITY_EXPONENT
    popularity /= popularity.sum()
    rng = np.random.default_rng(0)
    rows = np.zeros(NUM_REUSE_BINS)
    for _ in range(400):
        unique, shares, _ = reuse_histogram(rng.choice(num_embeddings, size=5 * batch_size, p=popularity))
        rows += unique * shares / 400
    unique_rows, reuse = default_profile(num_embeddings, 5.0, batch_size)
    assert unique_rows == pytest.approx(rows.sum(), rel=0.01)
    np.testing.assert_allclose(reuse, rows / rows.sum(), atol=0.01)


@given(st.integers(1, 10**8), st.floats(1e-4, 300, allow_nan=False), st.sampled_from([1, 2, 64, 512, 65536]))
def test_default_profile_is_a_valid_profile(num_embeddings, pooling_factor, batch_size):
    table = with_profile(Table("t", num_embeddings, 8, pooling_factor), batch_size)
    assert table.has_profile
    assert table.unique_rows <= min(num_embeddings, max(round(batch_size * pooling_factor), 1))
    assert sum(table.reuse) == pytest.approx(1.0)


def test_with_profile_keeps_a_given_profile():
    table = Table("t", 100, 8, 1.0, 10.0, (1.0, *(0.0,) * 16))
    assert with_profile(table, 512) is table


@given(st.lists(hnp.arrays(np.int64, st.integers(0, 300), elements=st.integers(0, 99)), min_size=1, max_size=4))
def test_counted_profiles_contradict_no_pooling_factor_of_the_same_ids(batches):
    table = observed(with_profile(Table("t", 100, 8, 1.0), 64), batches, 64)
    assert not is_assumed(table)
    assert contradiction(table, 64) == ""
    assert list(profile_problems(table, 64)) == []


@given(st.integers(1, 10**6), st.floats(1e-6, 1e3), st.integers(1, 10**6))
def test_default_profiles_are_possible(num_embeddings, pooling_factor, batch_size):
    table = with_profile(Table("t", num_embeddings, 8, pooling_factor), batch_size)
    assert is_assumed(table)
    assert list(profile_problems(table, batch_size)) == []


@pytest.mark.parametrize(
    ("unique_rows", "filled_bin", "said"),
    [
        (500.0, 0, "at most 500 ids"),
        (1500.0, 0, ""),
        (2000.0, 0, "at least 2,000 ids"),
        (150.0, 4, ""),  # 9 to 16 lookups of each row
        (50.0, 4, "at most 800 ids"),
        (200.0, 4, "at least 1,800 ids"),
        (1.0, 16, "at least 32,769 ids"),
    ],
)
def test_profiles_of_another_number_of_ids_are_found(unique_rows, filled_bin, said):
    table = Table("t", 10_000, 8, 3.0, unique_rows, tuple(float(place == filled_bin) for place in range(17)))
    found = contradiction(table, 512)
    assert found.startswith(said)
    assert bool(found) == bool(said)
    assert contradiction(Table("t", 10, 8, 1e4, 1.0, (*(0.0,) * 16, 1.0)), 512) == "", "the last bin has no upper limit"


@pytest.mark.parametrize("values", [(0, 1.0, 512), (10, 0.0, 512), (10, float("nan"), 512), (10, 1.0, 0)])
def test_impossible_values_are_refused(values):
    with pytest.raises(TaskError, match="must be positive"):
        default_profile(*values)
