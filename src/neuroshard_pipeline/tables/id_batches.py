"""Reads batches of ids, and derives pooling factors, reuse profiles and popularity curves of tables from them.

The file is a click log in Criteo's format, or a Parquet file with one column per table. A row of the Parquet file is a
sample, and a cell is the list of ids that look up the table in this sample. Shape: N ids of a batch.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.criteo import NUM_CATEGORIES, hashed_ids, read_criteo
from neuroshard_pipeline.tables.popularity import curve_of_counts, id_counts
from neuroshard_pipeline.tables.profile import reuse_counts
from neuroshard_pipeline.tables.table import Table

#: A table that no id looks up counts as if all batches together had this number of ids for it.
_LEAST_IDS = 0.5

#: Names of the arguments on which the number of samples that are read depends.
_NAMES = "num_batches or batch_size"


def counted_tables(
    path: str | Path, tables: Sequence[Table], batch_size: int, num_batches: int, names: str = _NAMES
) -> list[Table]:
    """The tables with pooling factors and profiles, and for sequence tables curves, from a file's first batches.

    Their own statistics are replaced (`counted`); `read_id_batches` documents the arguments and the errors.
    """
    batches = read_id_batches(path, tables, batch_size, num_batches, names)
    return [counted(table, batches[table.name], batch_size) for table in tables]


def counted(table: Table, batches: Sequence[IntArray], batch_size: int) -> Table:
    """The table as `observed` in batches of ids (N,); a sequence table also gets the popularity curve of these ids."""
    seen = observed(table, batches, batch_size)
    if table.pooling != "none" or not any(len(ids) for ids in batches):
        return seen
    return replace(seen, popularity=curve_of_counts(id_counts(batches, table.num_embeddings)).points)


def observed(table: Table, batches: Sequence[IntArray], batch_size: int) -> Table:
    """The table with the mean pooling factor and reuse profile of batches of ids (N,), without a popularity curve.

    If no batch has ids, all `batches` together count as half an id, because a pooling factor of 0 is not allowed.
    """
    rows, ids = np.sum([reuse_counts(own) for own in batches], axis=0, dtype=float)
    if not ids.sum():
        rows[0] = ids[0] = _LEAST_IDS
    return replace(
        table,
        pooling_factor=float(ids.sum()) / (len(batches) * batch_size),
        unique_rows=float(rows.sum()) / len(batches),
        reuse=tuple((rows / rows.sum()).tolist()),
        popularity=None,
        has_assumed_profile=False,
    )


def read_id_batches(
    path: str | Path, tables: Sequence[Table], batch_size: int, num_batches: int, names: str = _NAMES
) -> dict[str, list[IntArray]]:
    """The ids of the first batches of a file, by table.

    Args:
        path: a file with the suffix `.parquet`, or a click log in Criteo's format, whose 26 categories are hashed to
            the rows of 26 tables in their order (`criteo.hashed_ids`).
        tables: the tables of the model.
        batch_size: samples of a batch.
        num_batches: number of batches.
        names: how the caller's user calls `num_batches` and `batch_size`, for the error about a file that is too short.

    Raises:
        TableFileError: the file is missing or too short, there are not 26 tables for a click log, or a Parquet file is
            malformed, has no column of a table or has an id that is not a row.
        CriteoFileError: a click log is damaged or has a malformed line.
    """
    path = Path(path)
    if not path.is_file():
        raise TableFileError(f"{path}: no such file; give a click log in Criteo's format or a Parquet file of ids")
    read = _parquet_batches if path.suffix.lower() == ".parquet" else _criteo_batches
    found = list(itertools.islice(read(path, tables, batch_size), num_batches))
    if len(found) < num_batches:
        held = f"{path}: holds {len(found)} whole batches of {batch_size} samples, not {num_batches}"
        raise TableFileError(f"{held}; lower {names}, or give a longer file")
    return {table.name: [batch[at] for batch in found] for at, table in enumerate(tables)}


def bag_lengths(path: str | Path, tables: Sequence[Table], num_samples: int) -> dict[str, IntArray]:
    """Numbers of samples with 0, 1, 2, ... ids of a table, in a Parquet file's first samples; {} for a click log.

    Tables that several features look up are left out, because a cell holds the ids of all of them.
    """
    if Path(path).suffix.lower() != ".parquet":
        return {}
    import pyarrow.parquet as pq

    names = [table.name for table in tables if table.num_features == 1]
    cells = next(pq.ParquetFile(path).iter_batches(num_samples, columns=names))
    return {name: np.bincount(cells[name].value_lengths().to_numpy(zero_copy_only=False)) for name in names}


def _criteo_batches(path: Path, tables: Sequence[Table], batch_size: int) -> Iterator[list[IntArray]]:
    if len(tables) != NUM_CATEGORIES:
        problem = f"{path}: its {NUM_CATEGORIES} categories need a table each, but {len(tables)} are given"
        raise TableFileError(f"{problem}; give a Parquet file with a column of ids for every table")
    for batch in read_criteo(path, batch_size):
        if len(batch.labels) == batch_size:
            categories = enumerate(tables)
            yield [hashed_ids(batch.categories[:, at], t.num_embeddings, at).indices for at, t in categories]


def _parquet_batches(path: Path, tables: Sequence[Table], batch_size: int) -> Iterator[list[IntArray]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        missing = [table.name for table in tables if table.name not in file.schema_arrow.names]
        if missing:
            raise TableFileError(f"{path}: has no column {missing[0]!r}; it needs a column of ids for every table")
        for batch in file.iter_batches(batch_size, columns=[table.name for table in tables]):
            if batch.num_rows == batch_size:
                yield [_column(path, batch.column(table.name), table) for table in tables]
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise TableFileError(f"{path}: not a readable Parquet file ({reason}); write it again") from error


def _column(path: Path, cells: object, table: Table) -> IntArray:
    """All ids of one column."""
    import pyarrow as pa

    if not isinstance(cells, pa.ListArray | pa.LargeListArray) or not pa.types.is_integer(cells.type.value_type):
        raise TableFileError(f"{path}: column {table.name!r} does not hold lists of whole numbers; give lists of ids")
    ids = np.asarray(cells.flatten().to_numpy(zero_copy_only=False), dtype=np.int64)
    if len(ids) and not 0 <= ids.min() <= ids.max() < table.num_embeddings:
        rows = f"but the table has {table.num_embeddings} rows; number the rows from 0"
        raise TableFileError(f"{path}: column {table.name!r} has ids {ids.min()}..{ids.max()}, {rows}")
    return ids
