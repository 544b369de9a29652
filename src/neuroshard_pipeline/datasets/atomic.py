"""Stock datasets whose saves are atomic.

Kedro takes the lexically newest version folder that holds the file for the current one, so a process killed in the
middle of a save would leave a truncated newest version. These subclasses write to a hidden name beside the target
and rename it, which either happens or does not.
"""

from __future__ import annotations

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
    """Let `stock`'s own save write `data` to a staged name, then rename it to the dataset's save path.

    Args:
        dataset: an instance of a subclass of `stock`, on a local filesystem.
        stock: the class whose file format is used.
        data: what is saved.
    """
    target = Path(dataset._get_save_path())
    staged = staged_path(target)
    writer: Any = copy.copy(dataset)
    writer._get_save_path = lambda: PurePosixPath(staged)
    undecorated: Any = stock.save
    try:
        undecorated.__wrapped__(writer, data)  # Kedro's logging and error handling already run around our own save
        commit(staged, target)
    finally:
        staged.unlink(missing_ok=True)


def staged_path(target: Path) -> Path:
    """A hidden sibling of `target` that no glob for versions or partitions matches."""
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


def commit(staged: Path, target: Path) -> None:
    """Flush `staged` to the disk and give it its final name in one step."""
    descriptor = os.open(staged, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    staged.replace(target)


class AtomicParquetDataset(ParquetDataset):
    """`pandas.ParquetDataset` with an atomic save."""

    def save(self, data: pd.DataFrame) -> None:
        """Write all of the frame or nothing."""
        save_atomically(self, ParquetDataset, data)


class AtomicJSONDataset(JSONDataset):
    """`json.JSONDataset` with an atomic save."""

    def save(self, data: Any) -> None:
        """Write all of the document or nothing."""
        save_atomically(self, JSONDataset, data)


class AtomicPlotlyDataset(PlotlyJSONDataset):
    """`plotly.JSONDataset` with an atomic save."""

    def save(self, data: Any) -> None:
        """Write all of the figure or nothing."""
        save_atomically(self, PlotlyJSONDataset, data)


class AtomicTextDataset(TextDataset):
    """`text.TextDataset` with an atomic save."""

    def save(self, data: str) -> None:
        """Write all of the text or nothing."""
        save_atomically(self, TextDataset, data)
