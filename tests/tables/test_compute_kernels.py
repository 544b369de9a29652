"""Fields of tables and tasks for host memory: impossible values, files, frames and constraints."""

import pytest

from neuroshard_pipeline.errors import TableFileError, TaskError
from neuroshard_pipeline.tables.constraint_file import read_constraints
from neuroshard_pipeline.tables.frames import tasks_from_frame, tasks_to_frame
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.task_file import read_tasks

PLAIN = Table("plain", 1000, 16, 2.0)
CACHED = Table("cached", 1000, 16, 2.0, compute_kernel="fused_uvm_caching", cache_load_factor=0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"compute_kernel": "quick"}, "compute_kernel 'quick' is unknown; use one of fused, fused_uvm, fused_uvm_cac"),
        ({"cache_load_factor": 0.5}, "compute_kernel 'fused' has no cache; leave out cache_load_factor"),
        ({"compute_kernel": "fused_uvm_caching", "cache_load_factor": 0}, "must be a number above 0 and at most 1"),
        ({"compute_kernel": "fused_uvm_caching", "cache_load_factor": float("nan")}, "must be a number above 0"),
    ],
)
def test_impossible_kernels_are_refused(fields, message):
    with pytest.raises(TaskError, match=message):
        Table("a", 1000, 16, 2.0, **fields)


@pytest.mark.parametrize(
    ("host_memory_bytes", "message"),
    [
        (None, "'cached' has compute_kernel 'fused_uvm_caching'; give the task host_memory_by"),
        (0, "host_memory_bytes 0 must be a whole number from 1 to"),
        (1.5, "host_memory_bytes 1.5 must be a whole number"),
        (2**61, "from 1 to 1152921504606846976"),
    ],
)
def test_impossible_host_memory_is_refused(host_memory_bytes, message):
    with pytest.raises(TaskError, match=message):
        ShardingTask([PLAIN, CACHED], 2, 8, 2**20, host_memory_bytes=host_memory_bytes)


def test_the_repr_names_the_kernel_of_tables_in_host_memory_only():
    assert "compute_kernel" not in repr(PLAIN)
    assert "compute_kernel='fused_uvm_caching', cache_load_factor=0.5" in repr(CACHED)


def test_files_may_state_kernels(tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text(
        "table,num_embeddings,embedding_dim,pooling_factor,compute_kernel,cache_load_factor\n"
        "plain,1000,16,2,,\ncached,1000,16,2,FUSED_UVM_CACHING,0.5\n"
    )
    assert read_tables(path) == [PLAIN, CACHED]
    path.write_text("table,num_embeddings,embedding_dim,pooling_factor,compute_kernel\nplain,1000,16,2,dense\n")
    with pytest.raises(TableFileError, match=r"line 2: table 'plain': compute_kernel 'dense' is unknown"):
        read_tables(path)


def test_tasks_keep_host_memory_in_files_and_frames(tmp_path):
    path = tmp_path / "tasks.csv"
    head = (
        "task_id,world_size,batch_size,memory_bytes,host_memory_bytes,table,num_embeddings,embedding_dim,pooling_factor"
    )
    path.write_text(f"{head}\nfirst,2,8,1000,5000,a,10,16,2\nsecond,2,8,1000,,a,10,16,2\n")
    tasks = read_tasks(path)
    assert [task.host_memory_bytes for task in tasks] == [5000, None]
    assert [task.host_memory_bytes for task in tasks_from_frame(tasks_to_frame(tasks))] == [5000, None]
    assert "host_memory_bytes" not in tasks_to_frame(tasks[1:])
    cached = ShardingTask([PLAIN, CACHED], 2, 8, 2**20, host_memory_bytes=2**20)
    (found,) = tasks_from_frame(tasks_to_frame([cached]))
    assert [(table.compute_kernel, table.cache_load_factor) for table in found.tables] == [
        ("fused", 0.2),
        ("fused_uvm_caching", 0.5),
    ]


def test_constraint_files_may_keep_tables_in_gpu_memory(tmp_path):
    path = tmp_path / "rules.yml"
    path.write_text("tables:\n  plain: {in_gpu_memory: true}\n")
    constraints = read_constraints(path)
    assert constraints.of("plain").in_gpu_memory
    assert not constraints.of("cached").in_gpu_memory
