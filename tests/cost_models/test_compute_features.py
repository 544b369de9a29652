import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models.compute_features import (
    CONTEXT_FEATURES,
    WORK_TERMS,
    segment_sums,
    shard_features,
)
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, REUSE_BIN_EDGES, Shard, Table, whole

ONCE = (1.0,) + (0.0,) * (NUM_REUSE_BINS - 1)


def columns(shards, batch_size=512, optimizer="sgd"):
    work, context = shard_features(shards, batch_size, optimizer)
    named = dict(zip(WORK_TERMS, work.T, strict=True))
    return named | dict(zip(CONTEXT_FEATURES, context.T, strict=True))


def test_work_matches_a_calculation_by_hand():
    table = Table("t", 4096, 64, 2.0, 1024.0, ONCE)
    named = columns([Shard(table, 0, 32)])
    assert named["indices"][0] == 1024 / 2**20
    assert named["lookup_bytes"][0] == 1024 * 32 * 4 / 2**20
    assert named["unique_bytes"][0] == 1024 * 32 * 4 / 2**20
    assert named["output_bytes"][0] == 512 * 32 * 4 / 2**20
    assert named["sort_work"][0] == pytest.approx(1024 / 2**20 * np.log2(4097))
    assert named["log_reuse"][0] == 0.0
    assert named["once_share"][0] == 1.0
    assert named["log_table_bytes"][0] == np.log(4096 * 32 * 4)


@pytest.mark.parametrize(
    ("ids_of_a_row", "rows", "blocks"), [(1, 1024, 0), (32, 10, 0), (33, 10, 10), (96, 10, 10), (3072, 2, 6)]
)
def test_rows_with_more_than_32_ids_take_a_block_of_threads_per_1024_ids(ids_of_a_row, rows, blocks):
    reuse = tuple(float(at == np.searchsorted(REUSE_BIN_EDGES, ids_of_a_row)) for at in range(NUM_REUSE_BINS))
    table = Table("t", 4096, 64, ids_of_a_row * rows / 512, float(rows), reuse)
    assert columns([Shard(table, 0, 32)])["hot_row_blocks"][0] * 2**20 == pytest.approx(blocks)


def test_narrow_rows_share_cache_lines_and_wide_rows_take_several():
    table = Table("t", 4096, 64, 2.0, 1000.0, ONCE)
    named = columns([Shard(table, 0, 4), Shard(table, 0, 64)])
    lines = named["cache_lines"] * 2**20
    assert 0 < lines[0] < 1000 < lines[1] <= 4096 * 4
    assert np.all(named["pages"] * 2**20 <= 4096 * np.array([4, 64]) * 4 / 4096)


def test_storage_type_changes_bytes_of_lookups_but_not_ids_or_outputs():
    halves = [Table("t", 4096, 64, 2.0, 1024.0, ONCE, data_type) for data_type in ("fp32", "fp16")]
    named = columns([Shard(table, 0, 64) for table in halves])
    assert named["lookup_bytes"][0] == 2 * named["lookup_bytes"][1]
    assert named["indices"][0] == named["indices"][1]
    assert named["output_bytes"][0] == named["output_bytes"][1]


def test_half_precision_is_converted_and_single_is_not():
    halves = [Table("t", 4096, 64, 2.0, 1024.0, ONCE, data_type) for data_type in ("fp32", "fp16")]
    named = columns([Shard(table, 0, 64) for table in halves])
    assert named["half_numbers"].tolist() == [0.0, 1024 * 64 / 2**20]
    assert named["half_unique"].tolist() == [0.0, 1024 * 64 / 2**20]


def test_optimizer_state_adds_work():
    shard = Shard(Table("t", 4096, 64, 2.0, 1024.0, ONCE), 0, 64)
    sgd, rowwise, adam = (columns([shard], optimizer=name) for name in ("sgd", "rowwise_adagrad", "adam"))
    assert sgd["state_lines"][0] == 0.0 < rowwise["state_lines"][0] < adam["state_lines"][0]
    assert rowwise["state_lines"][0] * 2**20 <= 4096 * 4 / 64  # lines of the states of all 4096 rows
    assert adam["log_state"][0] == pytest.approx(np.log(1 + 2 * 4 * 64))
    assert sgd["stateless_bytes"][0] == sgd["lookup_bytes"][0]
    assert rowwise["stateless_bytes"][0] == adam["stateless_bytes"][0] == 0.0
    with pytest.raises(CostModelError, match="'lion' is unknown; use one of sgd"):
        shard_features([shard], 512, "lion")


def test_every_feature_has_a_reason_and_a_column(tables):
    work, context = shard_features([Shard(table, 0, 16) for table in tables], 512)
    assert work.shape == (len(tables), len(WORK_TERMS))
    assert context.shape == (len(tables), len(CONTEXT_FEATURES))
    assert all(len(reason) > 10 for reason in (*WORK_TERMS.values(), *CONTEXT_FEATURES.values()))


def test_a_table_without_profile_is_completed():
    named = columns([Shard(Table("t", 1000, 16, 3.0), 0, 16)])
    assert 0 < named["unique_rows"][0] * 2**20 <= 1000


@given(
    rows=st.integers(1, 2**40),
    dim=st.integers(1, 64).map(lambda width: 4 * width),
    pooling=st.floats(1e-3, 2**20),
    share=st.floats(1e-6, 1.0),
    batch_size=st.integers(1, 2**20),
)
def test_features_are_finite_and_work_is_not_negative(rows, dim, pooling, share, batch_size):
    table = Table("t", rows, dim, pooling, max(share * rows, 1e-3), ONCE)
    work, context = shard_features([Shard(table, 0, dim)], batch_size)
    assert np.all(np.isfinite(context))
    assert np.all(np.isfinite(work))
    assert np.all(work >= 0)


def test_the_context_of_a_shard_does_not_depend_on_other_shards(tables):
    shards = [Shard(table, 0, 16) for table in tables[:9]]
    _, together = shard_features(shards, 512)
    for row, shard in enumerate(shards):
        np.testing.assert_array_equal(shard_features([shard], 512)[1][0], together[row])


def test_segment_sums_match_a_loop():
    values = np.random.default_rng(0).random((7, 3))
    expected = [values[:2].sum(axis=0), np.zeros(3), values[2:7].sum(axis=0)]
    np.testing.assert_allclose(segment_sums(values, [2, 0, 5]), expected)


def test_batch_size_below_one_is_refused(tables):
    with pytest.raises(CostModelError, match="batch_size 0"):
        shard_features([Shard(tables[0], 0, 16)], 0)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_a_table_of_several_features_has_the_bags_of_as_many_times_the_batch(optimizer):
    several = Table("t", 1000, 16, 6.0, 300.0, ONCE, num_features=3)
    spread = Table("t", 1000, 16, 2.0, 300.0, ONCE)
    of_three, of_one = shard_features([whole(several)], 64, optimizer), shard_features([whole(spread)], 192, optimizer)
    for found, expected in zip(of_three, of_one, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
