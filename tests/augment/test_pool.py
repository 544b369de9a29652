"""Generated pools have the published statistics over all tables, and tables that differ widely."""

import numpy as np
import pandas as pd
import pytest
from augment.published_shape import mean_pooling_factor, unique_rows_per_table
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_statistics import pool_statistics
from pydantic import ValidationError

from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.augment.published import SHARE_OF_INDICES, SHARE_OF_UNIQUE_ROWS
from neuroshard_pipeline.tables.frames import tables_from_frame
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import reuse_histogram
from neuroshard_pipeline.tables.table import REUSE_COLUMNS

FULL_SCALE = {"num_tables": 856, "batch_size": 65536, "row_scale": 1.0, "seed": 0}
SCALED_DOWN = {"num_tables": 856, "batch_size": 512, "row_scale": 128.0, "seed": 0}


@pytest.fixture(scope="module")
def scaled_pool():
    return generate_pool(PoolParams(**SCALED_DOWN))


@pytest.fixture(scope="module")
def full_pool():
    return generate_pool(PoolParams(**FULL_SCALE))


def cumulative(shares):
    return np.cumsum(shares) / np.sum(shares)


def test_ids_of_a_scaled_pool_have_the_published_statistics(scaled_pool):
    """The tolerances are those of full scale. Ids are compared only below bin 9, the highest bin at batch size 512."""
    drawn = pool_statistics(scaled_pool, batch_size=512, seed=1)
    assert mean_pooling_factor(drawn) == pytest.approx(15.81, rel=0.03)
    assert unique_rows_per_table(drawn) == pytest.approx(150_042 / 128, rel=0.10)
    rows, ids = cumulative(drawn.rows_by_bin), cumulative(drawn.indices_by_bin)
    np.testing.assert_allclose(rows, cumulative(SHARE_OF_UNIQUE_ROWS), atol=0.03)
    np.testing.assert_allclose(ids[:9], cumulative(SHARE_OF_INDICES)[:9], atol=0.03)
    assert drawn.rows_by_bin[10:].sum() == 0


def test_ids_drawn_from_full_scale_tables_have_their_profile(full_pool):
    """A sample of tables at full scale; check_table_pool.py draws all ids and checks their sums."""
    rng = np.random.default_rng(0)
    affordable = full_pool[full_pool["pooling_factor"] < 8]
    chosen = affordable.iloc[rng.choice(len(affordable), size=24, replace=False)]
    for table in tables_from_frame(chosen):
        unique_rows, reuse, _ = reuse_histogram(draw_ids(table, 65536, seed=0).indices)
        assert unique_rows == table.unique_rows
        np.testing.assert_allclose(reuse, table.reuse, atol=1e-9)


def test_full_scale_profiles_sum_to_the_published_ones(full_pool):
    """Ids follow profiles exactly (see above), so that sums over profiles are sums over ids."""
    rows = (full_pool[list(REUSE_COLUMNS)].mul(full_pool["unique_rows"], axis=0)).sum().to_numpy()
    np.testing.assert_allclose(cumulative(rows), cumulative(SHARE_OF_UNIQUE_ROWS), atol=0.03)
    assert full_pool["pooling_factor"].mean() == pytest.approx(15.81, rel=0.03)
    assert full_pool["unique_rows"].mean() == pytest.approx(150_042, rel=0.10)
    assert full_pool["num_embeddings"].mean() == pytest.approx(4e6, rel=0.01)


def test_ids_of_some_full_scale_tables_are_distributed_as_published(full_pool):
    """Ids are drawn for some tables. Their ids per row in each bin, times the rows of all tables, estimate all ids."""
    rows = full_pool[list(REUSE_COLUMNS)].mul(full_pool["unique_rows"], axis=0).to_numpy()
    order = np.argsort(full_pool["pooling_factor"].to_numpy())
    sample = [at for at in order[15::30] if full_pool["pooling_factor"][at] < 25]
    ids = np.zeros(17)
    for table in tables_from_frame(full_pool.iloc[sample]):
        _, _, shares = reuse_histogram(draw_ids(table, 65536, seed=0).indices)
        ids += shares * table.pooling_factor * 65536
    ids_of_all = ids / rows[sample].sum(axis=0) * rows.sum(axis=0)
    published = cumulative(SHARE_OF_INDICES)
    np.testing.assert_allclose(cumulative(ids_of_all), published, atol=0.03)


def test_tables_differ_widely(scaled_pool):
    low, high = scaled_pool["pooling_factor"].quantile([0.05, 0.99])
    assert low < 1.5
    assert high > 80
    assert scaled_pool["pooling_factor"].max() < 230
    low, high = scaled_pool["num_embeddings"].quantile([0.02, 0.95])
    assert low < 50
    assert high > 100_000
    reuse = scaled_pool["pooling_factor"] * 512 / scaled_pool["unique_rows"]
    assert reuse.quantile(0.1) < 3
    assert reuse.quantile(0.9) > 50
    assert scaled_pool.duplicated(list(REUSE_COLUMNS)).mean() < 0.05


def test_a_generated_pool_has_the_documented_columns(scaled_pool):
    columns = ["table", "num_embeddings", "pooling_factor", "unique_rows", *REUSE_COLUMNS]
    assert scaled_pool.columns.tolist() == columns
    assert scaled_pool["num_embeddings"].dtype == np.int64
    assert scaled_pool["table"].is_unique
    assert len(tables_from_frame(scaled_pool)) == 856


def test_the_seed_determines_the_pool(scaled_pool):
    pd.testing.assert_frame_equal(generate_pool(PoolParams(**SCALED_DOWN)), scaled_pool)
    assert not generate_pool(PoolParams(**{**SCALED_DOWN, "seed": 1})).equals(scaled_pool)


@settings(max_examples=15)
@given(
    num_tables=st.integers(2, 200),
    batch_size=st.sampled_from([16, 64, 100, 512, 4096, 65536, 2**18]),
    row_scale=st.floats(0.5, 20_000),
    seed=st.integers(0, 100),
)
def test_any_pool_is_valid_and_keeps_the_published_mean_pooling_factor(num_tables, batch_size, row_scale, seed):
    pool = generate_pool(PoolParams(num_tables=num_tables, batch_size=batch_size, row_scale=row_scale, seed=seed))
    tables = tables_from_frame(pool)  # every table refuses impossible values
    assert len(tables) == num_tables
    assert all(table.unique_rows <= batch_size * table.pooling_factor for table in tables)
    whole_rows = pool["unique_rows"].sum()
    assert whole_rows >= num_tables
    rounding = 17 * 2**16 / (num_tables * batch_size)  # one row more or less per bin
    assert pool["pooling_factor"].mean() == pytest.approx(15.81, rel=0.03, abs=rounding + 1)


@pytest.mark.parametrize(
    "change",
    [{"num_tables": 1}, {"batch_size": 8}, {"row_scale": 0.0}, {"seed": -1}, {"scale": 3}, {"batch_size": 64.5}],
)
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValidationError):
        PoolParams(**{**FULL_SCALE, **change})
