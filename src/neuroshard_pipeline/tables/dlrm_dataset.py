"""Reads the public files of facebookresearch/dlrm_datasets, `fbgemm_t856_bs65536*.pt` and `.pt.gz`.

Such a file is a tuple (indices, offsets, lengths) saved by torch. `indices` are the ids of all tables, table by table.
There is one bag per table and sample: `offsets` are the starts of the bags in `indices`, and `lengths` the numbers of
ids in the bags. Shapes below use T tables, B samples and N ids.
"""

import gzip
import pickle
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.frames import POOL_COLUMNS
from neuroshard_pipeline.tables.profile import reuse_histogram

_Integers = NDArray[np.integer]


def read_dlrm_dataset(path: str | Path, batch_size: int | None = None) -> pd.DataFrame:
    """Read the tables of a dlrm_datasets file (`.pt` or `.pt.gz`) as a table pool.

    `num_embeddings` is one more than the largest id of the table in all samples, whatever `batch_size` is. Profiles
    describe the first `batch_size` samples, by default all. Tables that these samples never look up are left out,
    because a pooling factor is above 0. The name of a table contains its number in the file. A whole file holds 7 GB of
    ids; they are memory-mapped if the file has the zip format of `torch.save`. A `.gz` file is first unpacked to a
    temporary file.

    Returns:
        `table, num_embeddings, pooling_factor, unique_rows, reuse_00 … reuse_16`, one row per table.

    Raises:
        TableFileError: the file is missing, cannot be unpacked, or is not of this format; `batch_size` is not between 1
            and its number of samples; or the described samples look up no table.
    """
    path = Path(path)
    if not path.is_file():
        raise TableFileError(f"{path}: no such file; download one from facebookresearch/dlrm_datasets")
    with tempfile.TemporaryDirectory(prefix="dlrm_datasets_") as folder:
        plain = _unpacked(path, Path(folder)) if path.suffix == ".gz" else path
        return _pool(path, *_checked(path, _load(path, plain)), batch_size)


def _pool(
    path: Path, indices: _Integers, offsets: _Integers, shape: tuple[int, int], batch_size: int | None
) -> pd.DataFrame:
    num_tables, samples = shape
    taken = samples if batch_size is None else batch_size
    if not 1 <= taken <= samples:
        raise TableFileError(f"{path}: batch_size {taken} must be between 1 and the {samples} samples of the file")
    rows = []
    for table in range(num_tables):
        start = table * samples
        of_batch = indices[offsets[start] : offsets[start + taken]].astype(np.int64)
        if len(of_batch):
            num_embeddings = int(indices[offsets[start] : offsets[start + samples]].max()) + 1
            unique_rows, reuse, _ = reuse_histogram(of_batch)
            rows.append((f"table_{table:03d}", num_embeddings, len(of_batch) / taken, float(unique_rows), *reuse))
    if not rows:
        remedy = "another file" if taken == samples else "a larger batch_size"
        raise TableFileError(f"{path}: its first {taken} samples look up none of {num_tables} tables; use {remedy}")
    return pd.DataFrame(rows, columns=list(POOL_COLUMNS))


def _unpacked(packed: Path, folder: Path) -> Path:
    try:
        with gzip.open(packed, "rb") as source, (folder / packed.stem).open("wb") as target:
            shutil.copyfileobj(source, target, length=2**24)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TableFileError(f"{packed}: not a complete gzip file ({error}); download it again") from error
    except OSError as error:
        raise TableFileError(f"{packed}: cannot be unpacked to {folder} ({error.strerror})") from error
    return folder / packed.stem


def _load(path: Path, plain: Path) -> Any:
    import torch  # this import takes a second, and nothing else in `tables` needs it

    try:
        # Only the zip format of torch.save can be memory-mapped; files of old torch versions are read into memory.
        return torch.load(plain, weights_only=True, map_location="cpu", mmap=zipfile.is_zipfile(plain))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise TableFileError(f"{path}: not a tuple of tensors saved by torch ({reason}); download it again") from error


def _checked(path: Path, content: Any) -> tuple[_Integers, _Integers, tuple[int, int]]:
    """Check that the parts agree; return indices (N,), offsets (T * B + 1,), and the shape (T, B) of the lengths."""
    indices, offsets, lengths = _arrays(path, content)
    if 0 in lengths.shape:
        raise TableFileError(f"{path}: lengths have shape {lengths.shape}: no table or no sample; download it again")
    if offsets.shape != (lengths.size + 1,):
        raise TableFileError(f"{path}: holds {offsets.size} offsets, not tables * samples + 1 = {lengths.size + 1}")
    if not np.array_equal(np.diff(offsets), lengths.reshape(-1)) or lengths.min() < 0 or offsets[0] != 0:
        raise TableFileError(f"{path}: offsets are not the running sum of lengths; download the file again")
    if offsets[-1] != len(indices):
        raise TableFileError(f"{path}: {len(indices)} indices, but offsets end at {offsets[-1]}; download it again")
    if len(indices) and indices.min() < 0:
        raise TableFileError(f"{path}: index {indices.min()} is negative; ids are row numbers from 0 on")
    return indices, offsets, (lengths.shape[0], lengths.shape[1])


def _arrays(path: Path, content: Any) -> list[_Integers]:
    if not isinstance(content, tuple | list) or len(content) != 3:
        raise TableFileError(f"{path}: holds a {type(content).__name__}, not a tuple (indices, offsets, lengths)")
    arrays = []
    for name, part, dimensions in zip(("indices", "offsets", "lengths"), content, (1, 1, 2), strict=True):
        if not hasattr(part, "numpy") or part.is_floating_point() or part.dtype.is_complex:
            raise TableFileError(f"{path}: {name} are not a tensor of whole numbers; download the file again")
        if part.dim() != dimensions:
            raise TableFileError(f"{path}: {name} have shape {tuple(part.shape)}, not {dimensions} dimension(s)")
        arrays.append(part.numpy())
    return arrays
