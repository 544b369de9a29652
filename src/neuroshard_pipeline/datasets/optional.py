"""A document that another pipeline may have written, or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset


class NewestJSONDataset(AbstractDataset[None, dict[str, Any]]):
    """The newest version of a versioned JSON document, read-only; an empty one where there is no version.

    For what a pipeline shows if it is there and can do without. It is not versioned itself, so that a run does not
    insist on it.
    """

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        """Remember the path of the versioned dataset.

        Args:
            filepath: as the versioned dataset has it.
            metadata: for kedro-viz.
        """
        self._path = Path(filepath)
        self.metadata = metadata

    def load(self) -> dict[str, Any]:
        """Read the newest version."""
        versions = self._versions()
        return json.loads(versions[-1].read_text()) if versions else {}

    def save(self, data: None) -> None:
        """Refuse: the document is another dataset's."""
        raise NotImplementedError(f"{self._path} is written under another name")

    def _versions(self) -> list[Path]:
        """Documents of all versions, oldest first: `<path>/<version>/<name>`, Kedro's layout."""
        return sorted(self._path.glob(f"*/{self._path.name}"))

    def _exists(self) -> bool:
        return bool(self._versions())

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._path)}
