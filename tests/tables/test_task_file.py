import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.frames import tasks_to_frame
from neuroshard_pipeline.tables.table import POOLINGS, TABLE_DEFAULTS, Table
from neuroshard_pipeline.tables.task import TASK_DEFAULTS, ShardingTask
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


@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 10**6), st.integers(1, 32), st.floats(0.5, 100.0), st.sampled_from(POOLINGS),
            st.sampled_from(["", "tower"]), st.integers(1, 3), st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.sampled_from([".csv", ".parquet"]),
)  # fmt: skip
def test_tasks_that_were_written_are_read_back(tmp_path_factory, shapes, local_world_size, pipelined, suffix):
    tables = [
        Table(f"t{index}", rows, 4 * quads, ids, None, None, "fp32", *rest)
        for index, (rows, quads, ids, *rest) in enumerate(shapes)
    ]
    options = {"local_world_size": local_world_size, "pipelines_input_dist": pipelined}
    options |= {"comm_precision": "bf16", "num_replica_groups": 3} if pipelined else {"sync_interval": 7}
    options |= {"tiers": pipelined, "index_dedup": not pipelined}
    tasks = [
        ShardingTask(tables[:1], 4, 512, 2**30, task_id="one"),
        ShardingTask(tables, 4, 64, 2**30, task_id="two", **options),
    ]
    path = tmp_path_factory.mktemp("tasks") / f"tasks{suffix}"
    frame = tasks_to_frame(tasks)
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    assert tasks_to_frame(read_tasks(path)).equals(frame)


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


@pytest.mark.parametrize(
    ("column", "value", "parts"),
    [
        ("pipelines_input_dist", "maybe", ["line 2", "'maybe' is neither true nor false"]),
        ("local_world_size", "3", ["line 2", "local_world_size 3", "divides the world_size 2"]),
        ("local_world_size", "one", ["line 2", "'one' is not a number"]),
        ("comm_precision", "fp8", ["line 2", "comm_precision 'fp8' is unknown; use one of fp32, fp16, bf16"]),
        ("num_replica_groups", "0", ["line 2", "num_replica_groups 0 must be a whole number from 1"]),
        ("sync_interval", "1.5", ["line 2", "'1.5' is not a whole number"]),
        ("pooling", "max", ["line 2", "pooling 'max' is unknown; use one of sum, mean, none"]),
        ("num_features", "0", ["line 2", "num_features 0 must be a whole number from 1"]),
        ("is_weighted", "2", ["line 2", "'2' is neither true nor false"]),
    ],
)
def test_an_impossible_value_of_an_optional_column_is_refused(tmp_path, column, value, parts):
    path = tmp_path / "tasks.csv"
    path.write_text(f"{HEADER},{column}\na,2,64,1000,x,10,4,1,{value}\n")
    with pytest.raises(TableFileError) as refused:
        read_tasks(path)
    for word in ["tasks.csv", *parts]:
        assert word in str(refused.value)


def test_empty_optional_cells_mean_the_default(tmp_path):
    path = tmp_path / "tasks.csv"
    names = [*TABLE_DEFAULTS, *TASK_DEFAULTS]
    path.write_text(f"{HEADER},{','.join(names)}\na,2,64,1000,x,10,4,1{',' * len(names)}\n")
    assert read_tasks(path) == [ShardingTask([Table("x", 10, 4, 1.0)], 2, 64, 1000, task_id="a")]


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
