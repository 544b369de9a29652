"""Reads a user's embedding tables from CSV, Parquet or JSON, and refuses what cannot be meant."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neuroshard_pipeline.errors import TableFileError, TaskError
from neuroshard_pipeline.tables.records import Record, read_records
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, REUSE_COLUMNS, Table

REQUIRED_COLUMNS: tuple[str, ...] = ("table", "num_embeddings", "embedding_dim", "pooling_factor")
OPTIONAL_COLUMNS: tuple[str, ...] = ("unique_rows", *REUSE_COLUMNS, "data_type")

_PROFILE_COLUMNS = ("unique_rows", *REUSE_COLUMNS)
_DEFAULT_DATA_TYPE = "fp32"

#: What a number looks like, for errors; columns not named here hold counts.
_EXAMPLES = {"pooling_factor": "1.5", **dict.fromkeys(REUSE_COLUMNS, "0.25")}


def read_tables(path: str | Path) -> list[Table]:
    """Embedding tables from a `.csv`, `.parquet` or `.json` file (JSON: a list of objects).

    Columns are `REQUIRED_COLUMNS` and optionally `OPTIONAL_COLUMNS`. A reuse profile is all of its 18 columns or
    none; its cells may be empty for tables whose profile is unknown. An empty `data_type` means fp32.

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
    """One table per record; other columns than a table's are passed over.

    Raises:
        TableFileError: a value is impossible, or a name stands twice.
    """
    tables: list[Table] = []
    places: dict[str, str] = {}
    for record in records:
        table = _table(path, record)
        if table.name in places:
            raise TableFileError(
                f"{path}: {record.where}, column 'table': {table.name!r} already stands in {places[table.name]}; "
                "give every table a name of its own"
            )
        places[table.name] = record.where
        tables.append(table)
    return tables


def check_columns(path: Path, records: list[Record], required: Sequence[str], optional: Sequence[str]) -> None:
    """All rows together must give the required columns, no unknown ones, and all or none of the reuse profile.

    Raises:
        TableFileError: names the column.
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
    profile = [name for name in _PROFILE_COLUMNS if name in given]
    if profile and len(profile) < len(_PROFILE_COLUMNS):
        absent = next(name for name in _PROFILE_COLUMNS if name not in given)
        raise TableFileError(
            f"{path}: column {absent!r} is missing while {profile[0]!r} is given; a reuse profile needs unique_rows "
            f"and all of {REUSE_COLUMNS[0]} to {REUSE_COLUMNS[-1]}, or none of them"
        )


def _table(path: Path, record: Record) -> Table:
    """One table; whatever is wrong with it names file and row."""
    cell = Cells(path, record)
    unique_rows, reuse = _profile(cell)
    try:
        return Table(
            name=cell.name(),
            num_embeddings=cell.count("num_embeddings"),
            embedding_dim=cell.count("embedding_dim"),
            pooling_factor=cell.number("pooling_factor"),
            unique_rows=unique_rows,
            reuse=reuse,
            data_type=cell.data_type(),
        )
    except TaskError as error:
        raise TableFileError(f"{path}: {record.where}: {error}") from error


def _profile(cell: Cells) -> tuple[float | None, tuple[float, ...] | None]:
    """The row's reuse profile, or two times None where all of its cells are empty."""
    given = [name for name in _PROFILE_COLUMNS if not cell.is_empty(name)]
    if not given:
        return None, None
    if len(given) < len(_PROFILE_COLUMNS):
        absent = next(name for name in _PROFILE_COLUMNS if name not in given)
        raise cell.problem(absent, f"is empty while {given[0]!r} is given; fill or empty all 18 cells of the profile")
    reuse = tuple(cell.number(name) for name in REUSE_COLUMNS)
    for name, share in zip(REUSE_COLUMNS, reuse, strict=True):
        if not 0 <= share <= 1:
            raise cell.problem(name, "is not a share between 0 and 1; give the share of unique rows in this reuse bin")
    if not math.isclose(sum(reuse), 1.0, abs_tol=0.01):
        raise TableFileError(
            f"{cell.path}: {cell.record.where}, columns {REUSE_COLUMNS[0]} to {REUSE_COLUMNS[-1]}: the "
            f"{NUM_REUSE_BINS} shares sum to {sum(reuse):.4f}, not to 1; divide them by their sum"
        )
    return cell.number("unique_rows"), reuse


class Cells:
    """Typed access to the raw values of one row."""

    def __init__(self, path: Path, record: Record) -> None:
        self.path = path
        self.record = record

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
        """The table's name; whole numbers are taken as text."""
        value = self.record.values.get("table")
        if self.is_empty("table"):
            raise self.problem("table", "is empty; give every table a unique name")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.problem("table", "is not a name; give a text")
        return str(value).strip()

    def data_type(self) -> str:
        """Storage type in lower case."""
        if self.is_empty("data_type"):
            return _DEFAULT_DATA_TYPE
        value = self.record.values["data_type"]
        if not isinstance(value, str):
            raise self.problem("data_type", f"is not a storage type; write {_DEFAULT_DATA_TYPE!r}, for example")
        return value.strip().lower()

    def number(self, column: str) -> float:
        """A finite number."""
        return float(self._numeric(column))

    def count(self, column: str) -> int:
        """A whole number; `1000.0` is one, `1000.5` is not."""
        value = self._numeric(column)
        if value != int(value):
            raise self.problem(column, "is not a whole number; rows and columns are counted, so round it")
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
    """The number that a raw value means, or None; floats overflow to infinity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip() if isinstance(value, str) else value
    if isinstance(text, str):
        if "_" in text:  # Python would take 1_000 for a number, nobody else would
            return None
        if text.removeprefix("+").isascii() and text.removeprefix("+").isdigit() and len(text) <= 30:
            return int(text)
        try:
            return float(text)
        except ValueError:
            return None
    return text
