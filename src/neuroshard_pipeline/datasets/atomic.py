"""Kedro's own datasets with atomic saves.

Kedro loads the alphabetically last version folder that contains the file. If a process is killed during an ordinary
save, the next run therefore loads a truncated file. These subclasses write to a hidden file beside the target and then
rename it; a rename is atomic.
"""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from kedro_datasets.json import JSONDataset
from kedro_datasets.pandas import ParquetDataset
from kedro_datasets.text import TextDataset


def staged_path(target: Path) -> Path:
    """A hidden path beside `target`. Kedro does not find it when it looks for versions or partitions."""
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a hidden path that the caller writes to; then flush that file to disk and rename it atomically to `target`.

    If the caller raises an error, `target` stays as it is.
    """
    staged = staged_path(target)
    try:
        yield staged
        descriptor = os.open(staged, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)


class AtomicSave:
    """Mixin that makes the `save` of a Kedro dataset atomic. The dataset must be on a local file system."""

    def save(self, data: Any) -> None:
        """Write the data atomically."""
        dataset: Any = self
        stock: Any = super()
        writer = copy.copy(dataset)
        with replacing(Path(dataset._get_save_path())) as staged:
            writer._get_save_path = lambda: PurePosixPath(staged)
            stock.save.__wrapped__(writer, data)  # Kedro wraps `save` of both classes; once is enough.


class AtomicParquetDataset(AtomicSave, ParquetDataset):
    """`pandas.ParquetDataset` with an atomic save."""


class AtomicJSONDataset(AtomicSave, JSONDataset):
    """`json.JSONDataset` with an atomic save."""


class AtomicTextDataset(AtomicSave, TextDataset):
    """`text.TextDataset` with an atomic save."""
