"""Features of a shard: the work that it causes, and the context that determines the price of that work.

Shapes: S shards, T distinct tables, P = `len(WORK_TERMS)`, F = `len(CONTEXT_FEATURES)`.

Work terms are non-negative and additive: a kernel that looks up two shards does the work of both. Their combination
with non-negative prices is a first estimate of the cost. This estimate stays plausible far outside the training range.
Context features are logarithms and shares; they correct the estimate.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, NUM_REUSE_BINS, REUSE_BIN_EDGES, Shard, Table
from neuroshard_pipeline.tables.task import OPTIMIZERS

#: Non-negative work terms of one shard: the formula, then the reason why this work takes time. Bytes are in MiB and
#: counts, except `table`, in units of 2**20, so that prices are ms per MiB or per 2**20 items.
WORK_TERMS: dict[str, str] = {
    "table": "1: a fused call checks the arguments and lays out the output of every table",
    "bags": "batch_size * features: the loop over samples reads the offsets of every bag, even of an empty one",
    "output_bytes": "bags * dim * 4: the forward pass writes pooled rows, the backward pass reads gradients",
    "indices": "ids of the batch: each is read, range-checked and converted to an address",
    "lookup_bytes": "ids * row bytes: the forward pass reads and adds up rows, the backward pass scatters gradients",
    "unique_rows": "distinct rows: each is one random access that caches and prefetchers cannot hide",
    "unique_bytes": "distinct rows * row bytes: these come from memory, and the update writes them back",
    "cache_lines": "distinct 64-byte lines of these rows: narrow rows share a line but still transfer a whole one",
    "pages": "distinct 4 KiB pages of these rows: each needs an address translation that may miss the TLB",
    "sort_work": "ids * log2(rows): the backward pass radix-sorts the ids by the bits of their row numbers",
    "hot_row_blocks": "max(rows, ids / 1024) of each reuse bin above 32 ids per row: GPUs use blocks of threads",
    "half_numbers": "ids * dim if stored in 16 bits: every number is converted",
    "half_unique": "distinct rows * dim if stored in 16 bits: the update reads, rounds and writes them",
    "state_lines": "distinct 64-byte lines of optimizer state: read and written by the update",
    "stateless_bytes": "ids * row bytes with SGD, which may apply gradients id by id without adding them up first",
}

#: Work terms that also add a cost per launch (fused call), once for any number of shards. FBGEMM's forward pass takes
#: 0.045 ms longer if the optimizer has state. This is a quarter of the time of a small launch.
ONCE_TERMS: tuple[str, ...] = ("state_lines",)

#: Context of one shard, with the reason why it changes the price of work.
CONTEXT_FEATURES: dict[str, str] = {
    "log_num_embeddings": "address range: page-table and TLB misses grow with it",
    "log_dim": "vector instructions and cache lines per row",
    "log_indices": "ids of the batch: loops amortise their start",
    "log_pooling": "ids per bag: inner loops of one id cost more per id",
    "log_unique_rows": "distinct rows of the batch",
    "log_reuse": "ids per distinct row: frequency of cache hits",
    "log_unique_bytes": "working set relative to the cache sizes",
    "log_table_bytes": "size of the weights relative to the caches and the reach of the TLB",
    "log_batch": "bags of the batch",
    "log_element_bytes": "storage type",
    "once_share": "share of ids whose row is looked up only once: certain misses",
    "few_share": "share of ids whose row is looked up 2 to 8 times",
    "some_share": "share of ids whose row is looked up 9 to 128 times",
    "hot_share": "share of ids whose row is looked up more than 128 times: certain hits, serialised updates",
    "log_state": "1 + bytes of optimizer state per row (SGD has none): selects the update kernel",
    "hot_rows": "share of distinct rows looked up more than 8 times: the rows that benefit from caches",
}

_MILLION = float(2**20)

#: Typical number of lookups of a row in each reuse bin: 1, 2, and from the third bin on the middle of (x, 2 * x].
_BIN_REUSE = np.array([1.0, 2.0] + [2.0**power * 0.75 for power in range(2, NUM_REUSE_BINS)])

#: FBGEMM's GPU kernel adds up the gradients of a row with more than 32 ids with blocks of threads instead of a warp
#: (`max_segment_length_per_warp`), and takes a block for every 1,024 ids (`max_segment_length_per_cta`).
_FIRST_HOT_BIN = REUSE_BIN_EDGES.index(32) + 1
_IDS_PER_BLOCK = 1024

#: First reuse bin (inclusive) and last one (exclusive) that each of the four shares of ids covers.
_ID_SHARE_BINS = {"once_share": (0, 1), "few_share": (1, 4), "some_share": (4, 8), "hot_share": (8, NUM_REUSE_BINS)}


def shard_features(shards: Sequence[Shard], batch_size: int, optimizer: str = "sgd") -> tuple[FloatArray, FloatArray]:
    """Features of shards whose tables are looked up with `batch_size` samples and trained with `optimizer`.

    Quantities of a table are computed once per table, for any number of its shards. Tables without a reuse profile are
    completed by `tables.profile.with_profile`.

    Returns:
        Work (S, P), columns as in `WORK_TERMS`, and context (S, F), columns as in `CONTEXT_FEATURES`.

    Raises:
        CostModelError: `batch_size` is below 1, or `optimizer` is unknown.
    """
    if batch_size < 1:
        raise CostModelError(f"batch_size {batch_size} must be at least 1")
    if optimizer not in OPTIMIZERS:
        raise CostModelError(f"optimizer {optimizer!r} is unknown; use one of {', '.join(OPTIMIZERS)}")
    tables = {id(shard.table): shard.table for shard in shards}  # by identity, because hashing tables is slow
    number_of = {key: number for number, key in enumerate(tables)}
    table_of = np.array([number_of[id(shard.table)] for shard in shards], dtype=np.int64)
    columns = {name: values[table_of] for name, values in _table_columns(list(tables.values()), batch_size).items()}
    dims = np.array([shard.embedding_dim for shard in shards], dtype=np.float64)
    state_bytes = _state_bytes(optimizer, dims)
    return _work(columns, dims, state_bytes), _context(columns, dims, state_bytes)


def segment_sums(values: FloatArray, counts: Sequence[int] | NDArray[np.int64]) -> FloatArray:
    """Sums (N, H) of consecutive rows of `values` (S, H): `counts[n]` rows for sum n, which is 0 without rows."""
    totals = np.zeros((len(counts), values.shape[1]))
    np.add.at(totals, np.repeat(np.arange(len(counts)), counts), values)
    return totals


def _table_columns(tables: Sequence[Table], batch_size: int) -> dict[str, FloatArray]:
    """Inputs of the features that are computed per table: arrays (T,) by name."""
    full = [with_profile(table, batch_size) for table in tables]
    reuse = np.array([table.reuse for table in full], dtype=np.float64).reshape(len(full), NUM_REUSE_BINS)
    ids_by_bin = reuse * _BIN_REUSE
    ids_by_bin /= np.maximum(ids_by_bin.sum(axis=1, keepdims=True), 1e-12)
    indices = np.array([table.pooling_factor for table in full], dtype=np.float64) * batch_size
    unique_rows = np.array([table.unique_rows for table in full], dtype=np.float64)
    rows_of_bin, blocks_of_bin = reuse * unique_rows[:, None], ids_by_bin * indices[:, None] / _IDS_PER_BLOCK
    return {
        "num_embeddings": np.array([table.num_embeddings for table in full], dtype=np.float64),
        "indices": indices,
        "bags": np.array([table.num_features for table in full], dtype=np.float64) * batch_size,
        "unique_rows": unique_rows,
        "hot_row_blocks": np.maximum(rows_of_bin, blocks_of_bin)[:, _FIRST_HOT_BIN:].sum(axis=1),
        "element_bytes": np.array([BYTES_PER_ELEMENT[table.data_type] for table in full], dtype=np.float64),
        "hot_rows": reuse[:, 4:].sum(axis=1),
        **{name: ids_by_bin[:, first:last].sum(axis=1) for name, (first, last) in _ID_SHARE_BINS.items()},
    }


def _state_bytes(optimizer: str, dims: FloatArray) -> FloatArray:
    """Bytes of optimizer state per row of shards of width `dims`: (S,)."""
    if optimizer == "rowwise_adagrad":
        return np.full_like(dims, 4.0)  # a sum of a row's mean squared gradients
    return 8.0 * dims if optimizer == "adam" else np.zeros_like(dims)  # Adam has two moments per number


def _work(columns: dict[str, FloatArray], dims: FloatArray, state_bytes: FloatArray) -> FloatArray:
    """(S, P) work terms in the order of `WORK_TERMS`."""
    row_bytes = dims * columns["element_bytes"]
    bags = columns["bags"] / _MILLION
    indices = columns["indices"] / _MILLION
    unique = columns["unique_rows"] / _MILLION
    half = columns["element_bytes"] == BYTES_PER_ELEMENT["fp16"]
    terms = {
        "table": np.ones_like(dims),
        "bags": bags,
        "output_bytes": bags * dims * 4,  # pooled output is fp32 for every storage type
        "indices": indices,
        "lookup_bytes": indices * row_bytes,
        "unique_rows": unique,
        "unique_bytes": unique * row_bytes,
        "cache_lines": _distinct_blocks(columns, row_bytes, 64.0) / _MILLION,
        "pages": _distinct_blocks(columns, row_bytes, 4096.0) / _MILLION,
        "sort_work": indices * np.log2(columns["num_embeddings"] + 1),
        "hot_row_blocks": columns["hot_row_blocks"] / _MILLION,
        "half_numbers": indices * dims * half,
        "half_unique": unique * dims * half,
        "state_lines": np.where(state_bytes > 0, _distinct_blocks(columns, state_bytes, 64.0) / _MILLION, 0.0),
        "stateless_bytes": indices * row_bytes * (state_bytes == 0),
    }
    return np.stack([terms[name] for name in WORK_TERMS], axis=1)


def _context(columns: dict[str, FloatArray], dims: FloatArray, state_bytes: FloatArray) -> FloatArray:
    """(S, F) context features in the order of `CONTEXT_FEATURES`."""
    row_bytes = dims * columns["element_bytes"]
    features = {
        "log_num_embeddings": np.log(columns["num_embeddings"]),
        "log_dim": np.log(dims),
        "log_indices": np.log(columns["indices"]),
        "log_pooling": np.log(columns["indices"] / columns["bags"]),
        "log_unique_rows": np.log(columns["unique_rows"]),
        "log_reuse": np.log(columns["indices"] / columns["unique_rows"]),
        "log_unique_bytes": np.log(columns["unique_rows"] * row_bytes),
        "log_table_bytes": np.log(columns["num_embeddings"] * row_bytes),
        "log_batch": np.log(columns["bags"]),
        "log_element_bytes": np.log(columns["element_bytes"]),
        "log_state": np.log(1.0 + state_bytes),
        **{name: columns[name] for name in (*_ID_SHARE_BINS, "hot_rows")},
    }
    return np.stack([features[name] for name in CONTEXT_FEATURES], axis=1)


def _distinct_blocks(columns: dict[str, FloatArray], row_bytes: FloatArray, block_bytes: float) -> FloatArray:
    """Expected number of memory blocks (S,) that hold distinct rows, if these lie at random places in the table."""
    blocks = np.maximum(columns["num_embeddings"] * row_bytes / block_bytes, 1.0)
    touched = columns["unique_rows"] * np.maximum(row_bytes / block_bytes, 1.0)
    return blocks * -np.expm1(-touched / blocks)
