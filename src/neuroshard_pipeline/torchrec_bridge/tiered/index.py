"""Maps every id to its tier and its row in this tier, and the rows of every tier to their ids.

Tiers are parts of a table's rows by popularity: hot, host and cold rows. Only the popular ids (ids of hot and host
rows) are stored, with a place each: 12 bytes (`search.memory.POPULAR_ROW_BYTES`). Places number the hot rows of all
tables, and then the host rows of all tables. Every other id is cold. Its row in the cold table is the id minus the
number of smaller popular ids of its table.

Shapes: T tables, P popular ids of all tables, N ids to look up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.tiers import Cuts

#: Ids of a table, the most popular first, such as `tables.popularity.popular_rows` gives them.
PopularRows = torch.Tensor | IntArray


@dataclass(frozen=True)
class TieredTable:
    """A table and its popular ids: those of hot and of host rows, the most popular first."""

    name: str
    num_embeddings: int
    hot: torch.Tensor
    host: torch.Tensor

    @property
    def num_popular(self) -> int:
        """Number of hot and host rows."""
        return len(self.hot) + len(self.host)

    @property
    def num_cold(self) -> int:
        """Number of cold rows."""
        return self.num_embeddings - self.num_popular


class TierRows(NamedTuple):
    """For N ids, the positions of the ids of every tier among them, and their rows in that tier.

    Hot and host rows are numbered over all tables, cold rows in the cold part of their own table.
    """

    hot_at: torch.Tensor
    hot: torch.Tensor
    host_at: torch.Tensor
    host: torch.Tensor
    cold_at: torch.Tensor
    cold: torch.Tensor


class TierIndex:
    """The tiers of T tables. Hot rows of all tables are numbered consecutively, table after table; so are host rows."""

    def __init__(self, tables: Sequence[TieredTable], device: torch.device) -> None:
        self.tables = tuple(tables)
        self._hot_base = _starts([len(table.hot) for table in tables])
        self._host_base = _starts([len(table.host) for table in tables])
        self.num_hot, self.num_host = self._hot_base[-1], self._host_base[-1]
        self._first = _starts([table.num_popular for table in tables])
        offsets = _starts([table.num_embeddings for table in tables])
        keys, places = [], []
        for at, table in enumerate(tables):
            order = torch.cat([table.hot, table.host]).cpu().long().sort()
            hot = torch.arange(len(table.hot)) + self._hot_base[at]
            host = torch.arange(len(table.host)) + self.num_hot + self._host_base[at]
            keys.append(order.values + offsets[at])
            places.append(torch.cat([hot, host])[order.indices].int())
        # The last entry is larger than every key, so that every search finds an entry.
        self._keys = torch.cat([*keys, torch.tensor(offsets[-1:])]).to(device)  # (P + 1,)
        self._places = torch.cat([*places, torch.zeros(1, dtype=torch.int32)]).to(device)  # (P + 1,)
        self._offsets = torch.tensor(offsets, device=device)  # (T + 1,)
        self._popular_before = torch.tensor(self._first, device=device)  # (T + 1,)

    def keys_of(self, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Numbers (N,) of the ids (N,) if the rows of all tables are numbered consecutively, table after table.

        `table` (N,) holds the table of every id, as an index of `tables`.

        Raises:
            RuntimeError: an id is negative or not below the number of rows of its table (on GPUs, an assertion).
        """
        rows = self._offsets.diff()[table]
        torch._assert_async(((ids >= 0) & (ids < rows)).all(), "an id lies outside the rows of its table")
        return ids + self._offsets[table]

    def split(self, keys: torch.Tensor, table: torch.Tensor) -> TierRows:
        """The tiers of ids, given as `keys_of` numbers them, (N,), and of the tables that they look up, (N,)."""
        ordered, order = keys.sort()  # on CPUs, ordered keys are searched several times faster
        found = torch.searchsorted(self._keys, ordered)
        below = torch.empty_like(found).scatter_(0, order, found)  # number of smaller popular keys
        popular = self._keys.index_select(0, below) == keys
        places = self._places.index_select(0, below).long()
        is_hot = places < self.num_hot
        hot_at, host_at, cold_at = (which.nonzero()[:, 0] for which in (popular & is_hot, popular & ~is_hot, ~popular))
        # A cold id's row is its key minus the first key of its table, minus the number of smaller popular ids there.
        bases = (self._offsets - self._popular_before).index_select(0, table.index_select(0, cold_at))
        cold = keys.index_select(0, cold_at) - below.index_select(0, cold_at) - bases
        return TierRows(hot_at, places[hot_at], host_at, places[host_at] - self.num_hot, cold_at, cold)

    def hot_ids(self, table: int) -> tuple[torch.Tensor, slice]:
        """Ids of the hot rows of a table, and the range of these rows among all hot rows."""
        return self._in_order(table, self._hot_base, 0)

    def host_ids(self, table: int) -> tuple[torch.Tensor, slice]:
        """Ids of the host rows of a table, and the range of these rows among all host rows."""
        return self._in_order(table, self._host_base, self.num_hot)

    def cold_ids(self, table: int, start: int, end: int) -> torch.Tensor:
        """Ids of the rows `start` to `end` of the cold part of a table."""
        popular, _ = self._popular(table)
        gaps = popular - torch.arange(len(popular), device=popular.device)  # number of cold ids below each popular id
        rows = torch.arange(start, end, device=popular.device)
        return rows + torch.searchsorted(gaps, rows, right=True)

    def _popular(self, table: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The popular ids of a table in ascending order, and their places."""
        of = slice(self._first[table], self._first[table + 1])
        return self._keys[of] - self._offsets[table], self._places[of]

    def _in_order(self, table: int, base: Sequence[int], first: int) -> tuple[torch.Tensor, slice]:
        """Ids of a table's rows in a tier, in their order, and their range; the tier's places begin with `first`."""
        ids, places = self._popular(table)
        own = ((places >= first + base[table]) & (places < first + base[table + 1])).nonzero()[:, 0]
        return ids[own[places[own].argsort()]], slice(base[table], base[table + 1])


def tiered_tables(
    rows: Mapping[str, int], cuts: Mapping[str, Cuts], popular_rows: Mapping[str, PopularRows]
) -> list[TieredTable]:
    """The tables with their numbers of rows and their popular ids.

    The popular rows of a table with tiers are at least as many as it has hot and host rows, the most popular first.

    Raises:
        PlanError: cuts name an unknown table or take more rows than their table has, or popular ids are too few, not
            unique or outside the table.
    """
    for name in sorted(cuts.keys() - rows.keys()):
        raise PlanError(f"cuts name the table {name!r}, which the module does not have; it has {', '.join(rows)}")
    return [_tiered_table(name, count, cuts.get(name), popular_rows.get(name)) for name, count in rows.items()]


def _tiered_table(name: str, rows: int, cuts: Cuts | None, popular: PopularRows | None) -> TieredTable:
    none = torch.empty(0, dtype=torch.int64)
    if not cuts:
        return TieredTable(name, rows, none, none)
    needed = cuts.hot_rows + cuts.host_rows
    if needed > rows:
        raise PlanError(f"table {name!r} has {rows} rows, but its cuts take {needed} of them; cut fewer rows")
    if popular is None or len(popular) < needed:
        found = 0 if popular is None else len(popular)
        wanted = f"its cuts take {cuts.hot_rows} hot and {cuts.host_rows} host rows; give at least {needed} ids"
        raise PlanError(f"popular_rows has {found} ids of table {name!r}, but {wanted}, the most popular first")
    ids = torch.as_tensor(popular[:needed]).cpu().long()
    if len(ids.unique()) < needed or int(ids.min()) < 0 or int(ids.max()) >= rows:
        raise PlanError(
            f"the first {needed} popular_rows of table {name!r} must be different ids from 0 to {rows - 1}; found "
            f"{len(ids.unique())} different ids from {int(ids.min())} to {int(ids.max())}"
        )
    return TieredTable(name, rows, ids[: cuts.hot_rows], ids[cuts.hot_rows :])


def _starts(counts: Sequence[int]) -> list[int]:
    """The first number of every group if groups of these sizes are numbered consecutively, and the sum of the sizes."""
    return [0, *accumulate(counts)]
