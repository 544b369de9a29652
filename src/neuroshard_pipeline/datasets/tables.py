"""A user's table file as a read-only dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset

from neuroshard_pipeline.tables import Table, read_tables


class TableFileDataset(AbstractDataset[None, list[Table]]):
    """Embedding tables from CSV, Parquet or JSON, checked value by value while they are read."""

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path = Path(filepath)
        self.metadata = metadata

    def load(self) -> list[Table]:
        """Read the tables.

        Raises:
            TableFileError: (as the cause of Kedro's DatasetError) names file, row, value and remedy.
        """
        return read_tables(self._path)

    def save(self, data: None) -> None:
        """Refuse: table files belong to the user."""
        raise NotImplementedError(f"{self._path} is an input and never written")

    def _exists(self) -> bool:
        return self._path.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._path)}
