"""A file of facebookresearch/dlrm_datasets as the table pool of the augment pipeline."""

import numpy as np
import pandas as pd
import pytest
import torch

from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples
from neuroshard_pipeline.augment.pool import PoolParams, base_pool, generate_pool, generated_tables
from neuroshard_pipeline.augment.variation import VariationParams
from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.measurement import RecordingParams
from neuroshard_pipeline.pipelines.augment.nodes import provide_table_pool
from neuroshard_pipeline.tables.frames import tables_from_frame
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.table import Table

BATCH_SIZE = 64
POOL = {"num_tables": 12, "batch_size": BATCH_SIZE, "row_scale": 1.0, "seed": 0}
VARIATION = VariationParams(
    tables_per_batch_size=20, batch_sizes=(16, 64), interpolation_batch_size=32, extrapolation_batch_size=128,
    fp16_share=0.3, row_factors=(0.25, 4.0), small_table_share=0.25, small_table_rows=(3, 20),
    pooling_factors=(0.25, 4.0), reuse_factors=(0.25, 4.0), single_valued_share=0.2, default_profile_share=0.3,
    held_out_share=0.2, public_row_scale=100.0, seed=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A generated pool, and a small file with one batch of its ids."""
    pool = generate_pool(PoolParams(**{**POOL, "row_scale": 1024.0}))
    ids = [draw_ids(table, BATCH_SIZE, seed=3) for table in tables_from_frame(pool)]
    lengths = torch.tensor(np.stack([np.diff(table.offsets) for table in ids]))
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.reshape(-1).cumsum(0)])
    path = tmp_path_factory.mktemp("dlrm") / "fbgemm_t12_bs64_0.pt"
    torch.save((torch.tensor(np.concatenate([table.indices for table in ids])), offsets, lengths), path)
    return pool, str(path)


def test_the_pipeline_takes_the_tables_of_a_file(written):
    original, path = written
    params = PoolParams(**POOL, dlrm_dataset=path)
    public = {"shop": [Table("items", 10_000, 16, 1.0)]}
    pool = provide_table_pool(public, params, VARIATION, RecordingParams(folder=None, modelled_device=None))
    read = generated_tables(pool)
    profile = ["table", "pooling_factor", "unique_rows", *(f"reuse_{index:02d}" for index in range(17))]
    pd.testing.assert_frame_equal(read[profile], original[profile])
    assert (read["num_embeddings"] <= original["num_embeddings"]).all()
    assert len(pool) == 12 + 4 * 20 + 1
    assert set(pool["origin"]) <= {*original["table"], "shop"}
    drawn = compute_samples(pool, ComputeSampleParams(
        num_samples=30, batch_size=BATCH_SIZE, dimensions=(4, 8), min_tables=1, max_tables=5, memory_bytes=2**24, seed=0
    ))  # fmt: skip
    assert set(drawn["table"]) <= set(original["table"])


def test_rows_are_scaled_down_but_not_below_the_unique_rows(written):
    _, path = written
    full = base_pool(PoolParams(**POOL, dlrm_dataset=path))
    scaled = base_pool(PoolParams(**{**POOL, "row_scale": 10.0, "num_tables": 5}, dlrm_dataset=path))
    expected = np.maximum((full["num_embeddings"] / 10).round(), full["unique_rows"]).astype(np.int64)[:5]
    pd.testing.assert_series_equal(scaled["num_embeddings"], expected, check_names=False)
    pd.testing.assert_frame_equal(scaled.drop(columns="num_embeddings"), full.drop(columns="num_embeddings")[:5])


def test_a_batch_that_exceeds_the_file_is_refused(written):
    _, path = written
    with pytest.raises(TableFileError, match="batch_size 128 must be between 1 and the 64"):
        base_pool(PoolParams(**{**POOL, "batch_size": 128}, dlrm_dataset=path))


def test_without_a_file_the_pool_is_generated():
    pd.testing.assert_frame_equal(base_pool(PoolParams(**POOL)), generate_pool(PoolParams(**POOL)))
