"""Reads a user's embedding tables from a CSV, Parquet or JSON file."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from neuroshard_pipeline.errors import TableFileError, TaskError
from neuroshard_pipeline.tables.curve_points import CurvePoints, points_of_text
from neuroshard_pipeline.tables.planner_print import PRINTED_SUFFIXES, printed_records
from neuroshard_pipeline.tables.records import Record, read_records
from neuroshard_pipeline.tables.table import POPULARITY_COLUMN, PROFILE_COLUMNS, REUSE_COLUMNS, TABLE_DEFAULTS, Table

REQUIRED_COLUMNS: tuple[str, ...] = ("table", "num_embeddings", "embedding_dim", "pooling_factor")
OPTIONAL_COLUMNS: tuple[str, ...] = (*PROFILE_COLUMNS, POPULARITY_COLUMN, *TABLE_DEFAULTS)


def read_tables(path: str | Path) -> list[Table]:
    """Read embedding tables, in their order, from a `.csv`, `.parquet` or `.json` file (JSON: a list of objects).

    A `.txt` or `.log` file holds what TorchRec's planner has printed (`planner_print`).

    The file has the columns `REQUIRED_COLUMNS` and optionally `OPTIONAL_COLUMNS`. It has all 18 columns of the reuse
    profile or none. If the profile of a table is unknown, all 18 cells are empty. An empty cell of a column in
    `TABLE_DEFAULTS` stands for the default; an empty `popularity` means that the curve is not known.

    Raises:
        TableFileError: the file is missing or invalid; the message names the file, the problem and the remedy.
    """
    file = Path(str(path))  # a value that is not a path, such as None, gets into the error
    records = printed_records(file) if file.suffix.lower() in PRINTED_SUFFIXES else read_records(file)
    check_columns(records, REQUIRED_COLUMNS, OPTIONAL_COLUMNS)
    return tables_of_records(records)


def tables_of_records(records: list[Record]) -> list[Table]:
    """One table per record; columns that do not describe a table are ignored.

    Raises:
        TableFileError: a value is impossible, or a name occurs twice.
    """
    tables: list[Table] = []
    places: dict[str, str] = {}
    for record in records:
        table = _table(record)
        if table.name in places:
            raise record.problem("table", f"already occurs in {places[table.name]}; give every table a unique name")
        places[table.name] = record.where
        tables.append(table)
    return tables


def check_columns(records: list[Record], required: Sequence[str], optional: Sequence[str]) -> None:
    """Check that no column is unknown or missing, and that the reuse profile is complete or absent.

    Raises:
        TableFileError: a column is unknown or missing; the message names it.
    """
    path, known = records[0].path, (*required, *optional)
    given = {name: record.where for record in reversed(records) for name in record.values}
    missing, unknown = [name for name in required if name not in given], list[str]()
    for name, where in given.items():
        if name not in known:
            typed = str(name).strip().lower()
            near = get_close_matches(typed, known, 1, 0.8) or get_close_matches(typed, missing or known, 1, 0.5)
            place = f" in {where}" if path.suffix.lower() == ".json" else ""  # rows of other formats have all columns
            unknown.append(f"{name!r}{place}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    if unknown:
        lacks = f"missing columns are {', '.join(missing)}" if missing else f"columns are {', '.join(known)}"
        names = ("column " if len(unknown) == 1 else "columns ") + ", ".join(unknown)
        raise TableFileError(f"{path}: unknown {names}; {lacks}; rename or delete each unknown column")
    for name in missing:
        raise TableFileError(f"{path}: column {name!r} is missing; required columns are {', '.join(required)}")
    profile = [name for name in PROFILE_COLUMNS if name in given]
    absent = [name for name in PROFILE_COLUMNS if name not in given]
    if profile and absent:
        remedy = f"give unique_rows and all of {REUSE_COLUMNS[0]} to {REUSE_COLUMNS[-1]}, or none of these columns"
        raise TableFileError(f"{path}: column {absent[0]!r} is missing while {profile[0]!r} is given; {remedy}")


def _table(record: Record) -> Table:
    unique_rows, *reuse = _profile(record) or (None,)
    try:
        return Table(
            record.text("table", "give every table a unique name"),
            record.count("num_embeddings"),
            record.count("embedding_dim"),
            record.number("pooling_factor"),
            unique_rows,
            tuple(reuse) or None,
            popularity=None if record.is_empty(POPULARITY_COLUMN) else _popularity(record),
            **optional_values(record, TABLE_DEFAULTS, _READERS),
        )
    except TaskError as error:
        raise TableFileError(f"{record.path}: {record.where}: {error}") from error


def optional_values(
    record: Record, defaults: Mapping[str, Any], readers: Mapping[str, Callable[[Record, str], Any]]
) -> dict[str, Any]:
    """The values of optional columns by name, read by `readers`; an empty or missing cell stands for the default."""
    return {
        name: default if record.is_empty(name) else readers[name](record, name) for name, default in defaults.items()
    }


def _popularity(record: Record) -> CurvePoints:
    form = "give rows and shares of the ids, such as 80:0.41 1200:0.77"
    try:
        return points_of_text(record.text(POPULARITY_COLUMN, form))
    except ValueError:
        raise record.problem(POPULARITY_COLUMN, f"is no popularity curve; {form}") from None


def _word(record: Record, column: str) -> str:
    return record.text(column).lower()


_READERS: dict[str, Callable[[Record, str], Any]] = {
    "data_type": _word,
    "pooling": _word,
    "module": Record.text,
    "num_features": Record.count,
    "is_weighted": Record.flag,
    "compute_kernel": _word,
    "cache_load_factor": Record.number,
}


def _profile(record: Record) -> tuple[float, ...]:
    """Return unique rows and reuse shares of a record, or an empty tuple if all cells of the profile are empty."""
    given = [name for name in PROFILE_COLUMNS if not record.is_empty(name)]
    absent = [name for name in PROFILE_COLUMNS if name not in given]
    if given and absent:
        problem = f"is empty while {given[0]!r} is given; fill or empty all 18 cells of the profile"
        raise record.problem(absent[0], problem)
    return tuple(record.number(name) for name in given)
