"""Rows that miss a cache, compared with simulated caches, and bytes that cross the host link."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.tables.host_memory import (
    SLOTS_PER_SET,
    cache_slots,
    host_link_bounds,
    host_link_bytes,
    missed_rows,
)
from neuroshard_pipeline.tables.profile import DEFAULT_POPULARITY_EXPONENT, reuse_histogram
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

ROWS, IDS, BATCH_SIZE = 8_000, 2_000, 500
SINGLE_LOOKUPS = (1.0,) + (0.0,) * (NUM_REUSE_BINS - 1)


def a_task(table, optimizer="sgd", world_size=2, batch_size=100):
    return ShardingTask([table], world_size, batch_size, 2**40, optimizer, host_memory_bytes=2**40)


def popularity_of(exponent):
    weight = np.arange(1, ROWS + 1.0) ** -exponent
    return weight / weight.sum()


def profiled_table(popularity, rng):
    unique_rows, shares, _ = reuse_histogram(rng.choice(ROWS, IDS, p=popularity))
    return Table("a", ROWS, 8, IDS / BATCH_SIZE, unique_rows=float(unique_rows), reuse=tuple(shares.tolist()))


def misses_of_lru(popularity, slots, rng, warm_up=60, measured=15):
    """Mean misses per batch of a simulated cache of FBGEMM's kind.

    It has sets of 32 slots. A missing row replaces the least recently used row of its set that this batch does not use.
    """
    num_sets = slots // SLOTS_PER_SET
    held, used_at = np.full((num_sets, SLOTS_PER_SET), -1), np.zeros((num_sets, SLOTS_PER_SET), dtype=int)
    set_of, misses = rng.integers(num_sets, size=ROWS), []
    for time in range(1, warm_up + measured + 1):
        rows = np.unique(rng.choice(ROWS, IDS, p=popularity))
        at, places = np.nonzero(held[set_of[rows]] == rows[:, None])
        used_at[set_of[rows[at]], places] = time
        missing = np.delete(rows, at)
        for row in missing:
            place = used_at[set_of[row]].argmin()
            if used_at[set_of[row], place] < time:
                held[set_of[row], place], used_at[set_of[row], place] = row, time
        misses.append(len(missing))
    return np.mean(misses[-measured:])


@pytest.mark.parametrize("load_factor", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("exponent", [0.8, DEFAULT_POPULARITY_EXPONENT])
def test_misses_of_a_simulated_cache_and_of_the_best_fixed_one_lie_between_the_bounds(exponent, load_factor):
    rng, popularity = np.random.default_rng(3), popularity_of(exponent)
    slots = cache_slots(ROWS, load_factor)
    low, expected, high = missed_rows(profiled_table(popularity, rng), BATCH_SIZE, slots)
    most_popular_rows_stay = (1 - (1 - popularity[slots:]) ** IDS).sum()
    simulated = misses_of_lru(popularity, slots, rng)
    assert low <= most_popular_rows_stay <= high
    assert low <= simulated <= high
    assert expected == pytest.approx(simulated, rel=0.12 if exponent == DEFAULT_POPULARITY_EXPONENT else 0.35)


@given(load_factor=st.floats(1e-3, 1.0), exponent=st.floats(0.5, 1.5))
def test_a_larger_cache_misses_no_more_rows_and_a_whole_one_none(load_factor, exponent):
    table = profiled_table(popularity_of(exponent), np.random.default_rng(1))
    slots = cache_slots(ROWS, load_factor)
    misses = missed_rows(table, BATCH_SIZE, slots)
    assert [0, *misses, table.unique_rows] == sorted([0, *misses, table.unique_rows])
    for fewer, more in zip(missed_rows(table, BATCH_SIZE, slots + SLOTS_PER_SET), misses, strict=True):
        assert fewer <= more + 1e-6
    assert missed_rows(table, BATCH_SIZE, cache_slots(ROWS, 1.0)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("rows", "load_factor", "slots"), [(1, 0.2, 32), (160, 0.2, 32), (161, 0.2, 64), (96, 1, 96)])
def test_a_cache_has_whole_sets(rows, load_factor, slots):
    assert cache_slots(rows, load_factor) == slots


def test_bytes_of_a_table_without_repeated_ids():
    """100 samples look up 100 distinct rows of 16 fp32 numbers."""
    table = Table("a", 10**6, 16, 1.0, 100.0, SINGLE_LOOKUPS, compute_kernel="fused_uvm")
    forward = backward = 100 * 64
    assert host_link_bytes(whole(table), a_task(table)) == forward + backward
    assert host_link_bytes(whole(table), a_task(table, "rowwise_adagrad")) == forward + backward
    assert host_link_bytes(whole(table), a_task(table, "adam")) == forward + backward + 100 * 16 * 8
    assert host_link_bytes(whole(replace(table, compute_kernel="fused")), a_task(table)) == 0


def test_bytes_of_a_cached_table_without_repeated_ids():
    """In the upper bound, the rows of each batch are drawn anew, and a quarter of them are in the cache."""
    table = Table(
        "a", 6_400, 16, 1.0, 100.0, SINGLE_LOOKUPS, compute_kernel="fused_uvm_caching", cache_load_factor=0.25
    )
    low, expected, high = host_link_bounds(whole(table), a_task(table))
    assert (low, high) == pytest.approx((0.0, 75 * 64))
    assert low < expected < high
    assert host_link_bytes(whole(table), a_task(table, "adam")) == pytest.approx(expected + 100 * 16 * 8)


def test_rows_without_a_slot_are_read_in_both_passes():
    table = Table(
        "a", 6_400, 16, 1.0, 100.0, SINGLE_LOOKUPS, compute_kernel="fused_uvm_caching", cache_load_factor=0.005
    )
    low, _, high = host_link_bounds(whole(table), a_task(table))
    assert low == 2 * (100 - 32) * 64
    assert high == pytest.approx((100 * (1 - 32 / 6_400) + 100 - 32) * 64)


def test_shards_of_a_table_read_its_bytes_together():
    table = Table("a", 10**6, 16, 1.0, 100.0, SINGLE_LOOKUPS, compute_kernel="fused_uvm")
    task = a_task(table)
    columns = [Shard(table, 0, 8), Shard(table, 8, 8)]
    rows = [Shard(table, 0, 16, start, 500_000, "row_wise") for start in (0, 500_000)]
    for shards in (columns, rows):
        assert sum(host_link_bytes(shard, task) for shard in shards) == pytest.approx(
            host_link_bytes(whole(table), task)
        )


@pytest.mark.parametrize("load_factor", [0.25, 0.6])
@pytest.mark.parametrize("kind", ["column_wise", "row_wise"])
def test_a_cache_of_rows_that_are_drawn_evenly_misses_the_share_that_it_has_no_room_for(load_factor, kind):
    """Whatever a cache keeps of such rows, the next row is in it with the probability of its share of all rows."""
    table = Table("a", 64_000, 16, 1.0, 100.0, SINGLE_LOOKUPS, popularity=((64_000.0, 1.0),))
    table = replace(table, compute_kernel="fused_uvm_caching", cache_load_factor=load_factor)
    rows = 32_000 if kind == "row_wise" else 64_000
    expected = host_link_bytes(Shard(table, 0, 16, 0, rows, kind), a_task(table))
    assert expected == pytest.approx(100 * rows / 64_000 * (1 - load_factor) * 64, rel=0.01)
    assert host_link_bytes(whole(replace(table, popularity=None)), a_task(table)) < 0.9 * 100 * (1 - load_factor) * 64
