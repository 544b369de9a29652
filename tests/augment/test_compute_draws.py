"""Compute samples as the paper draws them cover all tables, fit into the memory, and stay if more samples are drawn."""

import pandas as pd
import pytest
from pydantic import ValidationError

from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.errors import TaskError

DIMENSIONS = (4, 8, 16, 32, 64, 128)
COMPUTE = {
    "num_samples": 400, "batch_size": 512, "dimensions": DIMENSIONS, "min_tables": 1, "max_tables": 15,
    "memory_bytes": 2**27, "seed": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def pool():
    return generate_pool(PoolParams(num_tables=150, batch_size=512, row_scale=128.0, seed=0))


def test_samples_cover_tables_and_dimensions(pool):
    frame = compute_samples(pool, ComputeSampleParams(**COMPUTE))
    assert frame.columns.tolist() == ["sample_id", "batch_size", "table", "embedding_dim"]
    assert frame["sample_id"].unique().tolist() == [f"compute-{index:06d}" for index in range(400)]
    assert set(frame.groupby("sample_id").size()) == set(range(1, 16))
    assert set(frame["embedding_dim"]) == set(DIMENSIONS)
    assert set(frame["table"]) == set(pool["table"])
    assert (frame["batch_size"] == 512).all()
    assert not frame.duplicated(["sample_id", "table", "embedding_dim"]).any()


def test_samples_fit_the_memory(pool):
    rows = pool.set_index("table")["num_embeddings"]
    params = ComputeSampleParams(**{**COMPUTE, "memory_bytes": 2**24})
    frame = compute_samples(pool, params)
    weight_bytes = frame["table"].map(rows) * frame["embedding_dim"] * 4
    assert weight_bytes.groupby(frame["sample_id"]).sum().max() <= 2**24


def test_more_samples_do_not_change_the_first_ones(pool):
    few = compute_samples(pool, ComputeSampleParams(**{**COMPUTE, "num_samples": 7}))
    many = compute_samples(pool, ComputeSampleParams(**COMPUTE))
    pd.testing.assert_frame_equal(many.iloc[: len(few)], few)


def test_other_seeds_draw_other_samples(pool):
    assert not compute_samples(pool, ComputeSampleParams(**{**COMPUTE, "seed": 1})).equals(
        compute_samples(pool, ComputeSampleParams(**COMPUTE))
    )


def test_a_memory_that_is_too_small_for_any_sample_is_refused(pool):
    smallest = pool.loc[pool["num_embeddings"].idxmin(), "table"]
    with pytest.raises(TaskError, match=f"memory_bytes 64 is too small for any sample: .* '{smallest}' at "):
        compute_samples(pool, ComputeSampleParams(**{**COMPUTE, "memory_bytes": 64}))


def test_the_number_of_redraws_is_limited(pool):
    tight = {**COMPUTE, "memory_bytes": 150_000, "min_tables": 10}
    with pytest.raises(TaskError, match=r"compute-\d+: 1000 random draws .* raise memory_bytes"):
        compute_samples(pool, ComputeSampleParams(**tight))


def test_a_pool_that_is_too_small_is_refused(pool):
    with pytest.raises(TaskError, match="the 12 augmented tables"):
        compute_samples(pool.head(2), ComputeSampleParams(**COMPUTE))


@pytest.mark.parametrize(
    "change",
    [
        {"num_samples": 0},
        {"dimensions": ()},
        {"dimensions": (4, 6)},
        {"dimensions": (4, 4)},
        {"min_tables": 16},
        {"memory_bytes": 0},
        {"typo": 1},
    ],
)
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValidationError):
        ComputeSampleParams(**{**COMPUTE, **change})
