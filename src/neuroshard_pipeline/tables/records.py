"""Reads table files of any format into records: where a row stands for the user, and its raw values by column.

Knows formats, not tables; what the values mean is `readers`' concern.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuroshard_pipeline.errors import TableFileError


@dataclass(frozen=True)
class Record:
    """One row of a table file.

    Attributes:
        where: what the user calls the row, e.g. `line 7`.
        values: raw value of every column that the row gives.
    """

    where: str
    values: dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """Records of a CSV, Parquet or JSON file, at least one.

    Raises:
        TableFileError: the file is missing, no file, of unknown suffix, empty, unreadable or malformed.
    """
    parse = _PARSERS.get(path.suffix.lower())
    if path.is_dir():
        raise TableFileError(f"{path}: is a directory; name the file with the tables in it")
    if not path.exists():
        raise TableFileError(f"{path}: no such file; check the path (relative paths start at {Path.cwd()})")
    if parse is None:
        raise TableFileError(
            f"{path}: suffix {path.suffix!r} is not one of {', '.join(_PARSERS)}; save the tables as one of these"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TableFileError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    if not content.strip():
        raise TableFileError(f"{path}: the file is empty; it needs one row per table")
    records = parse(path, content)
    if not records:
        raise TableFileError(f"{path}: holds no tables; it needs one row per table")
    return records


def _text(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableFileError(
            f"{path}: byte {error.start} is not UTF-8 text; save the file as plain UTF-8 text"
        ) from error
    if "\0" in text:
        raise TableFileError(f"{path}: holds binary data, not text; save the file as plain UTF-8 text")
    return text


def _csv_records(path: Path, content: bytes) -> list[Record]:
    """Lines are counted from 1 with the header, as an editor shows them; blank lines are skipped."""
    reader = csv.reader(io.StringIO(_text(path, content), newline=""), strict=True)
    records: list[Record] = []
    header: list[str] = []
    start = 1
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            line, start = start, reader.line_num + 1
            if not any(cells) and len(cells) <= 1:
                continue
            if not header:
                header = _checked_header(path, line, cells)
            elif len(cells) != len(header):
                raise TableFileError(
                    f"{path}: line {line} has {len(cells)} values, but the header has {len(header)} columns; give one "
                    "value per column, and no commas inside numbers"
                )
            else:
                records.append(Record(f"line {line}", dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise TableFileError(f"{path}: line {reader.line_num}: {error}; check the quotes of that line") from error
    return records


def _checked_header(path: Path, line: int, names: list[str]) -> list[str]:
    for name, count in Counter(names).items():
        if count > 1:
            raise TableFileError(f"{path}: line {line}: column {name!r} stands {count} times; keep one of them")
        if not name:
            raise TableFileError(f"{path}: line {line}: column {names.index(name) + 1} has no name; name or delete it")
        for separator, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if separator in name:
                raise TableFileError(
                    f"{path}: line {line}: columns are separated by {word} ({name!r}); separate them by commas"
                )
    return names


def _json_records(path: Path, content: bytes) -> list[Record]:
    """Records are counted from 1."""
    try:
        rows = json.loads(_text(path, content))
    except json.JSONDecodeError as error:
        raise TableFileError(
            f"{path}: line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}); correct it there"
        ) from error
    except (RecursionError, ValueError) as error:
        raise TableFileError(f"{path}: not usable JSON ({error}); it must be a list of records") from error
    shape = 'it must be a list of records like [{"table": "t0", "num_embeddings": 1000, ...}]'
    if not isinstance(rows, list):
        raise TableFileError(f"{path}: the file holds a JSON {_kind(rows)}, not a list; {shape}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise TableFileError(f"{path}: record {number} is a JSON {_kind(row)}, not an object; {shape}")
    return [Record(f"record {number}", row) for number, row in enumerate(rows, start=1)]


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _parquet_records(path: Path, content: bytes) -> list[Record]:
    """Rows are counted from 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise TableFileError(f"{path}: not a readable Parquet file ({reason}); write it again") from error
    for name, count in Counter(table.column_names).items():
        if count > 1:
            raise TableFileError(f"{path}: column {name!r} stands {count} times; keep one of them")
    names = [name for name in table.column_names if not name.startswith("__index_level_")]
    return [Record(f"row {number}", row) for number, row in enumerate(table.select(names).to_pylist(), start=1)]


_PARSERS: dict[str, Callable[[Path, bytes], list[Record]]] = {
    ".csv": _csv_records,
    ".parquet": _parquet_records,
    ".json": _json_records,
}
