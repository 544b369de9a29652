"""Prices of tiers per row and per id, and the cuts of all sequence tables that follow from them.

A row in a hot tier (on every rank) or host tier (on every host) costs the reduction of its gradient in every step. A
hot row saves the exchange of its ids and of its values; a host row is still exchanged, but only inside hosts. Cost and
saving are nearly proportional to the columns of the table. Let n be the number of ids per step that look up a row and
that ranks send each other (with `index_dedup`, every rank sends an id once). A row is worth a place

    in the host tier     if n * (exchange among all ranks - exchange inside a host) >= gradient in the host tier
    in the hot tier      if n * exchange inside a host >= gradient in the hot tier - gradient in the host tier

or, without a host tier, if n * exchange among all ranks >= gradient in the hot tier. One price per tier thus gives
every table a least n. In the order of popularity, the tier ends before the first row with a lower n. Because costs are
not linear, and memory may allow fewer rows, `search.tier_choice` tries several multiples of the prices, which give
nested cuts.

Shape: K segments of a popularity curve.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.search.models import CommModel
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.step_prices import step_prices
from neuroshard_pipeline.tables.kinds import TierKind
from neuroshard_pipeline.tables.popularity import PopularityCurve, curve_of
from neuroshard_pipeline.tables.step_work import QUANTITIES
from neuroshard_pipeline.tables.table import DEFAULT_DATA_TYPE, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, possible_tiers, tiered_task

_BYTES_PER_FLOAT, _MILLION = 4.0, 1e6

#: Assumed ids of a table's hottest row, as a multiple of its segment's mean; fewest ids of which a logarithm is taken.
_HOTTEST, _LEAST_IDS = 2.0, 1e-12

#: Sizes of dense gradients between which the price of a byte is taken.
_LEAST_BYTES, _MOST_BYTES = 2.0**22, 2.0**26


@dataclass(frozen=True)
class TierPrices:
    """Prices in ms per step.

    Attributes:
        id_ms: an id that ranks send each other, without its row.
        exchanged_ms: a float of a looked-up row that goes to any rank, and its gradient back.
        on_host_ms: a float of a looked-up row that goes to ranks of the same host only, and its gradient back.
        hot_ms: a float of a hot row: its gradient is reduced over all ranks.
        host_ms: a float of a host row: its gradient is reduced over the hosts; 0 on a single host. Between hosts, this
            reduction takes as many bytes as the reduction of a hot row.
    """

    id_ms: float
    exchanged_ms: float
    on_host_ms: float
    hot_ms: float
    host_ms: float

    def least_ids(self, width: int, hot_price: float, host_price: float | None) -> tuple[float, float]:
        """Least number n of ids per step that a row of `width` columns needs for the hot, and for the hot or host tier.

        The prices of hot and host rows are multiplied by `hot_price` and `host_price`, None for no host tier.
        """
        if host_price is None:
            least = _least(hot_price * width * self.hot_ms, self.id_ms + width * self.exchanged_ms)
            return least, least
        hot = _least(hot_price * width * max(self.hot_ms - self.host_ms, 0.0), self.id_ms + width * self.on_host_ms)
        host = _least(host_price * width * self.host_ms, width * (self.exchanged_ms - self.on_host_ms))
        return hot, min(host, hot)


def _least(cost_ms: float, saved_ms: float) -> float:
    """Number of ids that pay for a row if each saves `saved_ms`; infinite if they save nothing, or less."""
    return cost_ms / saved_ms if saved_ms > 0 else math.inf


def tier_prices(problem: Problem) -> TierPrices:
    """The prices of a task with sequence tables, at the volumes that its all-to-alls have without tiers."""
    task, step, comm = problem.task, problem.step, problem.models.comm
    per_unit = step_prices(step, task).per_unit
    ids = sum(float(per_unit[list(QUANTITIES).index(name)]) for name in ("ids", "sent_ids")) / _MILLION
    world, local, hosts = task.world_size, task.ranks_per_host, task.num_hosts
    floats = task.comm_share * sum(t.pooling_factor * t.embedding_dim for t in task.tables if t.pooling == "none")
    least_ms, most_ms = step.reductions.predict_ms("all_reduce", [_LEAST_BYTES, _MOST_BYTES], world, local)
    reduced = _BYTES_PER_FLOAT * float(most_ms - least_ms) / (_MOST_BYTES - _LEAST_BYTES)
    dense = float(step.prices_of("dense", world)[list(QUANTITIES).index("gradients")]) / _MILLION
    on_host = _exchange_slope_ms(comm, floats, local, task.batch_size // hosts)
    return TierPrices(
        id_ms=ids / world,
        exchanged_ms=task.comm_share * _exchange_slope_ms(comm, floats, world, task.batch_size) / task.batch_size,
        on_host_ms=task.comm_share * on_host / task.batch_size,
        hot_ms=dense + reduced,
        host_ms=0.0 if hosts == 1 else dense / local + reduced,
    )


def _exchange_slope_ms(comm: CommModel, floats: float, ranks: int, batch_size: int) -> float:
    """Cost of one further float per sample, forward and backward, if ranks evenly exchange `floats` per sample, ms."""

    def both_ms(dims: float) -> float:
        each, together = np.full(ranks, dims), np.zeros(ranks)
        return float((comm.forward_ms(each, together, batch_size) + comm.backward_ms(each, batch_size)).max())

    if ranks == 1:
        return 0.0
    least, most = 0.25 * floats / ranks, floats / ranks
    return max(both_ms(most) - both_ms(least), 0.0) / (0.75 * floats)


@dataclass(frozen=True)
class CuttableTable:
    """A sequence table that may be cut into tiers, its curve, which has K segments, and the kinds of tiers it may get.

    `rows` (K,) are the rows up to the end of every segment of the curve, `ids` (K,) the mean ids per step that ranks
    send each other for a row of each segment, descending.
    """

    table: Table
    curve: PopularityCurve
    kinds: tuple[TierKind, ...]
    rows: FloatArray
    ids: FloatArray

    @classmethod
    def of(cls, table: Table, task: ShardingTask) -> "CuttableTable":
        """The table with its curve."""
        curve = curve_of(table, task.batch_size)
        ids = task.batch_size * table.pooling_factor * np.diff(curve.shares) / np.diff(curve.rows)
        kinds = possible_tiers(task, table)
        if task.ranks_per_host == 1:  # a host tier would be a second hot tier
            kinds = tuple(kind for kind in kinds if kind != "host")
        return cls(table, curve, kinds, curve.rows[1:], _sent(ids, task))

    def rows_with(self, least_ids: float) -> int:
        """Number of rows that have at least `least_ids` ids per step each.

        The curve gives means over segments. The middle row of a segment is assumed to have the mean, and between middle
        rows, the logarithm of the ids falls evenly. The rows of the last segment, the least known, are taken together.
        """
        if least_ids <= self.ids[-1] or len(self.ids) == 1:
            return self.table.num_embeddings if least_ids <= self.ids[-1] else 0
        ends = np.append(0.0, self.rows[:-1])
        rows = np.concatenate([[0.0], (ends[1:] + ends[:-1]) / 2, ends[-1:]])
        known = np.maximum(self.ids, _LEAST_IDS)
        ids = np.concatenate([[_HOTTEST * known[0]], known[:-1], known[-2:-1] / _HOTTEST])
        return int(np.interp(-math.log(least_ids), -np.log(ids), rows)) if math.isfinite(least_ids) else 0


def cuttable_tables(task: ShardingTask) -> list[CuttableTable]:
    """The tables of a task that may have a hot and a cold tier; none if the task does not allow tiers.

    `torchrec_bridge.tiered` holds popular rows in fp32 only.
    """
    tables = [table for table in task.tables if task.tiers and table.data_type == DEFAULT_DATA_TYPE]
    return [CuttableTable.of(table, task) for table in tables if {"hot", "cold"} <= {*possible_tiers(task, table)}]


@dataclass(frozen=True)
class CutFamily:
    """Cuts of those sequence tables of one task that may be cut, for any multiples of the prices."""

    task: ShardingTask
    tables: Sequence[CuttableTable]
    prices: TierPrices
    _known: dict[tuple[str, Cuts], tuple[Table, ...]] = field(default_factory=dict, init=False, repr=False)

    def cuts(self, hot_price: float, host_price: float | None) -> Mapping[str, Cuts]:
        """The cuts of all tables at these multiples of the prices; tables without popular rows are left out."""
        found = {}
        for each in self.tables:
            own_price = host_price if "host" in each.kinds else None
            hot, upto = map(each.rows_with, self.prices.least_ids(each.table.embedding_dim, hot_price, own_price))
            # All ranks of a host get equally many rows. If the table has no cold rows, the remainder becomes hot.
            uneven = (upto - hot) % self.task.ranks_per_host
            host = upto - hot - uneven
            hot += uneven if upto == each.table.num_embeddings else 0
            if hot or host:
                found[each.table.name] = Cuts(hot, host)
        return found

    def variant(self, cuts: Mapping[str, Cuts]) -> ShardingTask:
        """The task with these tiers."""
        curves = {each.table.name: each.curve for each in self.tables}
        return tiered_task(self.task, cuts, curves, self._known) if cuts else self.task


def _sent(ids: FloatArray, task: ShardingTask) -> FloatArray:
    """Ids that ranks send each other for a row of each segment, (K,); `ids` (K,) are the row's ids of all samples.

    With `index_dedup`, a rank sends an id at most once. The lookups of a row by one rank follow a Poisson distribution.
    """
    if not task.index_dedup or task.world_size == 1:
        return ids
    return np.asarray(-task.world_size * np.expm1(-ids / task.world_size))
