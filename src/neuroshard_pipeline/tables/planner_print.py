"""Reads tables from the text that TorchRec's planner prints (`EmbeddingStats`, the part `Parameter Info`).

The text has a line of column names, a line of dashes, and one line per table. Columns are separated by two or more
spaces; every line may begin with the name of a logger and `#`. The text does not say the tables' data type, which is
assumed to be fp32, and no reuse profile.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.records import Record

#: Files that are read as printed text.
PRINTED_SUFFIXES = (".log", ".txt")

_NAME, _WIDTH, _ROWS = "FQN", "Emb Dim (CW Dim)", "Hash Size"
_IDS, _OUTPUT, _WEIGHTED, _FEATURES = "Sum Pooling Factor", "Output", "Weighted", "Features"
_NEEDED = (_NAME, _WIDTH, _ROWS, _IDS, _OUTPUT, _FEATURES)


def printed_records(path: Path) -> list[Record]:
    """One record per table, with the columns of a table file.

    Raises:
        TableFileError: the file cannot be read, or has no `Parameter Info` with the needed columns.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise TableFileError(f"{path}: {error.strerror}; give the file that holds the planner's output") from None
    rows = list(_rows(lines))
    if not rows:
        remedy = "store the planner's output with debug=True, or give a .csv, .parquet or .json file"
        raise TableFileError(f"{path}: has no lines of TorchRec's planner with {', '.join(_NEEDED)}; {remedy}")
    return [Record(path, f"line {number}", _table(row)) for number, row in rows]


def _rows(lines: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Number of the line, and the cells by column, of every line below the column names, until one of another form."""
    names: list[str] = []
    for number, line in enumerate(lines, start=1):
        cells = re.split(r"\s{2,}", re.sub(r"^[^#]*#|#\s*$", "", line).strip())
        if set(_NEEDED) <= set(cells):
            names = cells
        elif len(cells) != len(names):
            names = []
        elif not set(cells[0]) <= {"-"}:
            yield number, dict(zip(names, cells, strict=True))


def _table(row: dict[str, str]) -> dict[str, str]:
    module, _, _ = row[_NAME].rpartition(".")
    return {
        "table": row[_NAME],
        "num_embeddings": row[_ROWS],
        "embedding_dim": row[_WIDTH].split()[0],
        "pooling_factor": row[_IDS],
        "num_features": row[_FEATURES],
        "pooling": "none" if row[_OUTPUT] == "sequence" else "sum",
        "is_weighted": str(row.get(_WEIGHTED) == "weighted").lower(),
        "module": module,
    }
