"""Tables, tasks and samples do not change on the way into a frame, into a file and back."""

import dataclasses
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.augment.comm_draws import CommSampleParams, comm_samples
from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.frames import (
    TABLE_COLUMNS,
    TASK_COLUMNS,
    comm_samples_from_frame,
    compute_samples_from_frame,
    tables_from_frame,
    tables_to_frame,
    tasks_from_frame,
    tasks_to_frame,
)
from neuroshard_pipeline.tables.kinds import Tier
from neuroshard_pipeline.tables.lookups import local_table
from neuroshard_pipeline.tables.table import POOLINGS, Table
from neuroshard_pipeline.tables.task import COMM_BYTES, ShardingTask

PROFILES = st.sampled_from([None, (1.0, *(0.0,) * 16), (0.1,) * 10 + (0.0,) * 7])


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 10**9))
    reuse = draw(PROFILES)
    return Table(
        name=draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(str.strip)),
        num_embeddings=rows,
        embedding_dim=4 * draw(st.integers(1, 64)),
        pooling_factor=draw(st.floats(1e-3, 1e4)),
        unique_rows=None if reuse is None else draw(st.floats(0.5, 1.0)) * rows,
        reuse=reuse,
        data_type=draw(st.sampled_from(["fp32", "fp16"])),
        pooling=draw(st.sampled_from(POOLINGS)),
        module=draw(st.sampled_from(["", "sparse", "user tower"])),
        num_features=draw(st.sampled_from([1, 1, 3])),
        popularity=draw(st.sampled_from([None, ((rows / 3, 0.1 + 2 / 3), (float(rows), 1.0))])),
        is_weighted=draw(st.booleans()),
    )


def through_a_file(frame):
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    return pd.read_parquet(buffer)


@settings(max_examples=15)
@given(st.lists(tables(), max_size=6))
def test_tables_are_restored(given_tables):
    frame = through_a_file(tables_to_frame(given_tables))
    assert frame.columns[: len(TABLE_COLUMNS)].tolist() == list(TABLE_COLUMNS)
    assert tables_from_frame(frame) == given_tables


@st.composite
def tasks(draw):
    drawn = draw(st.lists(tables(), min_size=1, max_size=4, unique_by=lambda table: table.name))
    world_size, batch_size = draw(st.integers(1, 9)), draw(st.integers(1, 2**20))
    possible = [
        t
        if t.unique_rows is None
        else dataclasses.replace(t, unique_rows=min(t.unique_rows, batch_size * t.pooling_factor))
        for t in drawn
    ]
    return ShardingTask(
        possible, world_size, batch_size, draw(st.integers(1, 2**40)),
        draw(st.sampled_from(["sgd", "adam"])), f"task-{draw(st.integers(0, 10**6))}",
        local_world_size=draw(st.sampled_from([None, 1, world_size])), pipelines_input_dist=draw(st.booleans()),
        comm_precision=draw(st.sampled_from(list(COMM_BYTES))), sync_interval=draw(st.integers(1, 9)),
    )  # fmt: skip


@settings(max_examples=10)
@given(st.lists(tasks(), max_size=3, unique_by=lambda task: task.task_id))
def test_tasks_are_restored_with_default_profiles(given_tasks):
    frame = tasks_to_frame(given_tasks)
    read = tasks_from_frame(through_a_file(frame))
    assert tasks_to_frame(read).equals(frame)
    for before, after in zip(given_tasks, read, strict=True):
        assert after == dataclasses.replace(before, tables=after.tables)
        assert [table.name for table in after.tables] == [table.name for table in before.tables]
        assert all(old == new for old, new in zip(before.tables, after.tables, strict=True) if old.has_profile)
        assert all(table.has_profile for table in after.tables)


def test_only_columns_with_a_value_that_is_not_the_default_are_added():
    tables = [Table("t", 10, 8, 1.0), Table("u", 10, 8, 1.0, pooling="mean")]
    assert tables_to_frame(tables).columns.tolist() == [*TABLE_COLUMNS, "pooling"]
    given = [
        ShardingTask(tables[:1], 4, 64, 1000, task_id="a"),
        ShardingTask(tables[1:], 4, 64, 1000, local_world_size=2),
    ]
    frame = tasks_to_frame(given)
    assert frame.columns.tolist() == [*TASK_COLUMNS, "pooling", "local_world_size"]
    assert frame["local_world_size"].tolist() == [pd.NA, 2]


def test_tasks_with_default_values_have_exactly_the_task_columns():
    frame = tasks_to_frame([ShardingTask([Table("t", 10, 8, 1.0)], 2, 64, 1000)])
    assert frame.columns.tolist() == list(TASK_COLUMNS)


def test_ranks_that_differ_in_memory_are_refused():
    with pytest.raises(TaskError, match="one memory_bytes for all ranks"):
        tasks_to_frame([ShardingTask([Table("t", 10, 8, 1.0)], 2, 64, [1000, 2000])])


def test_tiers_are_refused():
    tier = Table("words/hot", 10, 8, 1.0, pooling="none", tier=Tier("hot", "words", 0))
    with pytest.raises(TaskError, match="'words/hot' is a tier; a frame has no columns for tiers"):
        tasks_to_frame([ShardingTask([tier], 2, 64, 1000)])


def test_rows_of_a_task_must_agree():
    frame = tasks_to_frame([ShardingTask([Table("a", 10, 8, 1.0), Table("b", 10, 8, 1.0)], 2, 64, 1000)])
    with pytest.raises(TaskError, match=r"local_world_size differs between rows: \[1, 2\]"):
        tasks_from_frame(frame.assign(local_world_size=[1, 2]))
    frame.loc[1, "batch_size"] = 128
    with pytest.raises(TaskError, match=r"batch_size differs between rows: \[64, 128\]"):
        tasks_from_frame(frame)


@pytest.mark.parametrize("column", ["task_id", "memory_bytes", "num_embeddings"])
def test_missing_columns_are_named(column):
    frame = tasks_to_frame([ShardingTask([Table("t", 10, 8, 1.0)], 2, 64, 1000)]).drop(columns=column)
    with pytest.raises(TaskError, match=f"'{column}' is missing"):
        tasks_from_frame(frame)


@pytest.fixture(scope="module")
def pool():
    return generate_pool(PoolParams(num_tables=30, batch_size=64, row_scale=1024.0, seed=0))


def test_compute_samples_become_shards_of_pool_tables(pool):
    params = ComputeSampleParams(
        num_samples=40, batch_size=64, dimensions=(4, 8), min_tables=1, max_tables=5, memory_bytes=2**24, seed=0
    )
    frame = compute_samples(pool, params)
    samples = compute_samples_from_frame(through_a_file(frame), through_a_file(pool))
    assert [sample.sample_id for sample in samples] == frame["sample_id"].unique().tolist()
    rows = [
        (sample.sample_id, sample.batch_size, shard.table.name, shard.embedding_dim)
        for sample in samples
        for shard in sample.shards
    ]
    assert rows == list(frame.itertuples(index=False, name=None))
    by_name = {table.name: table for table in tables_from_frame(pool)}
    for sample in samples:
        for shard in sample.shards:
            assert shard.embedding_dim == shard.table.embedding_dim
            assert shard.table.num_embeddings == by_name[shard.table.name].num_embeddings
            assert shard.table.reuse == by_name[shard.table.name].reuse
    distinct = {id(shard.table) for sample in samples for shard in sample.shards}
    assert len(distinct) == len(frame.drop_duplicates(["table", "embedding_dim"]))


def test_samples_of_another_pool_are_refused(pool):
    frame = pd.DataFrame({"sample_id": ["s"], "batch_size": [64], "table": ["nobody"], "embedding_dim": [4]})
    with pytest.raises(TaskError, match="'nobody' is not in the pool"):
        compute_samples_from_frame(frame, pool)


def test_comm_samples_are_restored_in_any_row_order(pool):
    params = CommSampleParams(
        num_samples=9, batch_size=64, world_sizes=(2, 4), dimensions=(4, 8, 16), min_tables_per_4_ranks=4,
        max_tables_per_4_ranks=12, max_start_skew_ms=1.0, seed=0,
    )  # fmt: skip
    frame = comm_samples(pool, params)
    samples = comm_samples_from_frame(through_a_file(frame))
    assert [sample.sample_id for sample in samples] == frame["sample_id"].unique().tolist()
    assert [sample.world_size for sample in samples] == [2, 4, 2, 4, 2, 4, 2, 4, 2]
    assert [dim for sample in samples for dim in sample.dim_sums] == frame["dim_sum"].tolist()
    assert [skew for sample in samples for skew in sample.start_skew_ms] == frame["start_skew_ms"].tolist()
    shuffled = comm_samples_from_frame(frame.sample(frac=1, random_state=0))
    assert sorted(shuffled, key=lambda sample: sample.sample_id) == samples


def test_missing_ranks_are_refused(pool):
    params = CommSampleParams(
        num_samples=1, batch_size=64, world_sizes=(4,), dimensions=(4,), min_tables_per_4_ranks=4,
        max_tables_per_4_ranks=4, max_start_skew_ms=0.0, seed=0,
    )  # fmt: skip
    with pytest.raises(TaskError, match="ranks are"):
        comm_samples_from_frame(comm_samples(pool, params).iloc[:-1])


def test_a_spread_sample_has_the_lookups_of_one_rank(pool):
    samples = compute_samples(
        pool,
        ComputeSampleParams(
            num_samples=3, batch_size=64, dimensions=(8,), min_tables=2, max_tables=5, memory_bytes=2**24, seed=0
        ),
    )
    names = samples["sample_id"].unique()
    settings = pd.DataFrame({"sample_id": names, "optimizer": "sgd"})
    whole_tables = compute_samples_from_frame(samples, pool, settings)
    types = ["column_wise", "row_wise", "data_parallel"]
    ordinary, rows, replicas = compute_samples_from_frame(
        samples, pool, settings.assign(sharding_type=types, world_size=[1, 4, 4])
    )
    assert ordinary == whole_tables[0]
    assert (rows.batch_size, replicas.batch_size) == (64, 16)
    for seen, table in zip(rows.shards, (shard.table for shard in whole_tables[1].shards), strict=True):
        assert seen.num_rows == seen.table.num_embeddings == -(-table.num_embeddings // 4)
        share = seen.num_rows / table.num_embeddings
        assert seen.table.pooling_factor == pytest.approx(table.pooling_factor * share)
        assert seen.table.unique_rows == pytest.approx(table.unique_rows * share)
    for seen, table in zip(replicas.shards, (shard.table for shard in whole_tables[2].shards), strict=True):
        assert seen.table == local_table(table, 64, 4)
    # Settings of earlier versions, joined with newer ones, have empty cells.
    empty = settings.assign(sharding_type=[None, None, "row_wise"], world_size=[np.nan, np.nan, 2])
    read = compute_samples_from_frame(samples, pool, empty)
    assert read[:2] == whole_tables[:2]
    assert read[2].shards[0].num_rows == -(-whole_tables[2].shards[0].num_rows // 2)


def test_settings_give_every_sample_its_optimizer(pool):
    samples = pd.DataFrame(
        {"sample_id": ["a", "b"], "batch_size": 64, "table": pool["table"].iloc[0], "embedding_dim": 8}
    )
    settings = pd.DataFrame({"sample_id": ["b", "a"], "optimizer": ["sgd", "rowwise_adagrad"]})
    made = compute_samples_from_frame(samples, pool.assign(data_type="fp16"), settings)
    assert [sample.optimizer for sample in made] == ["rowwise_adagrad", "sgd"]
    assert {shard.table.data_type for sample in made for shard in sample.shards} == {"fp16"}
    with pytest.raises(TaskError, match="b: has no settings"):
        compute_samples_from_frame(samples, pool, settings.iloc[1:])
