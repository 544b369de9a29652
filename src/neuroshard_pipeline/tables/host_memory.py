"""Tables in host memory: slots of an HBM cache, rows missing from it, and bytes that cross the host link in a step.

TorchRec's kernel `fused_uvm` keeps the weights in host memory, and the GPU reads rows over its host link.
`fused_uvm_caching` adds a cache of rows in GPU memory [fbgemm_gpu split_table_batched_embeddings_ops_training.py,
`SplitTableBatchedEmbeddingBagsCodegen`, LRU, 32 slots per set]. Before each lookup, missing rows are fetched into the
cache, and as many rows are written back. The link carries both directions at the same time, so that only reads count.

All numbers of rows are modelled from the reuse profile of one batch; nothing here is measured.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.tables.curve_points import CurvePoints, scaled_points, with_ends
from neuroshard_pipeline.tables.dedup import looked_up
from neuroshard_pipeline.tables.profile import DEFAULT_POPULARITY_EXPONENT, batch_indices, with_profile, zipf_buckets
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, REUSE_BIN_EDGES, Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: Slots of a set of the cache [fbgemm_gpu DEFAULT_ASSOC on NVIDIA's GPUs].
SLOTS_PER_SET = 32

#: A row that one batch looks up more often than this is assumed to be looked up by every batch. A row with a mean of 4
#: lookups per batch is missing from 1.8 % of the batches (Poisson), and a row with 8 from 0.03 %.
HOT_LOOKUPS = 4

_FIRST_HOT_BIN = REUSE_BIN_EDGES.index(HOT_LOOKUPS) + 1

#: How often `_solved` halves its interval, which at first spans 100 in the natural logarithm of the argument.
_BISECTIONS = 26

#: Bytes of Adam's moments per weight. FBGEMM leaves them in host memory and does not cache them.
_ADAM_BYTES_PER_WEIGHT = 8


def cache_slots(num_rows: int, load_factor: float) -> int:
    """Number of rows for which the cache of a table with `num_rows` rows has room: whole sets, at least one."""
    return SLOTS_PER_SET * max(1, math.ceil(math.ceil(num_rows * load_factor) / SLOTS_PER_SET))


def missed_rows(
    table: Table, batch_size: int, slots: int, popularity: CurvePoints | None = None
) -> tuple[float, float, float]:
    """Distinct rows per batch that a cache of `slots` rows lacks after many batches: low, expected, high.

    All three assume that hot rows, with more than `HOT_LOOKUPS` lookups in a batch, stay in the cache as long as there
    is room. Low: every batch looks up the same rows, and only the rows that do not fit are missing. High: the rows that
    are not hot are drawn anew for each batch, and all of them are equally likely to be in the rest of the cache.
    Expected: rows have the given popularity, or the one that is assumed for tables without a profile
    (`profile.DEFAULT_POPULARITY_EXPONENT`), and the cache drops the row that has not been used for the longest time.

    Args:
        table: the table, as the kernel sees it; without a reuse profile, the default one is assumed.
        batch_size: samples whose ids the kernel looks up.
        slots: rows that the cache has room for.
        popularity: points of the popularity curve of the table's rows, if known.
    """
    table = with_profile(table, batch_size)
    assert table.reuse is not None, "with_profile gives a profile"
    unique_rows = min(table.unique_rows or 1.0, max(1.0, batch_indices(table.pooling_factor, batch_size)))
    hot = unique_rows * float(np.sum(table.reuse[_FIRST_HOT_BIN:]))
    low = max(unique_rows - slots, 0.0)
    if slots <= hot:
        return low, unique_rows - slots, unique_rows - slots
    others = max(table.num_embeddings - hot, 1.0)
    high = max(low, (unique_rows - hot) * max(0.0, 1.0 - (slots - hot) / others))
    expected = _misses_of_lru(table.num_embeddings, hot, unique_rows - hot, slots, popularity)
    return low, min(max(low, expected), high), high


@lru_cache(maxsize=65536)
def _misses_of_lru(num_rows: int, hot: float, others: float, slots: int, points: CurvePoints | None) -> float:
    """Expected misses per batch among the rows that are not hot, by the approximation of Che et al. (2002).

    A row of rate r is looked up in a batch with probability 1 - exp(-r). The cache drops a row that is not looked up
    for T batches. T batches look up as many distinct rows, not counting hot rows, as the cache has `slots` (more than
    `hot`) besides those of the hot rows. One batch looks up `others` distinct rows that are not hot.
    """
    rows, rates = _rates(num_rows, hot, others, points)
    if slots - hot >= rows.sum():
        return 0.0
    time = _solved(lambda time: float((rows * -np.expm1(-rates * time)).sum()), slots - hot)
    return float((rows * -np.expm1(-rates) * np.exp(-rates * time)).sum())


@lru_cache(maxsize=4096)
def _rates(num_rows: int, hot: float, others: float, points: CurvePoints | None) -> tuple[FloatArray, FloatArray]:
    """Numbers of rows that are not hot, in buckets (K,), and lookups per batch of one row of each bucket (K,).

    One batch looks up `others` distinct rows of all buckets together.
    """
    if points is None:
        last = np.cumsum(zipf_buckets(num_rows, DEFAULT_POPULARITY_EXPONENT)[0])
        first = np.maximum(np.append(0.0, last[:-1]), hot)
        weights = ((first + last + 1.0) / 2.0) ** -DEFAULT_POPULARITY_EXPONENT
    else:
        ends, shares = np.array(with_ends(points, num_rows)).T
        weights, last = np.diff(shares) / np.diff(ends), ends[1:]
        first = np.maximum(ends[:-1], hot)
    left = last > first
    rows, weights = (last - first)[left], weights[left]
    scale = _solved(lambda scale: float((rows * -np.expm1(-scale * weights)).sum()), min(others, 0.999 * rows.sum()))
    return rows, scale * weights


def _solved(increasing: Callable[[float], float], target: float) -> float:
    """The argument, with a relative error of 1e-6, at which an increasing function of positive numbers is `target`."""
    low, high = -50.0, 50.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if increasing(math.exp(middle)) < target else (low, middle)
    return math.exp((low + high) / 2.0)


def rows_from_host(
    table: Table, batch_size: int, compute_kernel: str, slots: int, popularity: CurvePoints | None = None
) -> tuple[float, float, float]:
    """Rows that the forward pass reads from the host: lower bound, expected number, upper bound.

    `fused_uvm`: each distinct row is read at least once, and at most once for each of its ids. The expected number
    assumes that half of the repeated reads are merged with a read of the same row that is under way. This is consistent
    with published times on H100 (benchmarks/lab). `fused_uvm_caching`: see `missed_rows`.
    """
    table = with_profile(table, batch_size)
    ids = float(max(1, batch_indices(table.pooling_factor, batch_size)))
    unique_rows = min(table.unique_rows or 1.0, ids)
    if compute_kernel == "fused_uvm":
        return unique_rows, (unique_rows + ids) / 2, ids
    return missed_rows(table, batch_size, slots, popularity)


def host_link_bytes(shard: Shard, task: ShardingTask) -> float:
    """Bytes that the rank of `shard` reads from host memory in one step; at most the same number is written back.

    The forward pass reads the rows of `rows_from_host`. The backward pass with the optimizer reads the rows that are
    not in GPU memory by then: with `fused_uvm`, all distinct rows; with `fused_uvm_caching`, the distinct rows for
    which the cache has no slot. Adam's moments of all distinct rows are read, too; other optimizers have their state in
    GPU memory.
    """
    return host_link_bounds(shard, task)[1]


def host_link_bounds(shard: Shard, task: ShardingTask) -> tuple[float, float, float]:
    """Lower bound, expected value and upper bound of `host_link_bytes`; 0 for a table in GPU memory."""
    kernel = shard.table.compute_kernel
    if kernel == "fused":
        return 0.0, 0.0, 0.0
    looked, batch_size = looked_up(shard, task)
    seen = with_profile(looked.table, batch_size)
    slots = cache_slots(shard.num_rows, shard.table.cache_load_factor)
    unique_rows = min(seen.unique_rows or 1.0, float(max(1, batch_indices(seen.pooling_factor, batch_size))))
    updated = unique_rows if kernel == "fused_uvm" else max(0.0, unique_rows - slots)
    points = shard.table.popularity
    curve = points and scaled_points(points, seen.num_embeddings / shard.table.num_embeddings)
    state = unique_rows * _ADAM_BYTES_PER_WEIGHT if task.optimizer == "adam" else 0.0
    low, expected, high = (
        shard.embedding_dim * (BYTES_PER_ELEMENT[shard.table.data_type] * (rows + updated) + state)
        for rows in rows_from_host(seen, batch_size, kernel, slots, curve)
    )
    return low, expected, high
