"""Kedro's own datasets with atomic saves.

Kedro loads the version folder that comes last in alphabetical order and contains the file. A process that is killed
while it saves would therefore leave a truncated newest version. These subclasses write to a hidden file beside the
target and rename it, which is atomic.
"""

import copy
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from kedro.io import AbstractVersionedDataset
from kedro_datasets.json import JSONDataset
from kedro_datasets.pandas import ParquetDataset
from kedro_datasets.plotly import JSONDataset as PlotlyJSONDataset
from kedro_datasets.text import TextDataset


def save_atomically(dataset: AbstractVersionedDataset, stock: type[AbstractVersionedDataset], data: Any) -> None:
    """Write `data` to a staged file with `stock`'s own save, then rename the file to the dataset's save path.

    Args:
        dataset: an instance of a subclass of `stock`, on a local file system.
        stock: Kedro's dataset class, which defines the file format.
        data: the data to save.
    """
    target = Path(dataset._get_save_path())
    staged = staged_path(target)
    writer: Any = copy.copy(dataset)
    writer._get_save_path = lambda: PurePosixPath(staged)
    undecorated: Any = stock.save
    try:
        undecorated.__wrapped__(writer, data)  # Kedro already wraps the save of the subclass.
        commit(staged, target)
    finally:
        staged.unlink(missing_ok=True)


def staged_path(target: Path) -> Path:
    """A hidden file beside `target` that no search for versions or partitions finds."""
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


def commit(staged: Path, target: Path) -> None:
    """Flush `staged` to disk and rename it to `target` atomically."""
    descriptor = os.open(staged, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    staged.replace(target)


class AtomicParquetDataset(ParquetDataset):
    """`pandas.ParquetDataset` with an atomic save."""

    def save(self, data: pd.DataFrame) -> None:
        """Write the frame atomically."""
        save_atomically(self, ParquetDataset, data)


class AtomicJSONDataset(JSONDataset):
    """`json.JSONDataset` with an atomic save."""

    def save(self, data: Any) -> None:
        """Write the document atomically."""
        save_atomically(self, JSONDataset, data)


class AtomicPlotlyDataset(PlotlyJSONDataset):
    """`plotly.JSONDataset` with an atomic save."""

    def save(self, data: Any) -> None:
        """Write the figure atomically."""
        save_atomically(self, PlotlyJSONDataset, data)


class AtomicTextDataset(TextDataset):
    """`text.TextDataset` with an atomic save."""

    def save(self, data: str) -> None:
        """Write the text atomically."""
        save_atomically(self, TextDataset, data)
