"""TorchRec's cost formulas, and the bandwidths and coefficients in them; `perf_config` gives fitted ones to TorchRec.

TorchRec 1.8 prices a shard by the bytes of its ids, of the rows that it reads, and of its outputs, and a rank by the
sum over its shards:

    forward       = (c_ids * ids + c_rows * rows + c_outputs * outputs) / bandwidth of lookups
    backward      = the same with three other coefficients
    communication = bytes / bandwidth of the collective, once per direction

These formulas ignore launches of kernels and the reuse of rows.

Shapes: N shard sets, each of them the shards of one rank; D = 2 directions (forward, backward); 3 kinds of bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Shard

ShardSets = Sequence[Sequence[Shard]]

#: With `use_min_dim_for_lookup`, TorchRec's forward formula counts the reads of a narrower column shard as if it had
#: this many columns.
LEAST_WIDTH = 32

_BYTES_PER_ID = 8


@dataclass(frozen=True)
class LookupFormula:
    """TorchRec's formula for lookups: a bandwidth, and coefficients (D, 3) of the bytes of ids, rows and outputs.

    The forward formula counts at least `least_width` columns for every row that it reads.
    """

    bytes_per_ms: float
    coefficients: FloatArray
    least_width: int

    def costs_ms(self, sets: ShardSets, batch_size: int) -> FloatArray:
        """Forward and backward cost (N, D) of shard sets."""
        read = (summed_bytes(sets, batch_size, self.least_width), summed_bytes(sets, batch_size, 0))
        costs = [each @ row for each, row in zip(read, self.coefficients, strict=True)]
        return np.stack(costs, axis=1) / self.bytes_per_ms


@dataclass(frozen=True)
class FittedNumbers:
    """The bandwidths and coefficients of TorchRec's formulas for one task or kind of tasks.

    The formulas of shards whose table is cut by rows, and of replicas, are None if they are that of column shards
    (`lookups`). `bytes_per_ms` are by TorchRec's name of the collective, and by whether it spans several hosts.
    """

    lookups: LookupFormula
    row_lookups: LookupFormula | None
    replica_lookups: LookupFormula | None
    bytes_per_ms: Mapping[tuple[str, bool], float]


def summed_bytes(sets: ShardSets, batch_size: int, least_width: int) -> FloatArray:
    """Bytes (N, 3) of the ids, rows and outputs of shard sets; ids of `batch_size` samples are looked up.

    Row shards and replicas are given as column-wise stand-ins (`tables.lookups.lookup_shard`). At least `least_width`
    columns are counted for the rows.
    """
    return np.array([np.sum([_bytes(s, batch_size, least_width) for s in shards], axis=0) for shards in sets])


def all_reduce_factor(world_size: int, local_world_size: int) -> float:
    """Bytes that TorchRec counts for an all-reduce, divided by the bytes of its buffer."""
    hosts = min(world_size / local_world_size, 2)
    return (2 * hosts - 1) / hosts * (2 if world_size > 2 * local_world_size else 1)


def _bytes(shard: Shard, batch_size: int, least_width: int) -> FloatArray:
    table, width = shard.table, shard.embedding_dim
    element = BYTES_PER_ELEMENT[table.data_type]
    ids = batch_size * table.pooling_factor
    outputs = ids if table.pooling == "none" else batch_size * table.num_features
    return np.array([ids * _BYTES_PER_ID, ids * max(width, least_width) * element, outputs * width * element])
