"""Reads CSV, Parquet and JSON files as records; a record converts the values of a row and reports invalid ones.

This module handles file formats; `table_file` and `task_file` handle columns.
"""

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuroshard_pipeline.errors import TableFileError


@dataclass(frozen=True)
class Record:
    """One row of a file: its position, such as `line 7`, and its raw values by column.

    The methods that read a cell raise a `TableFileError` if the cell is empty or has no value of their type.
    """

    path: Path
    where: str
    values: dict[str, Any]

    def problem(self, column: str, what: str) -> TableFileError:
        """An error that names file, row, column and value, followed by `what`."""
        value = repr(self.values.get(column))
        shown = value if len(value) <= 60 else value[:57] + "..."
        return TableFileError(f"{self.path}: {self.where}, column {column!r}: {shown} {what}")

    def is_empty(self, column: str) -> bool:
        """Whether the row has no value in `column`."""
        value = self.values.get(column)
        return value is None or (isinstance(value, str) and not value.strip())

    def text(self, column: str, remedy: str = "give a string") -> str:
        """The value of `column` as text; whole numbers are converted. An error ends with `remedy`."""
        if self.is_empty(column):
            raise self.problem(column, f"is empty; {remedy}")
        value = self.values[column]
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.problem(column, f"is not a string; {remedy}")
        return str(value).strip()

    def number(self, column: str) -> float:
        """The value of `column` as a finite number."""
        return float(self._numeric(column, "1.5"))

    def count(self, column: str) -> int:
        """The value of `column` as a whole number; `1000.0` is accepted."""
        value = self._numeric(column, "1000")
        if value != int(value):
            raise self.problem(column, "is not a whole number; give the exact count")
        return int(value)

    def flag(self, column: str) -> bool:
        """The value of `column` as true or false; 1, 0 and text in upper or lower case are accepted, too."""
        value = self.values.get(column)
        known = {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())
        if known is None:
            raise self.problem(column, "is neither true nor false; write one of them")
        return known

    def _numeric(self, column: str, example: str) -> int | float:
        value = self.values.get(column)
        if self.is_empty(column):
            raise self.problem(column, "is empty; give a number")
        number = _parse_number(value)
        if number is None:
            if isinstance(value, str) and _parse_number(value.replace(",", "").replace("_", "")) is not None:
                raise self.problem(column, "is not a plain number; write it without separators between digits")
            raise self.problem(column, f"is not a number; write digits only, such as {example}")
        if not abs(number) <= sys.float_info.max:  # a whole number of JSON may have any length
            raise self.problem(column, "is not a finite number; give the table's real value")
        return number


def _parse_number(value: Any) -> int | float | None:
    """The number that a raw value represents, or None. Text whose number is too large for a float gives infinity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if not isinstance(value, str):
        return value
    text = value.strip()
    if "_" in text:  # Python accepts 1_000 as a number, other programs do not
        return None
    digits = text.removeprefix("+")
    if digits.isascii() and digits.isdigit() and len(text) <= 30:
        return int(text)
    try:
        return float(text)
    except ValueError:
        return None


def read_records(path: Path) -> list[Record]:
    """Records of a CSV, Parquet or JSON file, at least one.

    Raises:
        TableFileError: the file is missing, a directory, of unknown suffix, empty, unreadable or malformed.
    """
    parse = _PARSERS.get(path.suffix.lower())
    if path.is_dir():
        raise TableFileError(f"{path}: is a directory; name the file that contains the tables")
    if not path.exists():
        raise TableFileError(f"{path}: no such file; check the path (relative paths start at {Path.cwd()})")
    if parse is None:
        raise TableFileError(f"{path}: suffix {path.suffix!r} is unknown; save the tables as {', '.join(_PARSERS)}")
    content = _read_bytes(path)
    if not content.strip():
        raise TableFileError(f"{path}: the file is empty; it needs one row per table")
    records = parse(path, content)
    if not records:
        raise TableFileError(f"{path}: holds no tables; it needs one row per table")
    return records


def read_text(path: Path) -> str:
    """Text of a UTF-8 file.

    Raises:
        TableFileError: the file cannot be read or is not UTF-8 text.
    """
    return _decoded(path, _read_bytes(path))


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TableFileError(f"{path}: cannot be read ({error.strerror}); check path and permissions") from error


def _decoded(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableFileError(f"{path}: byte {error.start} is not UTF-8; save the file as plain UTF-8 text") from error
    if "\0" in text:
        raise TableFileError(f"{path}: holds binary data, not text; save the file as plain UTF-8 text")
    return text


def _csv_records(path: Path, content: bytes) -> list[Record]:
    """Records of CSV lines. Line numbers start at 1 and count header and blank lines, which give no records."""
    reader = csv.reader(io.StringIO(_decoded(path, content), newline=""), strict=True)
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
                header = _checked_header(f"{path}: line {line}", cells)
            elif len(cells) != len(header):
                found = f"{path}: line {line} has {len(cells)} values, but the header has {len(header)} columns"
                raise TableFileError(f"{found}; give one value per column, and no commas inside numbers")
            else:
                records.append(Record(path, f"line {line}", dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise TableFileError(f"{path}: line {reader.line_num}: {error}; check the quotes of that line") from error
    return records


def _checked_header(where: str, names: list[str]) -> list[str]:
    _refuse_repeated(where, names)
    for name in names:
        if not name:
            raise TableFileError(f"{where}: column {names.index(name) + 1} has no name; name or delete it")
        for separator, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if separator in name:
                raise TableFileError(f"{where}: columns are separated by {word} ({name!r}); separate them by commas")
    return names


def _refuse_repeated(where: str, columns: Iterable[str]) -> None:
    for name, count in Counter(columns).items():
        if count > 1:
            raise TableFileError(f"{where}: column {name!r} occurs {count} times; keep one of them")


def _json_records(path: Path, content: bytes) -> list[Record]:
    """Records of a JSON list, counted from 1."""
    try:
        rows = json.loads(_decoded(path, content))
    except json.JSONDecodeError as error:
        where = f"{path}: line {error.lineno}, column {error.colno}"
        raise TableFileError(f"{where}: not valid JSON ({error.msg}); correct it there") from error
    except (RecursionError, ValueError) as error:
        raise TableFileError(f"{path}: not usable JSON ({error}); it must be a list of records") from error
    shape = 'it must be a list of records like [{"table": "t0", "num_embeddings": 1000, ...}]'
    if not isinstance(rows, list):
        raise TableFileError(f"{path}: the file holds a JSON {_kind(rows)}, not a list; {shape}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise TableFileError(f"{path}: record {number} is a JSON {_kind(row)}, not an object; {shape}")
    return [Record(path, f"record {number}", row) for number, row in enumerate(rows, start=1)]


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _parquet_records(path: Path, content: bytes) -> list[Record]:
    """Records of Parquet rows, counted from 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise TableFileError(f"{path}: not a readable Parquet file ({reason}); write it again") from error
    _refuse_repeated(str(path), table.column_names)
    names = [name for name in table.column_names if not name.startswith("__index_level_")]
    return [Record(path, f"row {number}", row) for number, row in enumerate(table.select(names).to_pylist(), start=1)]


_PARSERS: dict[str, Callable[[Path, bytes], list[Record]]] = {
    ".csv": _csv_records,
    ".parquet": _parquet_records,
    ".json": _json_records,
}
