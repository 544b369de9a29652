"""Describes one fused lookup by the numbers that its time on a GPU depends on.

Shapes: S shards of one fused lookup, 17 reuse bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, NUM_REUSE_BINS, REUSE_BIN_EDGES, Shard

#: Where the weights are. `device`: GPU memory. `managed`: host memory that the GPU reads over its host link (UVM).
#: `managed_caching`: host memory with a cache of rows in GPU memory.
Placement = Literal["device", "managed", "managed_caching"]

#: Ids per looked-up row in the middle of a reuse bin, before they are scaled to the number of ids of the batch.
_MIDDLE_OF_BIN = np.array([1.0, 2.0, *(0.75 * edge for edge in REUSE_BIN_EDGES[2:]), 1.5 * REUSE_BIN_EDGES[-1]])
_EXACT_BINS = 2  # rows that are looked up once or twice


@dataclass(frozen=True)
class Lookup:
    """One fused lookup of S shards, forward and backward.

    Attributes:
        ids: ids per shard, (S,).
        bags: outputs per shard: one per sample and feature or, if rows are not pooled, one per id, (S,).
        dims: columns per shard, (S,).
        element_bytes: bytes of one weight, (S,).
        rows_of_bin: distinct rows that are looked up, per reuse bin, (S, 17).
        optimizer: `none`, `sgd`, `rowwise_adagrad`, `adagrad` or `adam`; it runs inside the backward pass.
        weighted: whether every id has a weight, whose gradient is computed, too.
        output_bytes: bytes of one number of the outputs and their gradients.
        placement: where the weights are.
        cached_share: size of the cache of `managed_caching`, as a share of the weights.
    """

    ids: FloatArray
    bags: FloatArray
    dims: FloatArray
    element_bytes: FloatArray
    rows_of_bin: FloatArray
    optimizer: str = "sgd"
    weighted: bool = False
    output_bytes: float = 4.0
    placement: Placement = "device"
    cached_share: float = 1.0

    @cached_property
    def unique_rows(self) -> FloatArray:
        """Distinct rows that are looked up, (S,)."""
        return np.asarray(self.rows_of_bin.sum(axis=1))

    @cached_property
    def ids_of_bin(self) -> FloatArray:
        """Ids that look up the rows of each reuse bin, (S, 17); they sum to `ids`."""
        spread = self.rows_of_bin * _MIDDLE_OF_BIN
        exact = spread[:, :_EXACT_BINS].sum(axis=1)
        rest = spread[:, _EXACT_BINS:].sum(axis=1)
        scalable = (rest > 0) & (exact < self.ids)
        scale = np.where(scalable, (self.ids - exact) / np.where(rest > 0, rest, 1.0), 1.0)
        spread[:, _EXACT_BINS:] *= scale[:, None]
        return np.asarray(spread * (self.ids / spread.sum(axis=1))[:, None])

    @cached_property
    def row_bytes(self) -> FloatArray:
        """Bytes of one row, (S,)."""
        return self.dims * self.element_bytes


def lookup_of_shards(shards: Sequence[Shard], batch_size: int, optimizer: str) -> Lookup:
    """The fused lookup of the shards of one rank, with pooled fp32 outputs and all weights in GPU memory.

    Args:
        shards: one or several shards, each with all rows of its table (`tables.lookups` makes such a shard from a row
            shard or a replica). A table without a reuse profile gets the default profile for `batch_size`.
        batch_size: samples whose ids are looked up: the global batch, or that of one rank for replicas.
        optimizer: one of `tables.task.OPTIMIZERS`.
    """
    tables = [with_profile(shard.table, batch_size) for shard in shards]
    ids = np.array([max(batch_size * table.pooling_factor, 1.0) for table in tables])
    reuse = np.array([table.reuse for table in tables], dtype=np.float64).reshape(-1, NUM_REUSE_BINS)
    unique_rows = np.minimum([table.unique_rows or 1.0 for table in tables], ids)
    return Lookup(
        ids=ids,
        bags=np.array([float(batch_size * table.num_features) for table in tables]),
        dims=np.array([float(shard.embedding_dim) for shard in shards]),
        element_bytes=np.array([float(BYTES_PER_ELEMENT[table.data_type]) for table in tables]),
        rows_of_bin=reuse * (unique_rows / reuse.sum(axis=1))[:, None],
        optimizer=optimizer,
    )
