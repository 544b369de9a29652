"""What one fused lookup makes a GPU do: bytes and counts that do not depend on the speed of its kernels.

The most frequently read rows of a table stay in L2, as many as fit.

Shapes: S shards of one fused lookup, 17 reuse bins (`tables.table.REUSE_BIN_EDGES`); `...` nothing for one lookup.
"""

from typing import Any, NamedTuple

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.lookups import Lookup
from neuroshard_pipeline.tables.table import REUSE_BIN_EDGES

ID_BYTES = 8  # FBGEMM takes int64 ids and offsets
STATE_BYTES = 4  # optimizer state is fp32
WEIGHT_BYTES = 4  # weights of ids are fp32
L2_SECTOR = 32  # bytes of the smallest transfer between L2 and an SM (CUDA programming guide)
HBM_BURST = 64  # bytes of the smallest transfer between HBM and L2 on A100 and H100
NUMBERS_PER_WARP = 128  # FBGEMM: each of the 32 threads of a warp reads 4 numbers of a row at once
IDS_PER_WARP = 32  # FBGEMM: a row with more ids is reduced by a block of threads (max_segment_length_per_warp)
IDS_PER_BLOCK = 1024  # FBGEMM: a row with more ids is reduced by several blocks (max_segment_length_per_cta)
_FIRST_HOT_BIN = REUSE_BIN_EDGES.index(IDS_PER_WARP) + 1

#: Optimizer state of a row, in numbers: for the row as a whole, and for each of its columns.
_STATES = {"none": (0, 0), "sgd": (0, 0), "rowwise_adagrad": (1, 0), "adagrad": (0, 1), "adam": (0, 2)}


class LookupWork(NamedTuple):
    """The work of one fused lookup, or of several ones: numbers, or arrays (...).

    Attributes:
        ids, bags: ids and outputs of all shards.
        hbm_bytes, l2_bytes: what the forward kernel reads and writes in GPU memory and in L2.
        missed_reads: reads of rows that miss L2.
        further_reads: reads of rows by a warp after the first 128 numbers of a row.
        reads_per_row: such reads of one row of each shard, (..., S).
        ids_per_bag: ids of one bag of each shard, (..., S).
        host_row_bytes: rows that the forward pass reads from the host in any case.
        cached_row_bytes: distinct rows of the batch, if a cache in GPU memory has some of them.
        uncached_share: share of all rows that this cache has no room for.
        gradient_hbm_bytes, gradient_l2_bytes: gradients of bags that are read for every id.
        hot_blocks: see `hot_blocks`.
        updated_bytes: rows and state of the optimizer that the update reads and writes in GPU memory.
        updated_host_bytes: those that cross the host link.
        is_weighted: 1 if every id has a weight, else 0.
    """

    ids: Any
    bags: Any
    hbm_bytes: Any
    l2_bytes: Any
    missed_reads: Any
    further_reads: Any
    reads_per_row: FloatArray
    ids_per_bag: FloatArray
    host_row_bytes: Any
    cached_row_bytes: Any
    uncached_share: Any
    gradient_hbm_bytes: Any
    gradient_l2_bytes: Any
    hot_blocks: Any
    updated_bytes: Any
    updated_host_bytes: Any
    is_weighted: Any


def lookup_work(lookup: Lookup, l2_bytes: float) -> LookupWork:
    """The work of one fused lookup on a GPU whose L2 cache has `l2_bytes` for rows and gradients."""
    ids, bags, rows = lookup.ids, lookup.bags, lookup.unique_rows
    missed = missed_reads(lookup.rows_of_bin, lookup.ids_of_bin, lookup.row_bytes, l2_bytes)
    streamed = ID_BYTES * (ids + bags) + bags * lookup.dims * lookup.output_bytes
    streamed_bytes = streamed.sum() + (WEIGHT_BYTES * ids).sum() * lookup.weighted
    on_device = float(lookup.placement != "managed")
    reads_per_row = np.maximum(np.ceil(lookup.dims / NUMBERS_PER_WARP) - 1.0, 0.0)
    is_cached = float(lookup.placement == "managed_caching")
    # Without a cache, half of the repeated reads are merged with a read under way.
    from_host = (ids + rows) / 2 if lookup.placement == "managed" else np.zeros(len(rows))
    gradient_hbm, gradient_l2 = _gradient_bytes(lookup, l2_bytes)
    updated, updated_host = _updated_bytes(lookup)
    return LookupWork(
        ids=ids.sum(),
        bags=bags.sum(),
        hbm_bytes=streamed_bytes + on_device * (missed * _whole(lookup.row_bytes, HBM_BURST)).sum(),
        l2_bytes=streamed_bytes + (ids * _whole(lookup.row_bytes, L2_SECTOR)).sum(),
        missed_reads=missed.sum(),
        further_reads=(ids * reads_per_row).sum(),
        reads_per_row=reads_per_row,
        ids_per_bag=ids / bags,
        host_row_bytes=(from_host * lookup.row_bytes).sum(),
        cached_row_bytes=is_cached * (rows * lookup.row_bytes).sum(),
        uncached_share=1.0 - lookup.cached_share,
        gradient_hbm_bytes=gradient_hbm,
        gradient_l2_bytes=gradient_l2,
        hot_blocks=hot_blocks(lookup),
        updated_bytes=updated,
        updated_host_bytes=updated_host,
        is_weighted=float(lookup.weighted),
    )


def _gradient_bytes(lookup: Lookup, l2_bytes: float) -> tuple[float, float]:
    """Bytes from HBM and L2 of the gradients of all ids; ids are sorted by row, so their bags are in random order."""
    bag_bytes = _whole(lookup.dims * lookup.output_bytes, L2_SECTOR)
    missed_share = np.maximum(1.0 - l2_bytes / (lookup.bags * bag_bytes), 0.0)
    first = np.minimum(lookup.bags, lookup.ids)
    hbm = (bag_bytes * (first + (lookup.ids - first) * missed_share)).sum()
    return hbm, (lookup.ids * bag_bytes).sum()


def _updated_bytes(lookup: Lookup) -> tuple[float, float]:
    """Bytes of rows and state that the update reads and writes in GPU memory, and over the host link."""
    rows, (states_of_row, states_of_weight) = lookup.unique_rows, _STATES[lookup.optimizer]
    state_of_weights = STATE_BYTES * states_of_weight * lookup.dims
    state = STATE_BYTES * states_of_row + state_of_weights
    has_update = float(lookup.optimizer != "none")
    updated = has_update * 2 * rows * (_whole(lookup.row_bytes, L2_SECTOR) + _whole(state, L2_SECTOR))
    in_host = state_of_weights if lookup.placement == "managed_caching" else lookup.row_bytes + state_of_weights
    crossing = float(lookup.placement != "device") * has_update * rows * in_host
    return updated.sum(), crossing.sum()


def missed_reads(rows_of_bin: FloatArray, ids_of_bin: FloatArray, row_bytes: FloatArray, l2_bytes: float) -> FloatArray:
    """Reads of rows that miss L2 if L2 keeps the most frequently read rows of the current table, (S,).

    The forward kernel works through the tables one after another, so that each table has L2 for itself. The first read
    of a row always misses.
    """
    size = rows_of_bin * row_bytes[:, None]  # (S, 17)
    hotter = np.cumsum(size[:, ::-1], axis=1)[:, ::-1] - size  # bytes of the rows of all hotter bins
    kept_share = np.clip((l2_bytes - hotter) / np.maximum(size, 1e-9), 0.0, 1.0)
    repeated = np.maximum(ids_of_bin - rows_of_bin, 0.0)
    return np.asarray((ids_of_bin - kept_share * repeated).sum(axis=1))


def hot_blocks(lookup: Lookup) -> float:
    """Blocks of threads for the gradients of rows with more than 32 ids: one per 1024 ids, at least one per row."""
    rows = lookup.rows_of_bin[:, _FIRST_HOT_BIN:]
    return float(np.maximum(rows, lookup.ids_of_bin[:, _FIRST_HOT_BIN:] / IDS_PER_BLOCK).sum())


def _whole(num_bytes: FloatArray, unit: int) -> FloatArray:
    return np.ceil(num_bytes / unit) * unit
