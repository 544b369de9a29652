"""Bytes that ranks receive if a table changes its tiers, its cold shards, or the rows that count as popular.

Tiers cut a table by the popularity of its rows: hot rows are on every rank, host rows are once on every host, and cold
rows are sharded. Row numbers are those of the whole table, except that the `row_offset` of a cold shard counts cold
rows only, in the order of the table. Shapes: R popular rows, ascending.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.tables.table import Shard


@dataclass(frozen=True)
class RowPlaces:
    """Where the rows of one table are.

    Attributes:
        hot: rows that every rank has.
        host: rows that every host has once, spread over its ranks.
        shards: shards of all other rows; `shards[i]` is on `ranks[i]`.
        ranks: ranks of the shards.
    """

    hot: IntArray
    host: IntArray
    shards: tuple[Shard, ...]
    ranks: tuple[int, ...]

    @cached_property
    def popular(self) -> IntArray:
        """Rows of the hot and the host tier, ascending, (R,)."""
        return np.sort(np.concatenate([self.hot, self.host]))

    @property
    def cold_copies(self) -> int:
        """Copies of every row outside the hot and the host tier: more than 1 if the shards are replicas."""
        is_replicated = any(shard.sharding_type == "data_parallel" for shard in self.shards)
        return len(self.shards) if is_replicated else 1

    def row_number(self, cold_row: ArrayLike) -> IntArray:
        """Row numbers in the whole table of rows with the numbers `cold_row` in the cold tier, shape (...)."""
        cold = np.asarray(cold_row, dtype=np.int64)
        return np.asarray(cold + np.searchsorted(self.popular - np.arange(len(self.popular)), cold, side="right"))


def received_bytes(old: RowPlaces, new: RowPlaces, row_bytes: float, world_size: int, num_hosts: int) -> float:
    """Bytes that all ranks together receive if the rows of a table move from `old` to `new` places.

    A rank receives only what it does not have. Because the order of rows within a tier is free, rows that stay in the
    host tier stay on their ranks, and a cold row that enters it stays on its rank. A row that leaves the host tier for
    a cold shard counts as received, although the rank of this shard may have it.

    Args:
        old: places before the change, under the plan that the model is trained with.
        new: places after the change.
        row_bytes: bytes of one row with its optimizer state.
        world_size: number of ranks.
        num_hosts: number of hosts.
    """
    either = np.union1d(old.popular, new.popular)

    def both(first: IntArray, second: IntArray) -> int:
        return len(np.intersect1d(first, second))

    def from_cold(rows: IntArray) -> int:
        return len(rows) - both(rows, old.popular)

    copies = both(new.hot, old.host) * (world_size - num_hosts)
    copies += from_cold(new.hot) * (world_size - old.cold_copies)
    copies += from_cold(new.host) * max(num_hosts - old.cold_copies, 0)
    leaving = len(old.host) - both(old.host, new.popular)
    copies += leaving * (1 if new.cold_copies == 1 else world_size - num_hosts)
    return row_bytes * (copies + _received_cold_rows(old, new, either))


def _received_cold_rows(old: RowPlaces, new: RowPlaces, popular: IntArray) -> float:
    """Received rows that are cold before and after the change; a part of the columns counts as a fraction of a row."""
    received = 0.0
    for shard, rank in zip(new.shards, new.ranks, strict=True):
        first, last = _bounds(new, shard)
        share = shard.embedding_dim / shard.table.embedding_dim
        received += share * _rows_between(first, last, popular)
        for other, at in zip(old.shards, old.ranks, strict=True):
            if at == rank:
                start, end = _bounds(old, other)
                common = _rows_between(max(first, start), min(last, end), popular)
                received -= common * _common_columns(shard, other) / shard.table.embedding_dim
    return received


def _bounds(places: RowPlaces, shard: Shard) -> tuple[int, int]:
    """The number of the shard's first row in the whole table, and that of its last row plus 1."""
    first, last = places.row_number([shard.row_offset, shard.row_offset + shard.num_rows - 1]).tolist()
    return first, last + 1


def _rows_between(first: int, end: int, popular: IntArray) -> int:
    """Rows from `first` to `end`, exclusive, that are not popular."""
    if end <= first:
        return 0
    below = np.searchsorted(popular, [first, end])
    return int(end - first - (below[1] - below[0]))


def _common_columns(first: Shard, second: Shard) -> int:
    ends = [shard.column_offset + shard.embedding_dim for shard in (first, second)]
    return max(0, min(ends) - max(first.column_offset, second.column_offset))


def places_without_tiers(shards: Sequence[Shard], ranks: Sequence[int]) -> RowPlaces:
    """The places of the rows of a table that has no tiers."""
    none = np.empty(0, dtype=np.int64)
    return RowPlaces(none, none, tuple(shards), tuple(ranks))
