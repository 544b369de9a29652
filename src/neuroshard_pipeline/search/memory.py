"""Memory of a rank during training: weights, optimizer state, buffers for the batch, and a reserve."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.dedup import exchanged_table
from neuroshard_pipeline.tables.host_memory import cache_slots
from neuroshard_pipeline.tables.placed import placed_shards
from neuroshard_pipeline.tables.step_work import Kernel, kernel_of
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Shard, ShardingType, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: Bytes of one id or offset in the input buffers: FBGEMM takes int64.
ID_BYTES = 8

#: Bytes of one element of a lookup's output, whatever the storage type: FBGEMM returns fp32.
OUTPUT_BYTES = 4

#: Row-wise Adagrad keeps one fp32 number per row of every column shard [FBGEMM EXACT_ROWWISE_ADAGRAD].
ROWWISE_STATE_BYTES = 4

#: Adam keeps two fp32 moments per weight [FBGEMM ADAM].
ADAM_STATE_BYTES = 8

#: Bookkeeping of a cache. For every slot, it stores two int64: the row in the slot and the time of the last lookup
#: [FBGEMM lxu_cache_state, lxu_state]. For every row of the tables, it stores an int32: the number of the row's table
#: [cache_index_table_map].
CACHE_SLOT_BYTES, CACHE_ROW_BYTES = 16, 4

#: Every rank stores, for each hot or host row, its id (int64) and its new row number (int32) [`tiered.index`].
POPULAR_ROW_BYTES = 12


class MemoryModel(Parameters):
    """Computes the bytes that a shard needs on its rank, and the bytes that shards may use on each rank.

    A shard of R rows and D columns needs, in bytes,
    `R * D * (bytes per element) + optimizer state + inputs + outputs`. The optimizer state is 0 for SGD, `4 * R` for
    row-wise Adagrad (one fp32 number per row of each column shard), and `8 * R * D` for Adam (two fp32 moments per
    weight). A replica (`data_parallel`) and a shard of a host tier (`host_row_wise`) also need dense gradients, as
    large as their weights. Replicas are updated by PyTorch's own optimizer. Its Adagrad keeps one fp32 number per
    weight, so that the state of a replica is `4 * R * D`. Hot and host tiers (`tables.tiers`) are an exception: they
    have the same state as a column shard. In addition, every rank stores an index of all hot and host rows, with
    `POPULAR_ROW_BYTES` per row.

    If a table is in host memory, its weights and Adam's moments are there, but row-wise Adagrad's state stays in GPU
    memory [FBGEMM construct_split_state]. `fused_uvm_caching` has a cache in GPU memory. Its `cache_slots` slots are as
    wide as the whole table, even if the shard has fewer columns, and take `CACHE_SLOT_BYTES` more per slot. The cache
    also takes `CACHE_ROW_BYTES` per row of the shard.

    Attributes:
        optimizer_state: whether to count the state of the task's optimizer.
        input_buffers: whether to count the ids and offsets (int64) that a rank receives. A column shard receives the
            ids of all samples. A row shard receives the share `R / num_embeddings` of these ids. A replica receives the
            ids of its rank's samples. A shard of a host tier receives its share of the ids of its host's samples.
        output_buffers: whether to count the outputs of the lookups and their gradients (fp32) for the same samples.
        reserve_fraction: share of a rank's memory that shards may not use.
    """

    optimizer_state: bool
    input_buffers: bool
    output_buffers: bool
    reserve_fraction: Annotated[float, Field(ge=0.0, lt=1.0)]

    def shard_bytes(self, shard: Shard, task: ShardingTask) -> int:
        """Bytes that `shard` needs on its rank with the optimizer and the batch size of `task`."""
        return self._bytes(shard.table, shard.num_rows, shard.embedding_dim, shard.sharding_type, task)

    def table_bytes(self, table: Table, width: int, task: ShardingTask) -> int:
        """Bytes of a column shard of `table` with `width` columns; `width` may exceed `table.embedding_dim`."""
        return self._bytes(table, table.num_embeddings, width, "column_wise", task)

    def row_bytes(self, table: Table, task: ShardingTask) -> float:
        """Bytes of the weights and the optimizer state of one row that has no copies."""
        return float(self.without_buffers().table_bytes(one_row(table), table.embedding_dim, task))

    def without_buffers(self) -> Self:
        """The same model without input and output buffers."""
        return self.model_copy(update={"input_buffers": False, "output_buffers": False})

    def bytes_of_ranks(self, shards: Sequence[Shard], ranks: Sequence[int], task: ShardingTask) -> IntArray:
        """Sum of `shard_bytes` over the shards of every rank, (W,); shard `shards[i]` is on rank `ranks[i]`."""
        placed = placed_shards(shards, ranks, task.world_size)
        sizes = [self.shard_bytes(shard, task) for shard in placed.shards]
        return placed.per_rank(np.array(sizes, dtype=np.int64))

    def host_bytes_of_ranks(self, shards: Sequence[Shard], ranks: Sequence[int], task: ShardingTask) -> IntArray:
        """Sum of `host_bytes` over the shards of every rank, (W,); shard `shards[i]` is on rank `ranks[i]`."""
        placed = placed_shards(shards, ranks, task.world_size)
        sizes = [self.host_bytes(shard, task) for shard in placed.shards]
        return placed.per_rank(np.array(sizes, dtype=np.int64))

    def rank_bytes(self, shards: Iterable[Shard], task: ShardingTask) -> int:
        """Bytes that the shards of one rank need together.

        Cached tables of one kernel (`tables.step_work.kernel_of`) share a cache on a rank. Its slots are as wide as the
        widest of these tables [FBGEMM max_D_cache].
        """
        total, caches = 0, defaultdict[Kernel, list[Shard]](list)
        for shard in shards:
            total += self.shard_bytes(shard, task)
            if shard.table.compute_kernel == "fused_uvm_caching":
                caches[kernel_of(shard)].append(shard)
        return total + sum(map(_padding_bytes, caches.values()))

    def host_bytes(self, shard: Shard, task: ShardingTask) -> int:
        """Bytes of host memory that `shard` needs: 0 for a table in GPU memory, else its weights and Adam's moments."""
        if not shard.table.is_in_host_memory:
            return 0
        has_state = self.optimizer_state and task.optimizer == "adam"
        return shard.weight_bytes + has_state * ADAM_STATE_BYTES * shard.num_rows * shard.embedding_dim

    def _bytes(self, table: Table, rows: int, width: int, sharding_type: ShardingType, task: ShardingTask) -> int:
        is_replica = sharding_type in ("data_parallel", "host_row_wise")
        parts = {"data_parallel": task.world_size, "host_row_wise": task.num_hosts}.get(sharding_type, 1)
        samples = -(-task.batch_size // parts)
        seen = exchanged_table(table, sharding_type, task)
        ids = round(samples * seen.pooling_factor * rows / table.num_embeddings)
        total = _weight_bytes(table, rows, width) * (1 + is_replica)
        if self.optimizer_state and not (table.is_in_host_memory and task.optimizer == "adam"):
            total += _optimizer_bytes(task.optimizer, rows, width, is_replica and table.tier is None)
        if is_replica and table.tier is not None:
            total += POPULAR_ROW_BYTES * rows * (task.ranks_per_host if sharding_type == "host_row_wise" else 1)
        if self.input_buffers:
            total += ID_BYTES * (ids + samples * table.num_features + 1)
        if self.output_buffers:
            outputs = ids if table.pooling == "none" else samples * table.num_features
            total += 2 * OUTPUT_BYTES * outputs * width
        return total

    def limits(self, task: ShardingTask) -> tuple[int, ...]:
        """Bytes that shards may use on each rank: the limits of the task minus the reserve."""
        if self.reserve_fraction == 0.0:
            return task.memory_limits
        return tuple(int(limit * (1.0 - self.reserve_fraction)) for limit in task.memory_limits)


def one_row(table: Table) -> Table:
    """The table with one row only."""
    return replace(table, num_embeddings=1, unique_rows=None, reuse=None, tier=None, popularity=None)


def _optimizer_bytes(optimizer: str, rows: int, width: int, is_replica: bool) -> int:
    """Bytes of optimizer state of one shard."""
    if optimizer == "rowwise_adagrad":
        return ROWWISE_STATE_BYTES * rows * (width if is_replica else 1)
    return ADAM_STATE_BYTES * rows * width if optimizer == "adam" else 0


def _weight_bytes(table: Table, rows: int, width: int) -> int:
    """Bytes of GPU memory for the weights of one shard, or for its part of a cache."""
    if not table.is_in_host_memory:
        return rows * width * BYTES_PER_ELEMENT[table.data_type]
    if table.compute_kernel == "fused_uvm":
        return 0
    slot = table.embedding_dim * BYTES_PER_ELEMENT[table.data_type] + CACHE_SLOT_BYTES
    return cache_slots(rows, table.cache_load_factor) * slot + CACHE_ROW_BYTES * rows


def _padding_bytes(shards: list[Shard]) -> int:
    """Bytes of a shared cache that are unused because its slots are wider than the rows of some tables."""
    widest = max(shard.table.embedding_dim for shard in shards)
    return sum(
        cache_slots(shard.num_rows, shard.table.cache_load_factor)
        * (widest - shard.table.embedding_dim)
        * BYTES_PER_ELEMENT[shard.table.data_type]
        for shard in shards
    )
