"""Communication samples vary in imbalance and start skew, and do not change if more samples are drawn."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from neuroshard_pipeline.augment.comm_draws import CommSampleParams, comm_samples, place_widest_first
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.errors import TaskError

DIMENSIONS = (4, 8, 16, 32, 64, 128)
COMM = {
    "num_samples": 200, "batch_size": 512, "world_sizes": (4, 8), "dimensions": DIMENSIONS,
    "min_tables_per_4_ranks": 10, "max_tables_per_4_ranks": 60, "max_start_skew_ms": 5.0, "seed": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def pool():
    return generate_pool(PoolParams(num_tables=150, batch_size=512, row_scale=128.0, seed=0))


def test_samples_vary_in_imbalance_and_skew(pool):
    frame = comm_samples(pool, CommSampleParams(**COMM))
    assert frame.columns.tolist() == ["sample_id", "world_size", "batch_size", "rank", "dim_sum", "start_skew_ms"]
    samples = frame.groupby("sample_id", sort=False)
    assert samples.size().tolist() == [4, 8] * 100
    assert (samples["world_size"].first() == samples.size()).all()
    assert samples["rank"].apply(list).tolist() == [list(range(4)), list(range(8))] * 100
    assert (samples["start_skew_ms"].min() == 0).all()
    assert 3 < frame["start_skew_ms"].max() <= 5
    imbalance = samples["dim_sum"].max() / samples["dim_sum"].mean()
    assert imbalance.min() < 1.02
    assert imbalance.max() > 1.8
    assert (frame["dim_sum"] % 4 == 0).all()
    assert samples["dim_sum"].sum().between(10 * 4, 120 * 128).all()


def test_other_batch_sizes_change_nothing_else(pool):
    usual = comm_samples(pool, CommSampleParams(**COMM))
    params = CommSampleParams(**COMM, other_batch_sizes=(64, 1024), other_batch_share=0.25)
    mixed = comm_samples(pool, params)
    shares = mixed.groupby("sample_id")["batch_size"].first().value_counts(normalize=True)
    assert set(usual["batch_size"]) == {512}
    assert shares[512] == pytest.approx(0.75, abs=0.1)
    assert shares[64] == pytest.approx(0.125, abs=0.08)
    assert len(mixed[["sample_id", "batch_size"]].drop_duplicates()) == COMM["num_samples"]
    pd.testing.assert_frame_equal(mixed.drop(columns="batch_size"), usual.drop(columns="batch_size"))


def test_other_batch_share_needs_other_batch_sizes():
    with pytest.raises(ValidationError, match=r"other_batch_share 0\.5 needs other_batch_sizes"):
        CommSampleParams(**COMM, other_batch_share=0.5)


def test_more_samples_do_not_change_the_first_ones(pool):
    few = comm_samples(pool, CommSampleParams(**{**COMM, "num_samples": 7}))
    many = comm_samples(pool, CommSampleParams(**COMM))
    pd.testing.assert_frame_equal(many.iloc[: len(few)], few)


@given(st.integers(1, 40), st.integers(2, 8), st.floats(0, 1))
def test_placement_gives_every_table_to_one_rank(count, world_size, random_share):
    dims = 2 ** np.arange(count)  # each bit that is set in a rank's sum of such widths stands for one table
    dim_sums = place_widest_first(dims, world_size, random_share, np.random.default_rng(0))
    tables = [{number for number in range(count) if dim_sum >> number & 1} for dim_sum in dim_sums.tolist()]
    assert sorted(number for of_rank in tables for number in of_rank) == list(range(count))
    assert dim_sums.sum() == dims.sum()


@given(st.lists(st.sampled_from(DIMENSIONS), min_size=1, max_size=40), st.integers(2, 8))
def test_placement_without_random_ranks_is_greedy(dims, world_size):
    expected = [0] * world_size
    for dim in sorted(dims, reverse=True):
        expected[expected.index(min(expected))] += dim
    assert place_widest_first(np.array(dims), world_size, 0.0, np.random.default_rng(0)).tolist() == expected


@pytest.mark.parametrize(("per_4", "world_size", "tables"), [(10, 4, 10), (60, 8, 120), (10, 2, 5), (1, 2, 1)])
def test_table_limits_grow_with_ranks(per_4, world_size, tables):
    limits = CommSampleParams(**{**COMM, "min_tables_per_4_ranks": 1, "max_tables_per_4_ranks": per_4})
    assert limits.table_limits(world_size) == (max(1, round(world_size / 4)), tables)


def test_a_pool_that_is_too_small_is_refused(pool):
    with pytest.raises(TaskError, match="the 12 augmented tables"):
        comm_samples(pool.head(2), CommSampleParams(**COMM))


@pytest.mark.parametrize(
    "change",
    [
        {"world_sizes": (1,)},
        {"world_sizes": ()},
        {"dimensions": (0,)},
        {"min_tables_per_4_ranks": 61},
        {"max_start_skew_ms": -1.0},
    ],
)
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValidationError):
        CommSampleParams(**{**COMM, **change})
