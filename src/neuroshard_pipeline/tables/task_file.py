"""Reads a user's sharding tasks from one file, with one row per table of a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuroshard_pipeline.errors import TableFileError, TaskError
from neuroshard_pipeline.tables.records import Record, read_records
from neuroshard_pipeline.tables.table_file import (
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    Cells,
    check_columns,
    tables_of_records,
)
from neuroshard_pipeline.tables.task import DEFAULT_OPTIMIZER, ShardingTask

#: Columns that describe the task; all rows of a task have the same values.
TASK_FILE_COLUMNS: tuple[str, ...] = ("task_id", "world_size", "batch_size", "memory_bytes")


def read_tasks(path: str | Path) -> list[ShardingTask]:
    """Sharding tasks from a `.csv`, `.parquet` or `.json` file.

    The file has the columns `TASK_FILE_COLUMNS` and those of a table file (`table_file.REQUIRED_COLUMNS`), and
    optionally `table_file.OPTIONAL_COLUMNS` and `optimizer`, as `augment.sharding_tasks` does.

    Args:
        path: the file.

    Returns:
        The tasks in the order of their first rows.

    Raises:
        TableFileError: one message naming file, row, column, value and remedy.
    """
    path = Path(path)
    records = read_records(path)
    check_columns(path, records, (*TASK_FILE_COLUMNS, *REQUIRED_COLUMNS), (*OPTIONAL_COLUMNS, "optimizer"))
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(_text(Cells(path, record), "task_id"), []).append(record)
    return [_task(path, task_id, rows) for task_id, rows in by_task.items()]


def _task(path: Path, task_id: str, rows: list[Record]) -> ShardingTask:
    cells = [Cells(path, row) for row in rows]
    counts = {name: _common_value(cells, name, task_id, Cells.count) for name in TASK_FILE_COLUMNS[1:]}
    optimizer = _common_value(cells, "optimizer", task_id, _optimizer)
    try:
        return ShardingTask(tables_of_records(path, rows), **counts, optimizer=optimizer, task_id=task_id)
    except TaskError as error:
        raise TableFileError(f"{path}: {rows[0].where}: {error}") from error


def _common_value(cells: list[Cells], column: str, task_id: str, read: Callable[[Cells, str], Any]) -> Any:
    """The value that all rows of a task have in a column."""
    first = read(cells[0], column)
    for cell in cells[1:]:
        if read(cell, column) != first:
            raise cell.problem(
                column, f"differs from {first!r} in {cells[0].record.where}; give all rows of task {task_id} one value"
            )
    return first


def _optimizer(cell: Cells, column: str) -> str:
    return DEFAULT_OPTIMIZER if cell.is_empty(column) else _text(cell, column)


def _text(cell: Cells, column: str) -> str:
    if cell.is_empty(column):
        raise cell.problem(column, "is empty; give a name")
    return str(cell.record.values[column]).strip()
