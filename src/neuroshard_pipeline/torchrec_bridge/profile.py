"""What a sample of real batches says of the tables: pooling factors, unique rows and reuse profiles.

Legend of shapes: S samples, N ids, B samples of the global batch.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.sharders.torchrec import require_torchrec
from neuroshard_pipeline.tables.profile import reuse_histogram
from neuroshard_pipeline.tables.table import Table

require_torchrec()
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402

IdArray = NDArray[np.int64]


def profile_from_batches(
    batches: Iterable[KeyedJaggedTensor],
    tables: Sequence[Table],
    batch_size: int,
    feature_names: Mapping[str, Sequence[str]] | None = None,
) -> list[Table]:
    """`tables` with pooling factor, unique rows and reuse profile as measured on real batches.

    Unique rows and reuse belong to a batch size, so the samples of all `batches` are laid end to end and cut into
    global batches of `batch_size`; what is left over is not used. Each global batch is measured on its own, and the
    means are taken: of the ids per sample, of the unique rows, and of the reuse shares weighted by unique rows.

    Args:
        batches: batches of any size, such as a few of each rank's; together at least one global batch. A model that
            takes several tensors per batch gives them all: a feature is read from those that hold it.
        tables: the tables; what they say of ids so far is replaced.
        batch_size: the global batch that the plan is for.
        feature_names: table -> the features that look it up; a table that is not named has one feature of its name.

    Raises:
        TaskError: the batches lack a feature, hold fewer samples than a global batch or an id outside its table, or
            no id at all for a table; the message names it.
    """
    kept = list(batches)
    if not kept:
        raise TaskError("no batches were given to take id statistics from")
    feature_names = feature_names or {}
    return [_measured(table, feature_names.get(table.name, (table.name,)), kept, batch_size) for table in tables]


def _measured(table: Table, features: Sequence[str], batches: Sequence[KeyedJaggedTensor], batch_size: int) -> Table:
    parts = [_global_batches(table, feature, batches, batch_size) for feature in features]
    unique_rows, reuse, num_ids = [], [], 0
    for of_features in zip(*parts, strict=True):
        ids = np.concatenate(of_features)
        num_ids += ids.size
        if ids.size:
            rows, share_of_rows, _ = reuse_histogram(ids)
            unique_rows.append(rows)
            reuse.append(rows * np.asarray(share_of_rows))
    num_batches = len(parts[0])
    if not unique_rows:
        raise TaskError(
            f"table {table.name!r}: no ids in {num_batches} global batches of {batch_size} samples; give more batches, "
            "or leave the table out of the profile"
        )
    return dataclasses.replace(
        table,
        pooling_factor=num_ids / (num_batches * batch_size),
        unique_rows=sum(unique_rows) / len(unique_rows),
        reuse=tuple((np.sum(reuse, axis=0) / sum(unique_rows)).tolist()),
    )


def _global_batches(table: Table, feature: str, batches: Sequence[KeyedJaggedTensor], batch_size: int) -> list[IdArray]:
    """The ids of one feature, one array per global batch."""
    lengths, ids = _feature(table, feature, batches)
    num_batches = lengths.size // batch_size
    if num_batches == 0:
        raise TaskError(
            f"table {table.name!r}: the batches hold {lengths.size} samples, fewer than one global batch of "
            f"{batch_size}; give more batches"
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < table.num_embeddings:
        worst = int(ids.max()) if ids.max() >= table.num_embeddings else int(ids.min())
        raise TaskError(
            f"table {table.name!r}: feature {feature!r} holds the id {worst}, outside 0..{table.num_embeddings - 1}"
        )
    ends = np.concatenate([[0], np.cumsum(lengths)])[: num_batches * batch_size + 1 : batch_size]  # (batches + 1,)
    return [ids[start:end] for start, end in itertools.pairwise(ends)]


def _feature(table: Table, feature: str, batches: Sequence[KeyedJaggedTensor]) -> tuple[IdArray, IdArray]:
    """Ids per sample (S,) and ids (N,) of one feature over all batches."""
    lengths, ids = [], []
    for batch in batches:
        if feature in batch.keys():  # noqa: SIM118, not a mapping
            jagged = batch[feature]
            lengths.append(jagged.lengths().cpu().numpy().astype(np.int64))
            ids.append(jagged.values().cpu().numpy().astype(np.int64))
    if not lengths:
        found = sorted({key for batch in batches for key in batch.keys()})  # noqa: SIM118
        raise TaskError(
            f"table {table.name!r}: no batch holds its feature {feature!r}; they hold {', '.join(found[:10])}"
            f"{' and more' if len(found) > 10 else ''}"
        )
    return np.concatenate(lengths), np.concatenate(ids)
