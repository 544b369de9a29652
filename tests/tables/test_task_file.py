import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.frames import tasks_to_frame
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.task_file import read_tasks

HEADER = "task_id,world_size,batch_size,memory_bytes,table,num_embeddings,embedding_dim,pooling_factor"


def test_rows_become_tasks_in_the_order_of_the_file(tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text(
        f"{HEADER},optimizer\nb,2,64,1000,x,10,4,1,adam\na,4,32,2000,x,10,8,2,\nb,2,64,1000,y,20,4,1,adam\n"
    )
    first, second = read_tasks(path)
    assert (first.task_id, first.world_size, first.optimizer) == ("b", 2, "adam")
    assert [table.name for table in first.tables] == ["x", "y"]
    assert (second.task_id, second.batch_size, second.memory_bytes, second.optimizer) == ("a", 32, 2000, "sgd")


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 32), st.floats(0.5, 100.0)), min_size=1, max_size=5),
    st.sampled_from([".csv", ".parquet"]),
)
def test_tasks_that_were_written_are_read_back(tmp_path_factory, shapes, suffix):
    tables = [Table(f"t{index}", rows, 4 * quads, pooling) for index, (rows, quads, pooling) in enumerate(shapes)]
    task = ShardingTask(tables, 4, 512, 2**30, task_id="one")
    path = tmp_path_factory.mktemp("tasks") / f"tasks{suffix}"
    frame = tasks_to_frame([task])
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    (read,) = read_tasks(path)
    assert tasks_to_frame([read]).equals(frame)


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (["a,2,64,1000,x,10,4,1", "a,3,64,1000,y,10,4,1"], ["line 3", "world_size", "'3'", "differs from 2 in line 2"]),
        (["a,2,64,1000,x,10,4,1", "a,2,64,1000,x,10,4,1"], ["line 3", "'x'", "line 2"]),
        (["a,0,64,1000,x,10,4,1"], ["line 2", "world_size 0"]),
        (["a,two,64,1000,x,10,4,1"], ["line 2", "world_size", "'two'", "not a number"]),
        ([",2,64,1000,x,10,4,1"], ["line 2", "task_id", "empty"]),
        (["a,2,64,1000,x,10,6,1"], ["line 2", "6", "multiple of 4"]),
    ],
)
def test_impossible_values_are_refused_with_file_and_line(tmp_path, rows, parts):
    path = tmp_path / "tasks.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    with pytest.raises(TableFileError) as refused:
        read_tasks(path)
    for word in ["tasks.csv", *parts]:
        assert word in str(refused.value)


def test_a_missing_or_unknown_column_is_named(tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text(
        "task_id,world_size,batch_size,table,num_embeddings,embedding_dim,pooling_factor\na,2,64,x,10,4,1\n"
    )
    with pytest.raises(TableFileError, match="'memory_bytes' is missing"):
        read_tasks(path)
    path.write_text(f"{HEADER},ranks\na,2,64,1000,x,10,4,1,3\n")
    with pytest.raises(TableFileError, match="unknown column 'ranks'"):
        read_tasks(path)
