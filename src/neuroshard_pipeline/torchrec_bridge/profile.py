"""Id statistics of real batches: pooling factors, unique rows, reuse profiles and popularity curves.

Shapes: S samples, N ids, G global batches.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.id_batches import counted
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402


def profile_from_batches(
    batches: Iterable[KeyedJaggedTensor],
    tables: Sequence[Table],
    batch_size: int,
    feature_names: Mapping[str, Sequence[str]] | None = None,
) -> list[Table]:
    """`tables` with the pooling factor, unique rows and reuse profile of real batches.

    Sequence tables also get the popularity curve of all batches together.

    Unique rows and reuse depend on the batch size. The samples of all `batches` are therefore concatenated and cut into
    global batches of `batch_size`; remaining samples are not used. Every global batch is measured separately.
    Pooling factors and unique rows are means over the global batches; reuse shares are means weighted by unique rows.

    Args:
        batches: batches of any size, such as a few batches of each rank, together at least one global batch. If the
            model takes several tensors per batch, give all of them: a feature is read from the tensors that hold it.
        tables: the tables; their present id statistics are replaced.
        batch_size: the global batch size of the plan.
        feature_names: table → the features that look it up; other tables have one feature with their own name.

    Raises:
        TaskError: there are no batches; or they lack a feature, hold more global batches of one feature of a table than
            of another, fewer samples than one global batch, an id outside its table, or no id of a table, and the
            message names the table.
    """
    kept = list(batches)
    if not kept:
        raise TaskError("no batches were given to take id statistics from")
    feature_names = feature_names or {}
    return [_measured(table, feature_names.get(table.name, (table.name,)), kept, batch_size) for table in tables]


def _measured(table: Table, features: Sequence[str], batches: Sequence[KeyedJaggedTensor], batch_size: int) -> Table:
    by_feature = [_global_batches(table, feature, batches, batch_size) for feature in features]
    num_batches = len(by_feature[0])
    if len({len(of_feature) for of_feature in by_feature}) > 1:
        numbers = ", ".join(f"{name!r} {len(own)}" for name, own in zip(features, by_feature, strict=True))
        raise TaskError(f"table {table.name!r}: its features have different numbers of global batches: {numbers}")
    global_batches = [np.concatenate(ids) for ids in zip(*by_feature, strict=True)]
    if not any(ids.size for ids in global_batches):
        held = f"{num_batches} global batches of {batch_size} samples hold no ids of it"
        raise TaskError(f"table {table.name!r}: {held}; give more batches, or leave the table out of the profile")
    return counted(table, global_batches, batch_size)


def _global_batches(
    table: Table, feature: str, batches: Sequence[KeyedJaggedTensor], batch_size: int
) -> list[IntArray]:
    """The ids of one feature, one array per global batch."""
    lengths, ids = _read_feature(table, feature, batches)
    num_batches = lengths.size // batch_size
    if num_batches == 0:
        held = f"the batches hold {lengths.size} samples, fewer than one global batch of {batch_size}"
        raise TaskError(f"table {table.name!r}: {held}; give more batches")
    if ids.size and not 0 <= ids.min() <= ids.max() < table.num_embeddings:
        outside = int(ids.max()) if ids.max() >= table.num_embeddings else int(ids.min())
        raise TaskError(
            f"table {table.name!r}: feature {feature!r} holds the id {outside}, outside 0..{table.num_embeddings - 1}"
        )
    ends = np.concatenate([[0], np.cumsum(lengths)])[: num_batches * batch_size + 1 : batch_size]  # (G + 1,)
    return [ids[start:end] for start, end in itertools.pairwise(ends)]


def _read_feature(table: Table, feature: str, batches: Sequence[KeyedJaggedTensor]) -> tuple[IntArray, IntArray]:
    """The number of ids per sample (S,) and the ids (N,) of one feature over all batches."""
    found = [batch[feature] for batch in batches if feature in batch.keys()]  # noqa: SIM118, not a mapping
    if not found:
        known = sorted({key for batch in batches for key in batch.keys()})  # noqa: SIM118
        shown = ", ".join(known[:10]) + " and more" * (len(known) > 10)
        raise TaskError(f"table {table.name!r}: no batch holds its feature {feature!r}; they hold {shown}")
    lengths = np.concatenate([jagged.lengths().cpu().numpy() for jagged in found]).astype(np.int64)
    ids = np.concatenate([jagged.values().cpu().numpy() for jagged in found]).astype(np.int64)
    return lengths, ids
