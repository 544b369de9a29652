"""Reuse profiles: counted ids, and the default profile of tables without a known one."""

from collections import Counter

import numpy as np
import pytest
from augment.published_shape import MEAN_POOLING_FACTOR, UNIQUE_ROWS_PER_TABLE
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import brentq

from neuroshard_pipeline.augment.published import BATCH_SIZE, MEAN_NUM_EMBEDDINGS
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.profile import (
    DEFAULT_POPULARITY_EXPONENT,
    default_profile,
    expected_rows,
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


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**8), st.floats(1e-4, 300, allow_nan=False), st.sampled_from([1, 2, 64, 512, 65536]))
def test_default_profile_is_a_valid_profile(num_embeddings, pooling_factor, batch_size):
    table = with_profile(Table("t", num_embeddings, 8, pooling_factor), batch_size)
    assert table.has_profile
    assert table.unique_rows <= min(num_embeddings, max(round(batch_size * pooling_factor), 1))
    assert sum(table.reuse) == pytest.approx(1.0)


def test_with_profile_keeps_a_given_profile():
    table = Table("t", 100, 8, 1.0, 10.0, (1.0, *(0.0,) * 16))
    assert with_profile(table, 512) is table


@pytest.mark.parametrize("values", [(0, 1.0, 512), (10, 0.0, 512), (10, float("nan"), 512), (10, 1.0, 0)])
def test_impossible_values_are_refused(values):
    with pytest.raises(TaskError, match="must be positive"):
        default_profile(*values)
