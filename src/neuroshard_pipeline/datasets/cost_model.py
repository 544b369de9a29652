"""A cost model as a versioned dataset: a folder of safetensors weights and a JSON description."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from kedro.io import AbstractVersionedDataset, Version

from neuroshard_pipeline.datasets.atomic import staged_path


class CostModelDataset(AbstractVersionedDataset[Any, Any]):
    """Any class with `save(folder)` and a class method `load(folder)`.

    The folder is written under a hidden name and renamed, so that a killed save never leaves a broken newest version.
    """

    def __init__(
        self, filepath: str, model: str, version: Version | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        """Remember where versions lie and which class reads them.

        Args:
            filepath: folder of the versions.
            model: dotted path of the model class.
            version: Kedro's load and save version.
            metadata: for kedro-viz.
        """
        super().__init__(PurePosixPath(filepath), version)
        module, _, name = model.rpartition(".")
        self._model = getattr(importlib.import_module(module), name)
        self.metadata = metadata

    def load(self) -> Any:
        """Load the pinned or newest version; never unpickles."""
        return self._model.load(Path(self._get_load_path()))

    def save(self, data: Any) -> None:
        """Write a new version."""
        target = Path(self._get_save_path())
        staged = staged_path(target)
        staged.mkdir(parents=True)
        try:
            data.save(staged)
            os.replace(staged, target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _exists(self) -> bool:
        return Path(self._get_load_path()).is_dir()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._filepath, "model": self._model.__name__, "version": self._version}
