"""The global batches of a training run: drawn from the tables' reuse profiles, or read from a Criteo file."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.tables.criteo import NUM_CATEGORIES, NUM_INTEGERS, hashed_ids, read_criteo
from neuroshard_pipeline.tables.ids import TableIds, draw_ids
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainCheckError

#: Number of dense features of a sample: the integers of a Criteo file, or as many random numbers.
DENSE_FEATURES = NUM_INTEGERS

#: Separates the random numbers of dense features from other uses of the same seed.
_DENSE_STREAM = 1


@dataclass(frozen=True)
class Batch:
    """One global batch of B samples: dense features (B, 13), ids of every table in order, and labels 0 or 1 (B,)."""

    dense: NDArray[np.float32]
    ids: tuple[TableIds, ...]
    labels: NDArray[np.float32]


def drawn_batches(tables: Sequence[Table], batch_size: int, num_batches: int, seed: int) -> tuple[Batch, ...]:
    """Batches with ids from the tables' reuse profiles; the label is 1 if the first dense feature is positive."""
    drawn = []
    for batch_seed in range(seed, seed + num_batches):
        rng = np.random.default_rng([_DENSE_STREAM, batch_seed])
        dense = rng.normal(size=(batch_size, DENSE_FEATURES)).astype(np.float32)
        ids = tuple(draw_ids(table, batch_size, batch_seed) for table in tables)
        drawn.append(Batch(dense, ids, (dense[:, 0] > 0).astype(np.float32)))
    return tuple(drawn)


def criteo_batches(path: str, tables: Sequence[Table], batch_size: int, num_batches: int) -> tuple[Batch, ...]:
    """The first batches of a Criteo file; its category i is hashed to a row of table i, for 26 tables.

    Raises:
        TrainCheckError: there are not 26 tables, or the file is too short.
        CriteoFileError: the file is missing or malformed.
    """
    if len(tables) != NUM_CATEGORIES:
        raise TrainCheckError(f"{path}: its {NUM_CATEGORIES} categories need a table each, but {len(tables)} are given")
    found = []
    for read in itertools.islice(read_criteo(path, batch_size), num_batches):
        if len(read.labels) < batch_size:
            break
        ids = [hashed_ids(read.categories[:, at], table.num_embeddings, at) for at, table in enumerate(tables)]
        found.append(Batch(read.integers, tuple(ids), read.labels))
    if len(found) < num_batches:
        raise TrainCheckError(
            f"{path}: holds {len(found)} whole batches of {batch_size} lines, not num_batches {num_batches}; lower "
            "num_batches or batch_size, or give a longer file"
        )
    return tuple(found)
