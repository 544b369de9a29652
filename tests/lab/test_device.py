"""The modelled GPU: which lookups take longer than others, the shortest times, and cases computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.device import device_names, lookup_cost_ms, modelled_device
from neuroshard_pipeline.lab.lookup_work import hot_blocks, missed_reads
from neuroshard_pipeline.lab.lookups import Lookup, lookup_of_shards
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Table, whole

DEVICES = device_names()
ROWS = st.integers(1_000, 20_000_000)
POOLING = st.floats(0.1, 100.0)
BATCHES = st.integers(256, 65_536)
DIMS = st.sampled_from([4, 8, 16, 32, 64, 128, 256, 512])


def table(rows=1_000_000, dim=64, pooling=10.0, name="t", **fields):
    return Table(name, rows, dim, pooling, **fields)


def times(tables, batch=16_384, device="h100", optimizer="rowwise_adagrad", **changes):
    lookup = replace(lookup_of_shards([whole(each) for each in tables], batch, optimizer), **changes)
    return modelled_device(device).time(lookup)


def with_rows_in_bin(ids, unique_rows, reuse_bin):
    """A table with 64 columns, whose rows are all in one reuse bin."""
    reuse = [0.0] * NUM_REUSE_BINS
    reuse[reuse_bin] = 1.0
    return table(pooling=ids / 16_384, unique_rows=unique_rows, reuse=tuple(reuse))


@given(ROWS, DIMS, POOLING, BATCHES, st.sampled_from(DEVICES))
def test_more_samples_ids_or_columns_never_take_less_time(rows, dim, pooling, batch, device):
    base = times([table(rows, dim, pooling)], batch, device)
    for larger in (
        times([table(rows, dim, pooling)], 2 * batch, device),
        times([table(rows, dim, 2 * pooling)], batch, device),
        times([table(rows, 2 * dim, pooling)], batch, device),
        times([table(rows, dim, pooling), table(rows, dim, pooling, name="u")], batch, device),
    ):
        assert larger.forward_us >= base.forward_us * (1 - 1e-9)
        assert larger.backward_us >= base.backward_us * (1 - 1e-9)


@given(st.integers(0, 15), st.integers(1, 16), st.sampled_from(DEVICES))
def test_rows_that_are_read_more_often_never_slow_the_forward_pass(cold_bin, steps, device):
    hot_bin = min(cold_bin + steps, 15)
    ids = 16_384 * 32.0
    cold, hot = (with_rows_in_bin(ids, ids / 2**each, each) for each in (cold_bin, hot_bin))
    assert times([hot], device=device).forward_us <= times([cold], device=device).forward_us * (1 + 1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_decide_large_lookups(device):
    """Rows of 2 KiB that are all distinct: twice the ids take twice the time, at a bandwidth below the data sheet's."""
    one, two = (
        times(
            [with_rows_in_bin(n * 16_384 * 16.0, min(n * 16_384 * 16.0, 1e6), 0)], device=device, dims=np.array([512.0])
        )
        for n in (1, 2)
    )
    floor = modelled_device(device).kernels.forward_launch_us
    assert (two.forward_us - floor) / (one.forward_us - floor) == pytest.approx(2.0, rel=0.05)
    read_gb = 16_384 * 16 * 2048 / 1e9
    assert read_gb / (one.forward_us / 1e6) < modelled_device(device).device.hbm_gb_per_s


@pytest.mark.parametrize("device", DEVICES)
def test_smallest_lookup_takes_the_floors(device):
    time = times([table(1_000, 4, 1.0)], 1, device)
    kernels = modelled_device(device).kernels
    assert kernels.forward_launch_us <= time.forward_us < kernels.forward_launch_us + 5
    assert kernels.backward_launch_us <= time.backward_us < kernels.backward_launch_us + 5


def test_optimizers_cost_what_their_state_moves():
    """Adam moves two further rows of fp32 per distinct row, Adagrad one, row-wise Adagrad one number, SGD nothing."""
    sgd, rowwise, adagrad, adam = (
        times([table(dim=128)], optimizer=name).backward_us for name in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    )
    assert sgd < rowwise < adagrad < adam
    assert (adam - sgd) / (adagrad - sgd) == pytest.approx(2.0)


def test_half_precision_reads_fewer_bytes():
    full, half = (times([table(dim=512, data_type=name)], 65_536) for name in ("fp32", "fp16"))
    assert half.forward_us < full.forward_us
    assert half.forward_parts["hbm"] > full.forward_parts["hbm"] / 2  # outputs stay fp32


def test_managed_weights_take_longer_and_a_cache_helps():
    device, cached, small_cache, managed = (
        times([table(dim=128)], placement=place, cached_share=share).forward_us
        for place, share in (("device", 1.0), ("managed_caching", 1.0), ("managed_caching", 0.5), ("managed", 1.0))
    )
    assert device < cached < small_cache < managed
    assert managed > 10 * device


@pytest.mark.parametrize("placement", ["managed", "managed_caching"])
def test_optimizer_state_crosses_the_host_link_only_if_it_belongs_to_weights(placement):
    """FBGEMM keeps optimizer state per row in GPU memory, and optimizer state per weight where the weights are."""
    sgd, rowwise, adagrad, adam = (
        times([table(dim=128)], optimizer=name, placement=placement).backward_parts["host"]
        for name in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    )
    assert rowwise == sgd
    assert adam - sgd == pytest.approx(2 * (adagrad - sgd))
    assert adagrad > sgd


def test_weighted_ids_cost_more_in_both_passes():
    plain, weighted = (times([table(dim=256)], weighted=each) for each in (False, True))
    assert weighted.forward_us > plain.forward_us
    assert weighted.backward_us > plain.backward_us


def test_ids_of_all_bins_sum_to_the_ids():
    lookup = lookup_of_shards(
        [whole(table(rows, pooling=pooling)) for rows, pooling in ((100, 50.0), (10**7, 1.5))], 4096, "sgd"
    )
    np.testing.assert_allclose(lookup.ids_of_bin.sum(axis=1), lookup.ids)
    np.testing.assert_allclose(lookup.unique_rows, lookup.rows_of_bin.sum(axis=1))


def test_missed_reads_by_hand():
    """20 rows of 100 bytes: 10 are read 8 times, 10 once. A cache of 500 bytes keeps half of the hot rows."""
    rows, ids = np.zeros((1, NUM_REUSE_BINS)), np.zeros((1, NUM_REUSE_BINS))
    rows[0, [0, 3]], ids[0, [0, 3]] = 10, (10, 80)
    size = np.array([100.0])
    assert missed_reads(rows, ids, size, 500.0) == pytest.approx(10 + 10 + 5 * 7)
    assert missed_reads(rows, ids, size, 0.0) == pytest.approx(90)
    assert missed_reads(rows, ids, size, 1e9) == pytest.approx(20)


def test_hot_rows_by_hand():
    """3 rows of 48 ids take a block each, one row of 3072 ids takes 3, and rows of 24 ids take none."""
    rows = np.zeros((1, NUM_REUSE_BINS))
    rows[0, [5, 6, 12]] = (10, 3, 1)
    lookup = Lookup(np.array([10 * 24 + 3 * 48 + 3072.0]), np.ones(1), np.ones(1), np.ones(1), rows)
    assert hot_blocks(lookup) == pytest.approx(3 + 3)


def test_cost_in_milliseconds_is_that_of_the_lookup():
    shards = [whole(table())]
    forward_ms, backward_ms = lookup_cost_ms(shards, 16_384, "rowwise_adagrad", modelled_device("h100"))
    time = times([table()])
    assert (forward_ms, backward_ms) == pytest.approx((time.forward_us / 1e3, time.backward_us / 1e3))


def test_unknown_device_is_refused():
    with pytest.raises(MeasurementError, match="no device 'h10'; did you mean 'h100'"):
        modelled_device("h10")
