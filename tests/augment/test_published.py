"""The published statistics, and their conversion to smaller batches."""

import numpy as np
import pytest
from augment.published_shape import MEAN_POOLING_FACTOR, UNIQUE_ROWS_PER_TABLE

from neuroshard_pipeline.augment.published import (
    MEAN_COUNTS,
    SHARE_OF_INDICES,
    SHARE_OF_UNIQUE_ROWS,
    fold,
    highest_bin,
    rows_per_table,
)


def test_constants_agree_with_the_means_published_beside_them():
    assert pytest.approx(15.81, abs=0.005) == MEAN_POOLING_FACTOR
    assert pytest.approx(150_042, abs=1) == UNIQUE_ROWS_PER_TABLE
    assert sum(SHARE_OF_UNIQUE_ROWS) == pytest.approx(1, abs=0.002)
    assert sum(SHARE_OF_INDICES) == pytest.approx(1, abs=0.002)


def test_rows_per_bin_explain_the_published_totals():
    rows = rows_per_table(65536)
    assert rows.sum() == pytest.approx(150_042, rel=0.002)
    assert rows @ MEAN_COUNTS == pytest.approx(15.81 * 65536, rel=0.002)
    # Rows that are derived from ids agree with the rounded shares of rows.
    np.testing.assert_allclose(rows / rows.sum(), SHARE_OF_UNIQUE_ROWS, atol=0.0006)


@pytest.mark.parametrize(
    ("batch_size", "last"), [(16, 4), (64, 6), (65, 7), (512, 9), (65535, 16), (65536, 16), (2**17, 16)]
)
def test_highest_bin_holds_a_row_that_every_sample_looks_up(batch_size, last):
    assert highest_bin(batch_size) == last


@pytest.mark.parametrize("batch_size", [16, 64, 512, 65536])
def test_folding_keeps_sums_and_empties_higher_bins(batch_size):
    shares = np.random.default_rng(0).random((3, 17))
    folded, last = fold(shares, batch_size), highest_bin(batch_size)
    np.testing.assert_allclose(folded.sum(axis=-1), shares.sum(axis=-1))
    np.testing.assert_array_equal(folded[:, :last], shares[:, :last])
    assert (folded[:, last + 1 :] == 0).all()


@pytest.mark.parametrize("batch_size", [512, 4096])
def test_scaling_down_keeps_ids_per_sample_and_the_histogram_of_rows(batch_size):
    assert rows_per_table(batch_size) @ MEAN_COUNTS / batch_size == pytest.approx(15.81, rel=0.002)
    rows, full = (rows_per_table(size) for size in (batch_size, 65536))
    np.testing.assert_allclose(np.cumsum(rows) / rows.sum(), np.cumsum(full) / full.sum(), atol=0.006)
