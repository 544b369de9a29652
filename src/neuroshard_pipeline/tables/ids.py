"""Draws the ids of one batch of one table with a given reuse profile.

Shapes: B batch size, N ids of the batch, U unique rows.
"""

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray, distinct
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.profile import batch_indices, reuse_bin, with_profile
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, REUSE_BIN_EDGES, Table

#: Smallest lookup count of every reuse bin, (17,).
LOWEST_COUNTS: IntArray = np.array([1, *(edge + 1 for edge in REUSE_BIN_EDGES)], dtype=np.int64)

#: Largest lookup count of every reuse bin, (17,). The last bin has no upper limit; its counts exceed the value given
#: here only if a batch has more ids than the highest counts of all its rows add up to.
HIGHEST_COUNTS: IntArray = np.array([*REUSE_BIN_EDGES, 2 * REUSE_BIN_EDGES[-1]], dtype=np.int64)

#: If a table has more than one id per sample on average, the number of ids per sample has a Gamma-Poisson distribution
#: of this shape (variance = mean + mean**2 / shape). This is an assumption: the public data sets give no distribution.
LENGTH_GAMMA_SHAPE = 2.0


@dataclass(frozen=True)
class TableIds:
    """The ids of one batch of one table, in the format of an embedding bag: row numbers (N,), and offsets (B + 1,).

    `indices[offsets[b]:offsets[b + 1]]` are the ids of sample b.
    """

    indices: IntArray
    offsets: IntArray


def feature_lengths(lengths: Any, num_features: int) -> list[Any]:
    """Numbers of ids per sample of each feature, if the `lengths` ids of every sample are dealt to them in turn.

    `lengths` is an integer array or tensor (B,); the list has `num_features` of them.
    """
    return [(lengths + num_features - 1 - at) // num_features for at in range(num_features)]


def draw_ids(table: Table, batch_size: int, seed: int) -> TableIds:
    """Ids of one batch with the table's pooling factor, unique rows and reuse profile; the table's width has no effect.

    N = round(batch_size * pooling_factor) ids look up `unique_rows` distinct rows, which are distributed over the reuse
    bins in proportion to the profile (`look_up_counts`). The rows are random rows of the table, and the ids have a
    random order. A table without a profile gets the default one. Table, batch size and seed determine every id.

    Raises:
        TaskError: `batch_size` is below 1 or `seed` is negative.
    """
    if batch_size < 1 or seed < 0:
        raise TaskError(f"table {table.name!r}: batch_size {batch_size} must be at least 1 and seed {seed} at least 0")
    table = with_profile(table, batch_size)
    rng = np.random.default_rng([seed, crc32(table.name.encode()), batch_size])
    counts = look_up_counts(table, batch_indices(table.pooling_factor, batch_size))
    rows = distinct_rows(table.num_embeddings, len(counts), rng)
    indices = np.repeat(rows, counts)
    rng.shuffle(indices)
    lengths = bag_lengths(len(indices), batch_size, rng)
    return TableIds(indices, np.concatenate([[0], np.cumsum(lengths)]))


def look_up_counts(table: Table, indices: int) -> IntArray:
    """Lookups of each unique row of a table: counts (U,) that sum to `indices` (N), in ascending order of reuse bins.

    A profile that a user wrote may contradict the number of ids. The number of unique rows is then limited to the
    number of ids, and as few rows as possible change their bin (`feasible_rows`).

    Raises:
        TaskError: the table has no reuse profile.
    """
    if table.unique_rows is None or table.reuse is None:
        raise TaskError(f"table {table.name!r} has no reuse profile; complete it with with_profile")
    unique_rows = min(max(round(table.unique_rows), 1), indices)
    rows = feasible_rows(apportion(unique_rows, np.asarray(table.reuse)), indices)
    return _counts_within_bins(rows, indices)


def apportion(total: int, shares: FloatArray) -> IntArray:
    """Divide `total` into whole numbers in proportion to `shares` (largest remainder method)."""
    exact = total * shares / shares.sum()
    whole = np.floor(exact + 1e-6).astype(np.int64)  # rounding errors may turn 3 into 2.9999999
    missing = total - int(whole.sum())
    if missing > 0:
        whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    elif missing < 0:
        whole[np.argsort(exact - whole, kind="stable")[:-missing]] -= 1
    return whole


def feasible_rows(rows: IntArray, indices: int) -> IntArray:
    """Rows per reuse bin (17,) that `indices` ids can look up; as few of `rows` as possible change their bin.

    If there are too few ids, rows of the highest bins move to the lowest bin; the last of them moves down only as far
    as necessary. If there are too many ids, one row of the highest bin in use moves up to take the surplus.
    """
    rows = rows.copy()
    excess = int(rows @ LOWEST_COUNTS) - indices
    for source in range(NUM_REUSE_BINS - 1, 0, -1):
        if excess <= 0:
            return _absorb_surplus(rows, indices)
        saving = int(LOWEST_COUNTS[source]) - 1
        full_moves = min(int(rows[source]), excess // saving)
        rows[source] -= full_moves
        rows[0] += full_moves
        excess -= full_moves * saving
        if rows[source] and excess > 0:  # excess < saving: one row moves down to a bin in between
            rows[source] -= 1
            rows[reuse_bin(LOWEST_COUNTS[source] - excess)] += 1
            excess = 0
    return rows


def _absorb_surplus(rows: IntArray, indices: int) -> IntArray:
    """Move one row to a higher bin if even the highest counts of all rows add up to fewer than `indices`."""
    surplus = indices - int(rows @ HIGHEST_COUNTS)
    used = np.flatnonzero(rows)
    if surplus > 0 and len(used) and used[-1] < NUM_REUSE_BINS - 1:
        rows[used[-1]] -= 1
        rows[reuse_bin(HIGHEST_COUNTS[used[-1]] + surplus)] += 1
    return rows


def _counts_within_bins(rows: IntArray, indices: int) -> IntArray:
    """Lookup counts (U,) of all rows: each lies within the bin of its row, and they sum to `indices`.

    In every bin, the mean count lies at the same fraction `level` between the lowest and the highest count. Quantile q
    of the counts in a bin lies at the fraction q**power, with power = (1 - level) / level, so that the mean is `level`.
    """
    lowest, highest = np.repeat(LOWEST_COUNTS, rows), np.repeat(HIGHEST_COUNTS, rows)
    room = int((highest - lowest).sum())
    spare = indices - int(lowest.sum())
    if spare >= room:
        counts = highest
        if spare > room:
            counts[-rows[-1] :] += apportion(spare - room, np.ones(rows[-1]))  # the open bin takes the rest
        return counts
    level = spare / room
    if level <= 0:
        return lowest
    within = np.arange(len(lowest)) - np.repeat(np.cumsum(rows) - rows, rows)
    quantiles = (within + 0.5) / np.repeat(rows, rows)
    wanted = (highest - lowest) * quantiles ** ((1 - level) / level)
    return lowest + _rounded(wanted, highest - lowest, spare)


def _rounded(wanted: FloatArray, limits: IntArray, total: int) -> IntArray:
    """Whole numbers between 0 and `limits` (U,), close to `wanted` (U,), that sum to `total`."""
    whole = np.diff(np.round(np.cumsum(wanted)), prepend=0.0).astype(np.int64)  # rounding errors do not add up
    whole = np.clip(whole, 0, limits)
    residual = total - int(whole.sum())
    room = limits - whole if residual > 0 else whole
    step = np.sign(residual)
    while residual:
        # Distribute the residual over the rows in proportion to their room, within their limits.
        move = np.minimum(np.ceil(room * (abs(residual) / room.sum())).astype(np.int64), room)
        before = np.cumsum(move) - move
        move = np.clip(abs(residual) - before, 0, move)
        whole += step * move
        room = room - move
        residual -= step * int(move.sum())
    return whole


def distinct_rows(num_embeddings: int, count: int, rng: np.random.Generator) -> IntArray:
    """`count` distinct row numbers below `num_embeddings` in random order; memory grows with `count` only."""
    if num_embeddings <= 4 * count:
        return rng.permutation(num_embeddings)[:count]
    rows = np.empty(0, dtype=np.int64)
    while len(rows) < count:
        missing = count - len(rows)
        more = rng.integers(num_embeddings, size=missing + missing // 6 + 16)
        rows = distinct(np.concatenate([rows, more]))
    return rng.permutation(rows)[:count]


def bag_lengths(indices: int, batch_size: int, rng: np.random.Generator) -> IntArray:
    """Number of ids of every sample (B,); the numbers sum to `indices`.

    If the mean is at most one, no sample has two ids: such a feature has a single value, which may be missing.
    Otherwise the numbers have a Gamma-Poisson distribution (`LENGTH_GAMMA_SHAPE`).
    """
    if indices <= batch_size:
        lengths = np.zeros(batch_size, dtype=np.int64)
        lengths[rng.permutation(batch_size)[:indices]] = 1
        return lengths
    weights = rng.standard_gamma(LENGTH_GAMMA_SHAPE, size=batch_size)
    return rng.multinomial(indices, weights / weights.sum())
