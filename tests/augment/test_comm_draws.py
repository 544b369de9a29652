"""Samples to measure: what the paper draws, within the memory, stable when more are asked for."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from neuroshard_pipeline.augment.comm_draws import CommSampleParams, comm_samples, place_widest_first
from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.errors import TaskError

DIMENSIONS = (4, 8, 16, 32, 64, 128)
COMPUTE = {
    "num_samples": 400, "batch_size": 512, "dimensions": DIMENSIONS, "min_tables": 1, "max_tables": 15,
    "memory_bytes": 2**27, "seed": 0,
}  # fmt: skip
COMM = {
    "num_samples": 200, "batch_size": 512, "world_sizes": (4, 8), "dimensions": DIMENSIONS,
    "min_tables_per_4_ranks": 10, "max_tables_per_4_ranks": 60, "max_start_skew_ms": 5.0, "seed": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def pool():
    return generate_pool(PoolParams(num_tables=150, batch_size=512, row_scale=128.0, seed=0))


def test_compute_samples_cover_tables_and_dimensions(pool):
    frame = compute_samples(pool, ComputeSampleParams(**COMPUTE))
    assert frame.columns.tolist() == ["sample_id", "batch_size", "table", "embedding_dim"]
    assert frame["sample_id"].unique().tolist() == [f"compute-{index:06d}" for index in range(400)]
    assert set(frame.groupby("sample_id").size()) == set(range(1, 16))
    assert set(frame["embedding_dim"]) == set(DIMENSIONS)
    assert set(frame["table"]) == set(pool["table"])
    assert (frame["batch_size"] == 512).all()
    assert not frame.duplicated(["sample_id", "table", "embedding_dim"]).any()


def test_compute_samples_fit_the_memory(pool):
    rows = pool.set_index("table")["num_embeddings"]
    params = ComputeSampleParams(**{**COMPUTE, "memory_bytes": 2**24})
    frame = compute_samples(pool, params)
    weight_bytes = frame["table"].map(rows) * frame["embedding_dim"] * 4
    assert weight_bytes.groupby(frame["sample_id"]).sum().max() <= 2**24


def test_some_comm_samples_have_other_batch_sizes_and_are_else_what_they_were(pool):
    alike = comm_samples(pool, CommSampleParams(**COMM))
    params = CommSampleParams(**COMM, other_batch_sizes=(64, 1024), other_batch_share=0.25)
    mixed = comm_samples(pool, params)
    shares = mixed.groupby("sample_id")["batch_size"].first().value_counts(normalize=True)
    assert set(alike["batch_size"]) == {512}
    assert shares[512] == pytest.approx(0.75, abs=0.1)
    assert shares[64] == pytest.approx(0.125, abs=0.08)
    assert len(mixed[["sample_id", "batch_size"]].drop_duplicates()) == COMM["num_samples"]
    pd.testing.assert_frame_equal(mixed.drop(columns="batch_size"), alike.drop(columns="batch_size"))


def test_a_share_of_no_other_batch_sizes_is_refused():
    with pytest.raises(ValidationError, match=r"other_batch_share 0\.5 needs other_batch_sizes"):
        CommSampleParams(**COMM, other_batch_share=0.5)


def test_more_samples_leave_the_first_ones_as_they_are(pool):
    few = compute_samples(pool, ComputeSampleParams(**{**COMPUTE, "num_samples": 7}))
    many = compute_samples(pool, ComputeSampleParams(**COMPUTE))
    pd.testing.assert_frame_equal(many.iloc[: len(few)], few)
    few = comm_samples(pool, CommSampleParams(**{**COMM, "num_samples": 7}))
    many = comm_samples(pool, CommSampleParams(**COMM))
    pd.testing.assert_frame_equal(many.iloc[: len(few)], few)


def test_seeds_make_a_difference(pool):
    assert not compute_samples(pool, ComputeSampleParams(**{**COMPUTE, "seed": 1})).equals(
        compute_samples(pool, ComputeSampleParams(**COMPUTE))
    )


def test_comm_samples_vary_in_imbalance_and_skew(pool):
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


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(DIMENSIONS), min_size=1, max_size=40), st.integers(2, 8), st.floats(0, 1))
def test_placement_keeps_all_widths(dims, world_size, random_share):
    dim_sums = place_widest_first(np.array(dims), world_size, random_share, np.random.default_rng(0))
    assert dim_sums.sum() == sum(dims)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(DIMENSIONS), min_size=1, max_size=40), st.integers(2, 8))
def test_placement_without_chance_is_greedy(dims, world_size):
    expected = [0] * world_size
    for dim in sorted(dims, reverse=True):
        expected[expected.index(min(expected))] += dim
    assert place_widest_first(np.array(dims), world_size, 0.0, np.random.default_rng(0)).tolist() == expected


@pytest.mark.parametrize(("per_4", "world_size", "tables"), [(10, 4, 10), (60, 8, 120), (10, 2, 5), (1, 2, 1)])
def test_tables_grow_with_ranks(per_4, world_size, tables):
    limits = CommSampleParams(**{**COMM, "min_tables_per_4_ranks": 1, "max_tables_per_4_ranks": per_4})
    assert limits.table_limits(world_size) == (max(1, round(world_size / 4)), tables)


def test_no_room_for_any_sample_names_memory_and_table(pool):
    smallest = pool.loc[pool["num_embeddings"].idxmin(), "table"]
    with pytest.raises(TaskError, match=f"memory_bytes 64 .*'{smallest}' at dimension 4 needs|'{smallest}'"):
        compute_samples(pool, ComputeSampleParams(**{**COMPUTE, "memory_bytes": 64}))


def test_hopeless_redraws_end(pool):
    tight = {**COMPUTE, "memory_bytes": 150_000, "min_tables": 10}
    with pytest.raises(TaskError, match=r"compute-\d+: 1000 random draws .* raise memory_bytes"):
        compute_samples(pool, ComputeSampleParams(**tight))


def test_a_pool_that_is_too_small_is_refused(pool):
    with pytest.raises(TaskError, match="only 12 augmented tables"):
        compute_samples(pool.head(2), ComputeSampleParams(**COMPUTE))
    with pytest.raises(TaskError, match="only 12 augmented tables"):
        comm_samples(pool.head(2), CommSampleParams(**COMM))


@pytest.mark.parametrize(
    ("kind", "base", "change"),
    [
        (ComputeSampleParams, COMPUTE, {"num_samples": 0}),
        (ComputeSampleParams, COMPUTE, {"dimensions": ()}),
        (ComputeSampleParams, COMPUTE, {"dimensions": (4, 6)}),
        (ComputeSampleParams, COMPUTE, {"dimensions": (4, 4)}),
        (ComputeSampleParams, COMPUTE, {"min_tables": 16}),
        (ComputeSampleParams, COMPUTE, {"memory_bytes": 0}),
        (ComputeSampleParams, COMPUTE, {"typo": 1}),
        (CommSampleParams, COMM, {"world_sizes": (1,)}),
        (CommSampleParams, COMM, {"world_sizes": ()}),
        (CommSampleParams, COMM, {"dimensions": (0,)}),
        (CommSampleParams, COMM, {"min_tables_per_4_ranks": 61}),
        (CommSampleParams, COMM, {"max_start_skew_ms": -1.0}),
    ],
)
def test_impossible_parameters_are_refused(kind, base, change):
    with pytest.raises(ValidationError):
        kind(**{**base, **change})
