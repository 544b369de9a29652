"""A user's table file as a read-only dataset."""

from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset

from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.table_file import read_tables


class TableFileDataset(AbstractDataset[None, list[Table]]):
    """Embedding tables from a CSV, Parquet or JSON file. Reading validates every value."""

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path = Path(filepath)
        self.metadata = metadata

    def load(self) -> list[Table]:
        """Read the tables.

        Raises:
            TableFileError: the file is invalid. Kedro wraps this error in a DatasetError.
        """
        return read_tables(self._path)

    def save(self, data: None) -> None:
        """Refuse, because table files belong to the user."""
        raise NotImplementedError(f"{self._path} is an input file and cannot be written")

    def _exists(self) -> bool:
        return self._path.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._path)}
