"""Reads the public files of facebookresearch/dlrm_datasets, `fbgemm_t856_bs65536*.pt` and `.pt.gz`.

Such a file is a tuple (indices, offsets, lengths) saved by torch: the ids of all tables, one table after the other;
where the bag of every table and sample starts; and how many ids it has. Shapes: T tables, B samples, N ids in all.
"""

from __future__ import annotations

import gzip
import pickle
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.frames import POOL_COLUMNS
from neuroshard_pipeline.tables.ids import TableIds
from neuroshard_pipeline.tables.profile import reuse_histogram

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class DlrmDataset:
    """Ids of one batch of every table.

    Attributes:
        indices: (N,), tables one after the other.
        offsets: (T * B + 1,), where the bag of table t and sample b starts: entry t * B + b.
        num_tables: T.
        batch_size: B.
    """

    indices: NDArray[np.integer]
    offsets: IntArray
    num_tables: int
    batch_size: int

    def table_ids(self, table: int, batch_size: int | None = None) -> TableIds:
        """Ids of one table, of all samples or of the first `batch_size` ones."""
        samples = self.batch_size if batch_size is None else batch_size
        first = table * self.batch_size
        offsets = self.offsets[first : first + samples + 1]
        indices = self.indices[offsets[0] : offsets[-1]].astype(np.int64)
        return TableIds(indices, offsets - offsets[0])


def read_dlrm_dataset(path: str | Path, batch_size: int | None = None) -> pd.DataFrame:
    """Table pool of a dlrm_datasets file: what it says about its tables, as far as ids can tell.

    `num_embeddings` is the largest id of the whole file plus one. Tables that the batch never looks up have no pooling
    factor and are left out; the others keep their number in the name.

    Args:
        path: a `.pt` or `.pt.gz` file.
        batch_size: take only this many samples, from the first on; None takes all.

    Returns:
        `table, num_embeddings, pooling_factor, unique_rows, reuse_00 … reuse_16`, profiles at that batch size.

    Raises:
        TableFileError: the file is missing or not of this format, or has fewer samples than asked for.
    """
    with open_dlrm_dataset(path) as dataset:
        samples = dataset.batch_size if batch_size is None else batch_size
        if not 1 <= samples <= dataset.batch_size:
            raise TableFileError(
                f"{path}: batch_size {batch_size} must be between 1 and the {dataset.batch_size} samples of the file"
            )
        rows = [_pool_row(dataset, table, samples) for table in range(dataset.num_tables)]
    pool = pd.DataFrame([row for row in rows if row is not None], columns=list(POOL_COLUMNS))
    if pool.empty:
        raise TableFileError(f"{path}: none of its {len(rows)} tables is looked up in {samples} samples; take more")
    return pool


@contextmanager
def open_dlrm_dataset(path: str | Path) -> Iterator[DlrmDataset]:
    """The ids of a dlrm_datasets file, mapped from disk rather than read (7 GB at full scale).

    A `.gz` file is first unpacked, in a stream, to a temporary file that is gone when the context ends.

    Raises:
        TableFileError: the file is missing or not of this format.
    """
    path = Path(path)
    if not path.is_file():
        raise TableFileError(f"{path}: no such file; download one from facebookresearch/dlrm_datasets")
    with tempfile.TemporaryDirectory(prefix="dlrm_datasets_") as folder:
        plain = path
        if path.suffix == ".gz":
            plain = Path(folder) / path.stem
            _unpack(path, plain)
        yield _checked(path, _load(path, plain))


def _unpack(packed: Path, plain: Path) -> None:
    try:
        with gzip.open(packed, "rb") as source, plain.open("wb") as target:
            shutil.copyfileobj(source, target, length=2**24)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TableFileError(f"{packed}: not a complete gzip file ({error}); download it again") from error
    except OSError as error:
        raise TableFileError(f"{packed}: cannot be unpacked to {plain.parent} ({error.strerror})") from error


def _load(path: Path, plain: Path) -> Any:
    import torch  # takes a second, and nothing else in this package needs it

    try:
        # Only the zip format of torch.save can be mapped; files of old torch versions are read.
        return torch.load(plain, weights_only=True, map_location="cpu", mmap=zipfile.is_zipfile(plain))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TableFileError(
            f"{path}: not a tuple of tensors saved by torch ({reason}); download the file again"
        ) from error


def _checked(path: Path, content: Any) -> DlrmDataset:
    """The data set in `content`, if its three parts belong together."""
    indices, offsets, lengths = _parts(path, content)
    if lengths.ndim != 2 or 0 in lengths.shape:
        raise TableFileError(f"{path}: lengths have shape {lengths.shape}, not (tables, batch size)")
    if offsets.shape != (lengths.size + 1,):
        raise TableFileError(f"{path}: {offsets.size} offsets, not tables * batch size + 1 = {lengths.size + 1}")
    if not np.array_equal(np.diff(offsets), lengths.reshape(-1)) or lengths.min() < 0 or offsets[0] != 0:
        raise TableFileError(f"{path}: offsets are not the running sum of lengths; download the file again")
    if offsets[-1] != len(indices):
        raise TableFileError(f"{path}: {len(indices)} indices, but offsets end at {offsets[-1]}; download it again")
    if len(indices) and indices.min() < 0:
        raise TableFileError(f"{path}: index {indices.min()} is negative; ids are row numbers from 0 on")
    return DlrmDataset(indices, offsets.astype(np.int64), *lengths.shape)


def _parts(path: Path, content: Any) -> list[NDArray[np.integer]]:
    """The three arrays."""
    if not isinstance(content, tuple | list) or len(content) != 3:
        raise TableFileError(f"{path}: holds a {type(content).__name__}, not a tuple (indices, offsets, lengths)")
    parts = []
    for name, part, dimensions in zip(("indices", "offsets", "lengths"), content, (1, 1, 2), strict=True):
        if not hasattr(part, "numpy") or part.is_floating_point() or part.dtype.is_complex:
            raise TableFileError(f"{path}: {name} are not a tensor of whole numbers; download the file again")
        if part.dim() != dimensions:
            raise TableFileError(f"{path}: {name} have shape {tuple(part.shape)}, not {dimensions} dimension(s)")
        parts.append(part.numpy())
    return parts


def _pool_row(dataset: DlrmDataset, table: int, batch_size: int) -> tuple[Any, ...] | None:
    """What the ids say about one table, or None without ids."""
    indices = dataset.table_ids(table, batch_size).indices
    if not len(indices):
        return None
    num_embeddings = int(dataset.table_ids(table).indices.max()) + 1
    unique_rows, reuse, _ = reuse_histogram(indices)
    return (f"table_{table:03d}", num_embeddings, len(indices) / batch_size, float(unique_rows), *reuse.tolist())
