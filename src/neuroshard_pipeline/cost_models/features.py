"""What a cost model sees of a shard: the work it causes, and the context that makes that work dear or cheap.

Shapes: S shards, T distinct tables, P = `len(WORK_TERMS)`, F = `len(CONTEXT_FEATURES)`.

Work terms are non-negative and additive: a kernel that looks up two shards does the work of both. A
non-negative combination of them is therefore a physical first guess of the cost that stays sensible far
outside the training range. Context features are logarithms and shares; they correct that guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, NUM_REUSE_BINS, REUSE_COLUMNS, Shard, Table
from neuroshard_pipeline.tables.task import OPTIMIZERS

FloatArray = NDArray[np.float64]

#: Non-negative work of one shard, with the reason that it costs time. Bytes are counted in MiB and items in
#: units of 2**20, so that coefficients are ms per MiB or per million items.
WORK_TERMS: dict[str, str] = {
    "table": "1: every table of a fused call has its arguments checked and its output laid out",
    "bags": "batch_size: the loop over samples, offsets are read for each whether or not it has ids",
    "output_bytes": "batch_size * dim: pooled rows are written forward, their gradients read backward",
    "indices": "ids of the batch: each is read, range-checked and turned into an address",
    "lookup_bytes": "ids * dim: rows are read and added up forward, gradients scattered backward",
    "unique_rows": "distinct rows: each is one random access that caches and prefetchers cannot hide",
    "unique_bytes": "distinct rows * dim: what really comes from memory, and is written back by the update",
    "cache_lines": "distinct 64-byte lines among the rows looked up: narrow rows share one, and still cost a whole one",
    "pages": "distinct 4 KiB pages among them: each is an address translation that the TLB may miss",
    "sort_work": "ids * log2(rows): backward sorts the ids, by radix over the bits of a row number",
    "half_numbers": "ids * dim where stored in 16 bits: every number is converted on its way",
    "half_unique": "distinct rows * dim where stored in 16 bits: the update reads, rounds and writes them",
    "state_lines": "distinct 64-byte lines of optimizer state: read and written by the update",
    "stateless_bytes": "ids * dim under SGD, which may apply gradients id by id, without adding them up first",
}

#: Work that makes the launch of a fused call dearer, once however many shards have it: FBGEMM's forward takes 0.045 ms
#: longer where an optimizer has state, which is a quarter of a small call.
ONCE_TERMS: tuple[str, ...] = ("state_lines",)

#: Context of one shard, with the reason that it changes the price of work.
CONTEXT_FEATURES: dict[str, str] = {
    "log_num_embeddings": "address range: page-table and TLB misses grow with it",
    "log_dim": "vector instructions and cache lines per row",
    "log_indices": "ids of the batch: loops amortise their start",
    "log_pooling": "ids per bag: inner loops of one id cost more per id",
    "log_unique_rows": "distinct rows of the batch",
    "log_reuse": "ids per distinct row: how often caches hit",
    "log_unique_bytes": "working set against the cache sizes",
    "log_table_bytes": "size of the weights against the caches and the TLB's reach",
    "log_batch": "bags of the batch",
    "log_element_bytes": "storage type",
    "once_share": "share of ids whose row is looked up only once: certain misses",
    "few_share": "share of ids whose row is looked up 2 to 8 times",
    "some_share": "share of ids whose row is looked up 9 to 128 times",
    "hot_share": "share of ids whose row is looked up more than 128 times: certain hits, serialised updates",
    "log_state": "bytes of optimizer state per row (1 more, for SGD has none): another update kernel",
    "hot_rows": "share of distinct rows looked up more than 8 times: the rows worth caching",
}

#: What the paper's network sees instead, without logarithms: [Zha2023] §3.2 lists dimension, hash size, pooling
#: factor, table size and the distribution of ids.
RAW_FEATURES: tuple[str, ...] = (
    "embedding_dim",
    "num_embeddings",
    "pooling_factor",
    "table_bytes",
    "unique_rows",
    *REUSE_COLUMNS,
)

_MILLION = float(2**20)

#: A typical number of look-ups of a row in each reuse bin: the geometric middle of (lower, upper].
_BIN_REUSE = np.array([1.0, 2.0] + [2.0**power * 0.75 for power in range(2, NUM_REUSE_BINS)])

#: First and last (exclusive) reuse bin of the four shares of ids.
_ID_SHARE_BINS = ((0, 1), (1, 4), (4, 8), (8, NUM_REUSE_BINS))


@dataclass(frozen=True)
class ShardFeatures:
    """Features of S shards.

    Attributes:
        work: (S, P) non-negative, columns as in `WORK_TERMS`.
        context: (S, F), columns as in `CONTEXT_FEATURES`.
        raw: (S, 22), columns as in `RAW_FEATURES`.
    """

    work: FloatArray
    context: FloatArray
    raw: FloatArray


def shard_features(shards: Sequence[Shard], batch_size: int, optimizer: str = "sgd") -> ShardFeatures:
    """Features of shards whose tables are looked up with `batch_size` samples and trained with `optimizer`.

    What belongs to a table is computed once per table, however many shards it has. Tables without a reuse
    profile are completed by `tables.profile.with_profile`.

    Raises:
        CostModelError: `batch_size` is below 1, or `optimizer` is unknown.
    """
    if batch_size < 1:
        raise CostModelError(f"batch_size {batch_size} must be at least 1")
    if optimizer not in OPTIMIZERS:
        raise CostModelError(f"optimizer {optimizer!r} is unknown; use one of {', '.join(OPTIMIZERS)}")
    table_of, tables = _distinct_tables(shards)
    reuse, table_columns = _table_columns(tables, batch_size)
    columns = {name: values[table_of] for name, values in table_columns.items()}
    dims = np.array([shard.embedding_dim for shard in shards], dtype=np.float64)
    return ShardFeatures(
        work=_work(columns, dims, batch_size, _state_bytes(optimizer, dims)),
        context=_context(columns, dims, batch_size, _state_bytes(optimizer, dims)),
        raw=np.concatenate([_raw(columns, dims, batch_size), reuse[table_of]], axis=1),
    )


def segment_sums(values: FloatArray, counts: Sequence[int] | NDArray[np.int64]) -> FloatArray:
    """Sum rows of `values` (S, H) over consecutive segments of `counts` rows: (N, H); an empty segment sums to 0."""
    totals = np.zeros((len(counts), values.shape[1]))
    np.add.at(totals, np.repeat(np.arange(len(counts)), counts), values)
    return totals


def _distinct_tables(shards: Sequence[Shard]) -> tuple[NDArray[np.int64], list[Table]]:
    """Index into the distinct tables for every shard, and those tables (by identity: hashing profiles is slow)."""
    seen: dict[int, int] = {}
    tables: list[Table] = []
    table_of = np.empty(len(shards), dtype=np.int64)
    for row, shard in enumerate(shards):
        key = id(shard.table)
        if key not in seen:
            seen[key] = len(tables)
            tables.append(shard.table)
        table_of[row] = seen[key]
    return table_of, tables


def _table_columns(tables: Sequence[Table], batch_size: int) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Reuse profiles (T, 17), and per-table quantities, each (T,)."""
    full = [table if table.has_profile else with_profile(table, batch_size) for table in tables]
    reuse = np.array([table.reuse for table in full], dtype=np.float64).reshape(len(full), NUM_REUSE_BINS)
    ids_by_bin = reuse * _BIN_REUSE
    ids_by_bin /= np.maximum(ids_by_bin.sum(axis=1, keepdims=True), 1e-12)
    columns = {
        "num_embeddings": np.array([table.num_embeddings for table in full], dtype=np.float64),
        "indices": np.array([table.pooling_factor for table in full], dtype=np.float64) * batch_size,
        "unique_rows": np.array([table.unique_rows for table in full], dtype=np.float64),
        "element_bytes": np.array([BYTES_PER_ELEMENT[table.data_type] for table in full], dtype=np.float64),
        "hot_rows": reuse[:, 4:].sum(axis=1),
    }
    for name, (first, last) in zip(("once", "few", "some", "hot"), _ID_SHARE_BINS, strict=True):
        columns[f"{name}_share"] = ids_by_bin[:, first:last].sum(axis=1)
    return reuse, columns


def _state_bytes(optimizer: str, dims: FloatArray) -> FloatArray:
    """Bytes of optimizer state per row of shards of width `dims`: (S,)."""
    if optimizer == "rowwise_adagrad":
        return np.full_like(dims, 4.0)  # the sum of squares of a row's gradients
    return 8.0 * dims if optimizer == "adam" else np.zeros_like(dims)  # two moments of every number


def _work(columns: dict[str, FloatArray], dims: FloatArray, batch_size: int, state_bytes: FloatArray) -> FloatArray:
    """(S, P) work terms in the order of `WORK_TERMS`."""
    row_bytes = dims * columns["element_bytes"]
    bags = np.full_like(dims, batch_size / _MILLION)
    indices = columns["indices"] / _MILLION
    unique = columns["unique_rows"] / _MILLION
    half = columns["element_bytes"] == BYTES_PER_ELEMENT["fp16"]
    terms = {
        "table": np.ones_like(dims),
        "bags": bags,
        "output_bytes": bags * dims * 4,  # pooled output is fp32 whatever the storage type
        "indices": indices,
        "lookup_bytes": indices * row_bytes,
        "unique_rows": unique,
        "unique_bytes": unique * row_bytes,
        "cache_lines": _distinct_blocks(columns, row_bytes, 64.0) / _MILLION,
        "pages": _distinct_blocks(columns, row_bytes, 4096.0) / _MILLION,
        "sort_work": indices * np.log2(columns["num_embeddings"] + 1),
        "half_numbers": indices * dims * half,
        "half_unique": unique * dims * half,
        "state_lines": np.where(state_bytes > 0, _distinct_blocks(columns, state_bytes, 64.0) / _MILLION, 0.0),
        "stateless_bytes": indices * row_bytes * (state_bytes == 0),
    }
    return np.stack([terms[name] for name in WORK_TERMS], axis=1)


def _context(columns: dict[str, FloatArray], dims: FloatArray, batch_size: int, state_bytes: FloatArray) -> FloatArray:
    """(S, F) context features in the order of `CONTEXT_FEATURES`."""
    row_bytes = dims * columns["element_bytes"]
    features = {
        "log_num_embeddings": np.log(columns["num_embeddings"]),
        "log_dim": np.log(dims),
        "log_indices": np.log(columns["indices"]),
        "log_pooling": np.log(columns["indices"] / batch_size),
        "log_unique_rows": np.log(columns["unique_rows"]),
        "log_reuse": np.log(columns["indices"] / columns["unique_rows"]),
        "log_unique_bytes": np.log(columns["unique_rows"] * row_bytes),
        "log_table_bytes": np.log(columns["num_embeddings"] * row_bytes),
        "log_batch": np.full_like(dims, np.log(batch_size)),
        "log_element_bytes": np.log(columns["element_bytes"]),
        "log_state": np.log(1.0 + state_bytes),
        **{name: columns[name] for name in ("once_share", "few_share", "some_share", "hot_share", "hot_rows")},
    }
    return np.stack([features[name] for name in CONTEXT_FEATURES], axis=1)


def _raw(columns: dict[str, FloatArray], dims: FloatArray, batch_size: int) -> FloatArray:
    """(S, 5): the first of `RAW_FEATURES`."""
    table_bytes = columns["num_embeddings"] * dims * columns["element_bytes"]
    pooling = columns["indices"] / batch_size
    return np.stack([dims, columns["num_embeddings"], pooling, table_bytes, columns["unique_rows"]], axis=1)


def _distinct_blocks(columns: dict[str, FloatArray], row_bytes: FloatArray, block_bytes: float) -> FloatArray:
    """Expected number of distinct memory blocks under the distinct rows, were these spread evenly: (S,)."""
    blocks = np.maximum(columns["num_embeddings"] * row_bytes / block_bytes, 1.0)
    touched = columns["unique_rows"] * np.maximum(row_bytes / block_bytes, 1.0)
    return blocks * -np.expm1(-touched / blocks)
