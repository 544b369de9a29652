"""Reads a user's sharding tasks from one file, with one row per table of a task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuroshard_pipeline.errors import TableFileError, TaskError
from neuroshard_pipeline.tables import table_file
from neuroshard_pipeline.tables.records import Record, read_records
from neuroshard_pipeline.tables.task import TASK_DEFAULTS, TASK_ONLY_COLUMNS, ShardingTask

_READERS: dict[str, Callable[[Record, str], Any]] = {
    "optimizer": Record.text,
    "local_world_size": Record.count,
    "pipelines_input_dist": Record.flag,
    "host_memory_bytes": Record.count,
    "comm_precision": Record.text,
    "num_replica_groups": Record.count,
    "sync_interval": Record.count,
    "tiers": Record.flag,
    "index_dedup": Record.flag,
}


def read_tasks(path: str | Path) -> list[ShardingTask]:
    """Read sharding tasks from a `.csv`, `.parquet` or `.json` file, in the order of their first rows.

    The file must have the columns `TASK_ONLY_COLUMNS` and `table_file.REQUIRED_COLUMNS`. It may also have
    `table_file.OPTIONAL_COLUMNS` and the columns of `TASK_DEFAULTS`. All columns mean the same as in the dataset
    `augment.sharding_tasks`.

    Raises:
        TableFileError: the file is invalid; the message names file, row, column, value and remedy.
    """
    records = read_records(Path(path))
    required = (*TASK_ONLY_COLUMNS, *table_file.REQUIRED_COLUMNS)
    table_file.check_columns(records, required, (*table_file.OPTIONAL_COLUMNS, *TASK_DEFAULTS))
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(record.text("task_id", "give a name"), []).append(record)
    return [_task(task_id, rows) for task_id, rows in by_task.items()]


def _task(task_id: str, rows: list[Record]) -> ShardingTask:
    try:
        return ShardingTask(table_file.tables_of_records(rows), **_common_values(rows, task_id), task_id=task_id)
    except TaskError as error:
        raise TableFileError(f"{rows[0].path}: {rows[0].where}: {error}") from error


def _common_values(rows: list[Record], task_id: str) -> dict[str, Any]:
    """The values that all rows of a task have."""
    first: dict[str, Any] = {}
    for row in rows:
        own = {name: row.count(name) for name in TASK_ONLY_COLUMNS[1:]}
        own |= table_file.optional_values(row, TASK_DEFAULTS, _READERS)
        for column, value in own.items():
            if first and value != first[column]:
                remedy = f"give all rows of task {task_id} the same value"
                raise row.problem(column, f"differs from {first[column]!r} in {rows[0].where}; {remedy}")
        first = first or own
    return first
