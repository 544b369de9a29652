"""The least bytes across hosts against brute force over numbers of copies, and in special cases with known results."""

from itertools import product

import numpy as np
import pytest
from crossing_bound import crossing_bound
from row_popularity import RowPopularity, row_popularity

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.memory import POPULAR_ROW_BYTES, MemoryModel
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

WEIGHTS = MemoryModel(optimizer_state=False, input_buffers=False, output_buffers=False, reserve_fraction=0.0)
PLENTY = 2**40
#: Memory of one copy, in units of a row of 8 columns without copies: a copy also has a gradient and an entry in the
#: index of popular rows. The second number is how much more copies on three hosts take than the one row without copies.
COPY = 2 + POPULAR_ROW_BYTES / 32
ON_THREE_HOSTS = 3 * COPY - 1


def a_task(tables, memory_bytes=PLENTY, **values):
    given = {"world_size": 4, "batch_size": 64, "local_world_size": 2} | values
    return ShardingTask(tables, memory_bytes=memory_bytes, **given)


def sequence(rows=1000, length=10.0, width=8, name="s"):
    return Table(name, rows, width, length, pooling="none")


def least_by_trial(tasks_rows, hosts, spare_rows):
    """Least bytes over all numbers of copies of every row.

    Args:
        tasks_rows: (lookups per host and step, columns) of each row.
        hosts: number of hosts.
        spare_rows: memory that is left if every row is stored once, divided by that of such a row; see `COPY`.
    """
    return min(
        sum(
            (hosts - c) * visits * (8 + 8 * width) + 8 * width * (c - 1)
            for c, (visits, width) in zip(copies, tasks_rows, strict=True)
        )
        for copies in product(range(1, hosts + 1), repeat=len(tasks_rows))
        if sum(1 if c == 1 else COPY * c for c in copies) - len(copies) <= spare_rows
    )


@pytest.mark.parametrize("spare_rows", [0, 3, ON_THREE_HOSTS, 8, 2 * ON_THREE_HOSTS, 100])
def test_bound_is_at_most_the_best_of_all_numbers_of_copies_and_equals_it_where_memory_allows_whole_copies(spare_rows):
    popularity = RowPopularity(np.ones(6, dtype=np.int64), np.array([0.4, 0.3, 0.2, 0.06, 0.035, 0.005]))
    table, hosts = sequence(rows=6, length=0.5), 3
    memory_bytes = (2 * 8 * 4, 2 * 8 * 4, round((2 + spare_rows) * 8 * 4))
    task = a_task([table], memory_bytes, world_size=hosts, local_world_size=1)
    bound = crossing_bound(task, {"s": popularity}, WEIGHTS)
    visits = 64 * 0.5 / hosts * popularity.popularity
    best = least_by_trial([(v, 8) for v in visits], hosts, spare_rows)
    assert bound.least_bytes <= best * (1 + 1e-9)
    if spare_rows not in (3, 8):
        assert bound.least_bytes == pytest.approx(best)


def test_without_memory_for_copies_all_ids_of_rows_on_other_hosts_cross():
    task = a_task([sequence(rows=1000)], memory_bytes=1000 * 8 * 4 // 4)
    bound = crossing_bound(task, {"s": row_popularity("steep", 1000)}, WEIGHTS)
    assert bound.sharded_bytes == pytest.approx(64 * 10 / 2 * (8 + 8 * 8))  # half of all ids, rows and gradients cross
    assert bound.least_bytes == pytest.approx(bound.sharded_bytes)
    assert bound.least_share == pytest.approx(1.0)


def test_if_only_all_to_alls_count_the_bound_is_one_minus_the_curve_at_the_rows_that_fit():
    popularity, rows, spare = row_popularity("published", 100_000), 100_000, 3000
    task = a_task([sequence(rows=rows)], memory_bytes=(rows + spare) * 8 * 4 // 4)
    bound = crossing_bound(task, {"s": popularity}, WEIGHTS)
    assert bound.least_all_to_all_share == pytest.approx(1 - popularity.share_of(spare / (2 * COPY - 1)))


def test_with_unlimited_memory_rows_that_a_host_looks_up_more_than_once_get_copies():
    popularity = row_popularity("steep", 50_000)
    task = a_task([sequence(rows=50_000, width=128)], batch_size=4096)
    bound = crossing_bound(task, {"s": popularity}, WEIGHTS)
    visits = 4096 * 10 / 2 * popularity.popularity
    each = np.minimum(visits * (8 + 8 * 128), 8 * 128)
    assert bound.least_bytes == pytest.approx(float(popularity.rows @ each))
    assert bound.least_all_to_all_bytes == pytest.approx(0.0, abs=1e-3)


def test_more_memory_steeper_popularity_and_deduplication_lower_the_bound():
    def share(name, spare, **options):
        task = a_task([sequence(rows=100_000, width=64)], (100_000 + spare) * 64, batch_size=4096)
        return crossing_bound(task, {"s": row_popularity(name, 100_000)}, WEIGHTS, **options).least_share

    assert share("steep", 10_000) < share("steep", 1_000) < share("steep", 0)
    assert share("steep", 10_000) < share("flat", 10_000)
    assert share("steep", 1_000, index_dedup=True) < share("steep", 1_000)


def test_on_one_host_every_rank_counts_as_a_host():
    tables, popularity = [sequence()], {"s": row_popularity("flat", 1000)}
    alone = crossing_bound(a_task(tables, local_world_size=1), popularity, WEIGHTS)
    together = crossing_bound(a_task(tables, local_world_size=None), popularity, WEIGHTS)
    assert alone == together
    assert alone.sharded_bytes == pytest.approx(64 * 10 * 3 / 4 * (8 + 8 * 8))


def test_memory_is_shared_by_all_tables():
    tables = [sequence(name="a"), sequence(name="b", length=40.0)]
    popularity = {name: row_popularity("steep", 1000) for name in "ab"}
    task = a_task(tables, memory_bytes=(2000 + 100) * 8 * 4 // 4)
    bound = crossing_bound(task, popularity, WEIGHTS)
    # Copies go to the table with more ids per row, until its next row has fewer ids than the other table's first row.
    alone = [
        crossing_bound(a_task([table], memory_bytes=(1000 + 100) * 8 * 4 // 4), popularity, WEIGHTS) for table in tables
    ]
    assert bound.least_bytes < min(
        alone[0].least_bytes + alone[1].sharded_bytes, alone[1].least_bytes + alone[0].sharded_bytes
    )
    assert bound.least_bytes > sum(each.least_bytes for each in alone)


@pytest.mark.parametrize(("world_size", "pooling"), [(1, "none"), (4, "sum")])
def test_tasks_in_which_nothing_crosses_are_refused(world_size, pooling):
    table = Table("s", 1000, 8, 10.0, pooling=pooling)
    task = a_task([table], world_size=world_size, local_world_size=None)
    with pytest.raises(TaskError, match="give at least two ranks and one table"):
        crossing_bound(task, {"s": row_popularity("flat", 1000)}, WEIGHTS)
