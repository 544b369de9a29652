"""Reads a user's embedding tables from a CSV, Parquet or JSON file."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuroshard_pipeline.errors import TableFileError, TaskError
from neuroshard_pipeline.tables.records import Record, read_records
from neuroshard_pipeline.tables.table import DEFAULT_DATA_TYPE, PROFILE_COLUMNS, REUSE_COLUMNS, Table

REQUIRED_COLUMNS: tuple[str, ...] = ("table", "num_embeddings", "embedding_dim", "pooling_factor")
OPTIONAL_COLUMNS: tuple[str, ...] = (*PROFILE_COLUMNS, "data_type")

#: Example of a number for error messages; all other columns hold counts.
_EXAMPLES = {"pooling_factor": "1.5", **dict.fromkeys(REUSE_COLUMNS, "0.25")}


def read_tables(path: str | Path) -> list[Table]:
    """Embedding tables from a `.csv`, `.parquet` or `.json` file (JSON: a list of objects).

    The file has the columns `REQUIRED_COLUMNS` and optionally `OPTIONAL_COLUMNS`. It has all 18 columns of the reuse
    profile or none; all 18 cells of a table whose profile is unknown are empty. An empty `data_type` means fp32.

    Args:
        path: the file.

    Returns:
        The tables in the order of the file.

    Raises:
        TableFileError: one message naming file, row, column, value and remedy.
    """
    path = Path(path)
    records = read_records(path)
    check_columns(path, records, REQUIRED_COLUMNS, OPTIONAL_COLUMNS)
    return tables_of_records(path, records)


def tables_of_records(path: Path, records: list[Record]) -> list[Table]:
    """One table per record; columns that are not a table's are ignored.

    Raises:
        TableFileError: a value is impossible, or a name occurs twice.
    """
    tables: list[Table] = []
    places: dict[str, str] = {}
    for record in records:
        table = _table(Cells(path, record))
        if table.name in places:
            raise TableFileError(
                f"{path}: {record.where}, column 'table': {table.name!r} already occurs in {places[table.name]}; "
                "give every table a unique name"
            )
        places[table.name] = record.where
        tables.append(table)
    return tables


def check_columns(path: Path, records: list[Record], required: Sequence[str], optional: Sequence[str]) -> None:
    """Check that the records have the required columns, no unknown columns, and all or none of the reuse profile.

    Raises:
        TableFileError: a column is unknown or missing; the message names it.
    """
    known = (*required, *optional)
    given = {name: record.where for record in reversed(records) for name in record.values}
    for name, where in given.items():
        if name not in known:
            near = difflib.get_close_matches(str(name).strip().lower(), known, n=1, cutoff=0.5)
            advice = f"did you mean {near[0]!r}" if near else f"known are {', '.join(required)}"
            place = f" in {where}" if path.suffix.lower() == ".json" else ""  # elsewhere every row has every column
            raise TableFileError(f"{path}: unknown column {name!r}{place}; {advice}; rename or delete it")
    for name in required:
        if name not in given:
            raise TableFileError(f"{path}: column {name!r} is missing; needed are {', '.join(required)}")
    profile = [name for name in PROFILE_COLUMNS if name in given]
    if profile and len(profile) < len(PROFILE_COLUMNS):
        absent = next(name for name in PROFILE_COLUMNS if name not in given)
        raise TableFileError(
            f"{path}: column {absent!r} is missing while {profile[0]!r} is given; a reuse profile needs unique_rows "
            f"and all of {REUSE_COLUMNS[0]} to {REUSE_COLUMNS[-1]}, or none of them"
        )


def _table(cells: Cells) -> Table:
    profile = _profile(cells)
    try:
        return Table(
            name=cells.name(),
            num_embeddings=cells.count("num_embeddings"),
            embedding_dim=cells.count("embedding_dim"),
            pooling_factor=cells.number("pooling_factor"),
            unique_rows=profile[0] if profile else None,
            reuse=profile[1:] if profile else None,
            data_type=cells.data_type(),
        )
    except TaskError as error:
        raise TableFileError(f"{cells.path}: {cells.record.where}: {error}") from error


def _profile(cells: Cells) -> tuple[float, ...]:
    """Unique rows and reuse shares of a row; nothing if all of its cells are empty."""
    given = [name for name in PROFILE_COLUMNS if not cells.is_empty(name)]
    if given and len(given) < len(PROFILE_COLUMNS):
        absent = next(name for name in PROFILE_COLUMNS if name not in given)
        raise cells.problem(absent, f"is empty while {given[0]!r} is given; fill or empty all 18 cells of the profile")
    return tuple(cells.number(name) for name in given)


@dataclass(frozen=True)
class Cells:
    """Typed access to the raw values of one row of a file."""

    path: Path
    record: Record

    def problem(self, column: str, what: str) -> TableFileError:
        """The error that names file, row, column and value."""
        value = self.record.values.get(column)
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
        return TableFileError(f"{self.path}: {self.record.where}, column {column!r}: {shown} {what}")

    def is_empty(self, column: str) -> bool:
        """Whether the row gives no value."""
        value = self.record.values.get(column)
        return value is None or (isinstance(value, str) and not value.strip())

    def name(self) -> str:
        """Name of the table; whole numbers are converted to text."""
        value = self.record.values.get("table")
        if self.is_empty("table"):
            raise self.problem("table", "is empty; give every table a unique name")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.problem("table", "is not a name; give a text")
        return str(value).strip()

    def data_type(self) -> str:
        """Storage type in lower case."""
        if self.is_empty("data_type"):
            return DEFAULT_DATA_TYPE
        value = self.record.values["data_type"]
        if not isinstance(value, str):
            raise self.problem("data_type", f"is not a storage type; write {DEFAULT_DATA_TYPE!r}, for example")
        return value.strip().lower()

    def number(self, column: str) -> float:
        """A finite number."""
        return float(self._numeric(column))

    def count(self, column: str) -> int:
        """A whole number; `1000.0` is accepted, `1000.5` is refused."""
        value = self._numeric(column)
        if value != int(value):
            raise self.problem(column, "is not a whole number; give the exact count")
        return int(value)

    def _numeric(self, column: str) -> int | float:
        value = self.record.values.get(column)
        if self.is_empty(column):
            raise self.problem(column, "is empty; give a number")
        number = _parse_number(value)
        if number is None:
            hint = f"is not a number; write digits only, such as {_EXAMPLES.get(column, '1000')}"
            if isinstance(value, str) and _parse_number(value.replace(",", "").replace("_", "")) is not None:
                hint = "is not a plain number; write it without separators between digits, such as 1000000"
            raise self.problem(column, hint)
        if not math.isfinite(number):
            raise self.problem(column, "is not a finite number; give the table's real value")
        return number


def _parse_number(value: Any) -> int | float | None:
    """The number that a raw value represents, or None; floats overflow to infinity."""
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
