"""Drawn ids in files, so that a campaign draws the ids of a table once and not for every measurement.

At full scale, the pool of 856 tables has 890 million ids per batch of 65,536 samples. A GPU of 80 GB keeps only a part
of them (`cuda_bench.KEPT_IDS_SHARE`). To draw all of them takes three minutes: a busy core of a small virtual
machine draws 5 million per second.

A file holds the offsets (B + 1,) and then the indices (N,) of one table for one batch of B samples with N ids, as in
`tables.ids.TableIds`.
"""

import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from tqdm import tqdm

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.chunks import digest
from neuroshard_pipeline.measurement.identity import MEASUREMENT_VERSION
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import batch_indices, with_profile
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.workers import WorkerParams, map_items

_LARGEST_INT32 = 2**31 - 1
#: One batch may take this long. The largest batch of the full-scale pool takes a few seconds.
_DRAW_LIMIT_S = 1800.0


class Batch(NamedTuple):
    """A batch of ids of one table; two shards of one table have the same ids."""

    table: Table
    batch_size: int

    @property
    def content(self) -> tuple[object, ...]:
        """Everything that the ids depend on besides the seed."""
        table = self.table
        return (table.name, table.num_embeddings, table.pooling_factor, table.unique_rows, table.reuse, self.batch_size)

    @property
    def num_ids(self) -> int:
        """Number of ids, N."""
        return batch_indices(self.table.pooling_factor, self.batch_size)

    @property
    def dtype(self) -> type[np.signedinteger]:
        """int32 if it holds all row numbers and offsets, otherwise int64."""
        return np.int32 if max(self.table.num_embeddings, self.num_ids) <= _LARGEST_INT32 else np.int64

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return (self.num_ids + self.batch_size + 1) * np.dtype(self.dtype).itemsize


def batches_of(samples: Iterable[ComputeSample]) -> list[Batch]:
    """The different batches of ids that samples look up."""
    batches: dict[tuple[object, ...], Batch] = {}
    for sample in samples:
        for shard in sample.shards:
            batch = Batch(shard.table, sample.batch_size)
            batches.setdefault(batch.content, batch)
    return list(batches.values())


@final
@dataclass(frozen=True)
class IdFiles:
    """The files of one folder, with ids of one seed. The folder is created when the first file is written.

    Without a folder, every call draws the ids.
    """

    folder: Path | None
    seed: int

    def __call__(self, batch: Batch) -> tuple[IntArray, IntArray]:
        """Indices (N,) and offsets (B + 1,) of a batch, from its file if there is one.

        Otherwise the ids are drawn and, if there is a folder, the file is written.
        """
        if self.folder is None:
            return self._drawn(batch)
        path = self._path(self.folder, batch)
        if path.exists():
            content = np.fromfile(path, dtype=batch.dtype)
            return content[batch.batch_size + 1 :], content[: batch.batch_size + 1]
        indices, offsets = self._drawn(batch)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        np.concatenate([offsets, indices]).astype(batch.dtype).tofile(part)
        os.replace(part, path)  # a killed worker leaves no incomplete file of this name
        return indices, offsets

    def missing(self, batches: Iterable[Batch]) -> list[Batch]:
        """Those of the batches that have no file yet; none of them if there is no folder."""
        return [batch for batch in batches if self.folder and not self._path(self.folder, batch).exists()]

    def draw_missing(self, batches: Sequence[Batch], workers: int) -> None:
        """Write the files of all batches that have none; without a folder, do nothing.

        Raises:
            MeasurementError: the disk has too little room, or a batch cannot be drawn.
        """
        missing = sorted(self.missing(batches), key=lambda batch: -batch.num_ids)
        if not missing or self.folder is None:
            return
        _require_room(self.folder, sum(batch.num_bytes for batch in missing))
        params = WorkerParams(engine="local", address=None, workers=min(workers, len(missing)), timeout_s=_DRAW_LIMIT_S)
        outcomes = map_items(_Writer(self), missing, params)
        for outcome in tqdm(outcomes, total=len(missing), unit="table", desc="draw ids", disable=None):
            if outcome.error:
                raise MeasurementError(f"the ids of {missing[outcome.index]} cannot be drawn: {outcome.error}")

    def _drawn(self, batch: Batch) -> tuple[IntArray, IntArray]:
        ids = draw_ids(with_profile(batch.table, batch.batch_size), batch.batch_size, self.seed)
        return ids.indices, ids.offsets

    def _path(self, folder: Path, batch: Batch) -> Path:
        return folder / f"{digest(MEASUREMENT_VERSION, self.seed, *batch.content)}.{np.dtype(batch.dtype).name}"


@dataclass(frozen=True)
class _Writer:
    files: IdFiles

    def __call__(self, batch: Batch) -> None:
        self.files(batch)


def _require_room(folder: Path, needed: int) -> None:
    existing = (path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(next(existing)).free
    if needed > free:
        raise MeasurementError(
            f"the ids of this campaign need {needed} bytes, and the disk of ids_folder {folder} has {free} left; "
            "choose a folder on another disk, or measure fewer tables and batch sizes"
        )


def files_of(params: ComputeMeasureParams, seed: int) -> IdFiles:
    """The files of ids that a campaign uses."""
    return IdFiles(Path(params.ids_folder) if params.ids_folder else None, seed)
