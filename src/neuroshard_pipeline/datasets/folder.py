"""Versioned datasets that consist of a folder of files: a cost model, or one JSON document per task.

A folder is written under a hidden name and then renamed, so that a killed process never leaves an incomplete version.
"""

import importlib
import json
import logging
import shutil
from abc import abstractmethod
from pathlib import Path, PurePosixPath
from typing import Any

from kedro.io import AbstractVersionedDataset, Version

from neuroshard_pipeline.cost_models.shipped import shipped_folder
from neuroshard_pipeline.datasets.atomic import staged_path

_LOGGER = logging.getLogger(__name__)


class _FolderDataset(AbstractVersionedDataset[Any, Any]):
    """Every version is a folder; subclasses define its files."""

    def __init__(self, filepath: str, version: Version | None = None, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(PurePosixPath(filepath), version)
        self.metadata = metadata

    @abstractmethod
    def _read(self, folder: Path) -> Any:
        """Read the data from the files in `folder`."""

    @abstractmethod
    def _write(self, folder: Path, data: Any) -> None:
        """Write `data` into the empty `folder`."""

    def load(self) -> Any:
        """Load the pinned or newest version."""
        return self._read(Path(self._get_load_path()))

    def save(self, data: Any) -> None:
        """Write a new version atomically."""
        target = Path(self._get_save_path())
        staged = staged_path(target)
        staged.mkdir(parents=True)
        try:
            self._write(staged, data)
            staged.replace(target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _exists(self) -> bool:
        return Path(self._get_load_path()).is_dir()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._filepath, "version": self._version}


class CostModelDataset(_FolderDataset):
    """An object whose class has `save(folder)` and a class method `load(folder)`. Pickle is not used."""

    def __init__(
        self,
        filepath: str,
        model: str,
        version: Version | None = None,
        metadata: dict[str, Any] | None = None,
        shipped: str | None = None,
        optional: bool = False,
    ) -> None:
        """Set the folder of the versions and the class that loads them.

        Args:
            filepath: folder of the versions.
            model: dotted path of the class of the object.
            version: Kedro's pair of load version and save version.
            metadata: metadata for kedro-viz.
            shipped: name of the cost models in the package to load as long as no version exists; None to load none.
            optional: whether to load None if there is neither a version nor a shipped model.
        """
        super().__init__(filepath, version, metadata)
        module, _, name = model.rpartition(".")
        self._model = getattr(importlib.import_module(module), name)
        self._shipped = None if shipped is None else shipped_folder(shipped) / PurePosixPath(filepath).name
        self._optional = optional

    @property
    def is_optional(self) -> bool:
        """Whether a run can start without a version, because the model is optional or a shipped one takes its place."""
        return self._optional or self._has_shipped

    @property
    def _has_shipped(self) -> bool:
        return self._shipped is not None and self._shipped.is_dir()

    def load(self) -> Any:
        """Load the pinned or newest version.

        If no version exists, load the shipped model and log that. If the package ships none, an optional dataset loads
        None.
        """
        if self.is_optional and not (self._version and self._version.load) and not self.exists():
            if not self._has_shipped:
                return None
            _LOGGER.info("%s has no version; the shipped model %s is loaded", self._filepath, self._shipped)
            return self._read(Path(str(self._shipped)))
        return _FolderDataset.load.__wrapped__(self)  # type: ignore[attr-defined]

    def _read(self, folder: Path) -> Any:
        return self._model.load(folder)

    def _write(self, folder: Path, data: Any) -> None:
        data.save(folder)


class JSONFolderDataset(_FolderDataset):
    """A dictionary `{name: document}`, stored as one JSON file per name."""

    def _read(self, folder: Path) -> dict[str, Any]:
        return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}

    def _write(self, folder: Path, data: dict[str, Any]) -> None:
        for name, document in data.items():
            (folder / f"{name}.json").write_text(json.dumps(document, indent=1))
