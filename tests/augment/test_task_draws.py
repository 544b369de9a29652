"""Sharding tasks: drawn ones have the requested ranks, tables and memory; the tables of a file keep their names."""

import pandas as pd
import pytest
from pydantic import ValidationError

from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.augment.task_draws import FileTaskParams, ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.host import ranks_side_by_side
from neuroshard_pipeline.tables.frames import TASK_COLUMNS, tasks_from_frame, tasks_to_frame
from neuroshard_pipeline.tables.profile import default_profile
from neuroshard_pipeline.tables.table import Table, scale_rows
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import task_from_tables

TASKS = {
    "world_sizes": (4, 8), "tasks_per_world_size": (20, 10), "batch_size": 512,
    "dimensions": (4, 8, 16, 32, 64, 128), "min_tables_per_4_ranks": 10, "max_tables_per_4_ranks": 60,
    "memory_bytes": 2**26, "memory_fill": 0.7, "tight_share": 0.0, "local_world_size": None, "seed": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def pool():
    return generate_pool(PoolParams(num_tables=200, batch_size=512, row_scale=128.0, seed=0))


def test_tight_tasks_have_a_table_that_fits_no_rank_and_all_others_fit_their_memory(pool):
    few = {"world_sizes": (2,), "tasks_per_world_size": (8,), "tight_share": 0.25, "memory_fill": 0.85}
    tasks = tasks_from_frame(sharding_tasks(pool, ShardingTaskParams(**{**TASKS, **few})))
    is_tight = [max(table.weight_bytes for table in task.tables) > task.memory_bytes for task in tasks]
    assert is_tight[-2:] == [True] * 2
    assert {task.memory_bytes for task in tasks[:6]} == {TASKS["memory_bytes"]}
    for task in tasks:
        assert sum(table.weight_bytes for table in task.tables) <= 0.85 * 2 * task.memory_bytes


def test_tight_tasks_of_many_tables_that_all_fit_a_rank_are_refused(pool):
    many = {"min_tables_per_4_ranks": 16, "max_tables_per_4_ranks": 16, "tight_share": 1.0, "memory_fill": 0.001}
    with pytest.raises(TaskError, match="exceeds the memory of a rank; ask for fewer tables, or raise memory_fill"):
        sharding_tasks(pool, ShardingTaskParams(**{**TASKS, "tasks_per_world_size": (1, 1), **many}))


def test_without_numbers_of_ranks_tasks_have_as_many_as_run_side_by_side():
    params = ShardingTaskParams(**{**TASKS, "world_sizes": None, "tasks_per_world_size": (1,)})
    assert params.world_sizes == (ranks_side_by_side(),)
    assert ranks_side_by_side() in (2, 4, 8)


def test_tasks_lie_on_hosts_of_the_given_size_unless_one_host_holds_them(pool):
    few = {"tasks_per_world_size": (2, 2), "local_world_size": 4}
    frame = sharding_tasks(pool, ShardingTaskParams(**{**TASKS, **few}))
    assert {(task.world_size, task.local_world_size) for task in tasks_from_frame(frame)} == {(4, None), (8, 4)}


@pytest.fixture(scope="module")
def frame(pool):
    return sharding_tasks(pool, ShardingTaskParams(**TASKS))


def test_tasks_have_the_requested_ranks_tables_and_memory(frame):
    assert frame.columns.tolist() == list(TASK_COLUMNS)
    tasks = tasks_from_frame(frame)
    assert [task.world_size for task in tasks] == [4] * 20 + [8] * 10
    assert [task.task_id for task in tasks][:2] == ["4-ranks-000", "4-ranks-001"]
    for task in tasks:
        assert 10 * task.world_size / 4 <= len(task.tables) <= 60 * task.world_size / 4
        assert len({table.name for table in task.tables}) == len(task.tables)
        assert sum(table.weight_bytes for table in task.tables) <= 0.7 * task.world_size * 2**26
        assert all(table.has_profile for table in task.tables)
    assert set(frame["embedding_dim"]) == {4, 8, 16, 32, 64, 128}
    assert (frame["batch_size"] == 512).all()


def test_tables_of_tasks_come_from_the_pool(pool, frame):
    joined = frame.merge(pool, on="table", suffixes=("", "_pool"), validate="many_to_one")
    assert len(joined) == len(frame)
    for column in pool.columns.drop("table"):
        pd.testing.assert_series_equal(joined[column], joined[f"{column}_pool"], check_names=False)


def test_more_tasks_do_not_change_the_first_ones(pool, frame):
    fewer = sharding_tasks(pool, ShardingTaskParams(**{**TASKS, "tasks_per_world_size": (3, 2)}))
    kept = frame[frame["task_id"].isin(fewer["task_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, fewer)


def test_no_tasks_are_an_empty_frame(pool):
    empty = sharding_tasks(pool, ShardingTaskParams(**{**TASKS, "tasks_per_world_size": (0, 0)}))
    assert empty.columns.tolist() == list(TASK_COLUMNS)
    assert tasks_from_frame(empty) == []


def test_memory_too_small_for_the_pool_is_refused(pool):
    with pytest.raises(TaskError, match=r"4-ranks-000: .* raise memory_bytes"):
        sharding_tasks(pool, ShardingTaskParams(**{**TASKS, "memory_bytes": 2000}))


def test_the_number_of_redraws_is_limited(pool):
    few = {"min_tables_per_4_ranks": 1, "max_tables_per_4_ranks": 2, "memory_fill": 1e-7}
    with pytest.raises(TaskError, match="1000 random draws"):
        sharding_tasks(pool, ShardingTaskParams(**{**TASKS, **few}))


@pytest.mark.parametrize(
    "change",
    [
        {"world_sizes": (4, 4)},
        {"world_sizes": (4,)},
        {"world_sizes": (1, 8)},
        {"tasks_per_world_size": (20, -1)},
        {"dimensions": (12, 13)},
        {"min_tables_per_4_ranks": 100},
        {"memory_fill": 1.5},
        {"memory_bytes": -1},
        {"unknown": 1},
    ],
)
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValidationError):
        ShardingTaskParams(**{**TASKS, **change})


def test_a_shipped_file_becomes_a_scaled_task(request):
    tables = read_tables(request.config.rootpath / "data" / "01_raw" / "mlperf_dlrm_v2.csv")
    params = FileTaskParams(task_id="mlperf_dlrm_v2", world_size=8, batch_size=512, memory_bytes=2**28, row_scale=128.0)
    task = task_from_tables(tables, **params.model_dump())
    by_name = {table.name: table for table in task.tables}
    assert list(by_name) == [table.name for table in tables]
    assert by_name["cat_00"].num_embeddings == 312_500
    assert by_name["cat_05"].num_embeddings == 3
    assert by_name["cat_12"].num_embeddings == 4
    big = by_name["cat_20"]
    assert (big.unique_rows, big.reuse) == default_profile(312_500, 100.0, 512)
    assert tasks_from_frame(tasks_to_frame([task])) == [task]


@pytest.mark.parametrize(
    ("rows", "row_scale", "scaled"), [(1000, 10, 100), (1000, 1, 1000), (3, 128, 3), (5, 128, 4), (10, 0.5, 20)]
)
def test_rows_are_divided(rows, row_scale, scaled):
    assert scale_rows(Table("t", rows, 8, 1.0), row_scale).num_embeddings == scaled


def test_a_given_profile_is_scaled_with_the_rows():
    table = Table("t", 1000, 8, 1.0, 600.0, (1.0, *(0.0,) * 16))
    assert scale_rows(table, 100).unique_rows == 6.0
    assert scale_rows(table, 1000).unique_rows == 1.0
    assert scale_rows(table, 100).reuse == table.reuse


def test_impossible_scale_is_refused():
    with pytest.raises(TaskError, match="mine: row_scale 0 must be above 0"):
        task_from_tables([Table("t", 10, 8, 1.0)], 2, 64, 1000, 0, "mine")
