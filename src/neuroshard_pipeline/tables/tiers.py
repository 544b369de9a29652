"""Tiers of a sequence table: its most popular rows as one table, the next ones as another, the rest as a third.

Hot rows are replicated on every rank and host rows on every host; of cold rows, there is only one copy (FlexShard,
Sethi et al. 2023). If the rows of the parent (the whole table) are sorted by popularity, hottest first, a tier is a
`Table` of consecutive rows. The parent's popularity curve tells how many ids look up each tier. The parent's distinct
rows and reuse profile are divided among the tiers, so that ids and distinct rows of all tiers add up to the parent's.

Shape: 17 reuse bins.
"""

from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.curve_points import CurvePoints
from neuroshard_pipeline.tables.kinds import TIER_KINDS, Tier, TierKind
from neuroshard_pipeline.tables.popularity import PopularityCurve, curve_of, rows_and_ids
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

_LEAST_UNIQUE_ROWS, _LEAST_POOLING_FACTOR = 1e-3, 1e-9


@dataclass(frozen=True)
class Cuts:
    """How many of the most popular rows of a table every rank has, and how many of the next ones every host has.

    Raises:
        TaskError: a number is negative.
    """

    hot_rows: int = 0
    host_rows: int = 0

    def __post_init__(self) -> None:
        if min(self.hot_rows, self.host_rows) < 0:
            raise TaskError(f"{self} has a negative number of rows; a tier without rows has 0")

    def __bool__(self) -> bool:
        return self.hot_rows + self.host_rows > 0


class _Part(NamedTuple):
    """Neighbouring rows in the order of popularity; by reuse bin (17,), the distinct rows and the ids of one batch."""

    num_rows: int
    rows: FloatArray
    ids: FloatArray


def tier_tables(table: Table, cuts: Cuts, batch_size: int, curve: PopularityCurve | None = None) -> tuple[Table, ...]:
    """The tiers of a sequence table, hottest first; a tier without rows is left out. Without cuts, the table itself.

    A table without a reuse profile for `batch_size` gets the default one, one without a curve that of `curve_of`.

    Raises:
        TaskError: the table is pooled, is a tier, or has too few rows.
    """
    if not cuts:
        return (table,)
    if table.pooling != "none" or table.tier is not None:
        raise TaskError(f"table {table.name!r}: only sequence tables (pooling none) that are no tiers have tiers")
    if cuts.hot_rows + cuts.host_rows > table.num_embeddings:
        raise TaskError(f"table {table.name!r} has only {table.num_embeddings} rows for {cuts}")
    table = with_profile(table, batch_size)
    curve = curve_of(table, batch_size) if curve is None else curve
    popular = cuts.hot_rows + cuts.host_rows
    of_hot, of_popular = curve.share_of([cuts.hot_rows, popular]).tolist()
    hot, rest = _split(_Part(table.num_embeddings, *rows_and_ids(table, batch_size)), cuts.hot_rows, of_hot)
    host, cold = _split(rest, cuts.host_rows, (of_popular - of_hot) / (1.0 - of_hot) if of_hot < 1.0 else 1.0)
    parts = zip(TIER_KINDS, (0, cuts.hot_rows, popular), (hot, host, cold), strict=True)
    return tuple(
        _tier_table(table, Tier(kind, table.name, offset), part, batch_size, curve)
        for kind, offset, part in parts
        if part.num_rows
    )


def tiered_task(
    task: ShardingTask,
    cuts: Mapping[str, Cuts],
    curves: Mapping[str, PopularityCurve] | None = None,
    known: MutableMapping[tuple[str, Cuts], tuple[Table, ...]] | None = None,
) -> ShardingTask:
    """The task with some tables cut into tiers; each tier inherits its parent's constraints.

    Args:
        task: a task without tiers.
        cuts: name of a table → its cuts; all other tables stay whole.
        curves: name of a table → its popularity curve; all other tables have the curve of `popularity.curve_of`.
        known: name of a table and its cuts → its tiers, from earlier calls with the same task and curves; this call
            adds the tiers that it makes.

    Raises:
        TaskError: the task or a table does not allow these tiers, or a table has too few rows or is unknown.
    """
    if not task.tiers:
        raise TaskError(f"{task.task_id}: the task does not allow tiers; set tiers to true")
    unknown = set(cuts) - {table.name for table in task.tables}
    if unknown:
        raise TaskError(f"{task.task_id}: the cuts name the table {min(unknown)!r}, which the task does not have")
    found = {} if known is None else known
    keys = [(table.name, cuts.get(table.name, Cuts())) for table in task.tables]
    for table, key in zip(task.tables, keys, strict=True):
        if key not in found:
            found[key] = _allowed_tiers(task, table, key[1], (curves or {}).get(table.name))
    tables = [tier for key in keys for tier in found[key]]
    names = {key[0]: [tier.name for tier in found[key]] for key in keys}
    entries = [replace(entry, table=name) for entry in task.constraints.tables for name in names[entry.table]]
    constraints = replace(task.constraints, tables=entries) if entries else task.constraints
    return replace(task, tables=tables, constraints=constraints)


def _allowed_tiers(task: ShardingTask, table: Table, cuts: Cuts, curve: PopularityCurve | None) -> tuple[Table, ...]:
    asked = [kind for kind, rows in (("hot", cuts.hot_rows), ("host", cuts.host_rows)) if rows]
    refused = [kind for kind in asked if kind not in possible_tiers(task, table)]
    if refused:
        why = "its properties or constraints" + " or a single host" * (refused[0] == "host")
        raise TaskError(f"{task.task_id}: {table.name!r} can have no {refused[0]} tier, because of {why}")
    return tier_tables(table, cuts, task.batch_size, curve)


def possible_tiers(task: ShardingTask, table: Table) -> tuple[TierKind, ...]:
    """The kinds of tiers that a table of a task can have.

    It can have none if it is pooled, a tier or in host memory, or if its rows may not be cut.
    """
    constraints = task.constraints
    is_cuttable = constraints.of(table.name).split and not constraints.is_grouped(table.name)
    if table.pooling != "none" or table.tier is not None or table.is_in_host_memory or not is_cuttable:
        return ()
    tiers = {kind: replace(table, tier=Tier(kind, table.name, 0)) for kind in TIER_KINDS}
    possible = [kind for kind, tier in tiers.items() if task.possible_types(tier)]
    return tuple(kind for kind in possible if kind != "host" or task.num_hosts > 1)


def tiers_of(task: ShardingTask) -> dict[str, tuple[Table, ...]]:
    """The tiers of all tables that are cut: name of the parent → its tiers, hottest first."""
    found: dict[str, dict[int, Table]] = defaultdict(dict)
    for table in task.tables:
        if table.tier is not None:
            found[table.tier.parent][table.tier.row_offset] = table
    return {name: tuple(tiers[offset] for offset in sorted(tiers)) for name, tiers in found.items()}


def cuts_of(task: ShardingTask) -> dict[str, Cuts]:
    """The cuts of all tables that are cut: name of the parent → its cuts."""
    rows: dict[str, dict[TierKind, int]] = defaultdict(dict)
    for table in task.tables:
        if table.tier is not None:
            rows[table.tier.parent][table.tier.kind] = table.num_embeddings
    return {name: Cuts(of.get("hot", 0), of.get("host", 0)) for name, of in rows.items()}


def parent_tables(task: ShardingTask) -> tuple[Table, ...]:
    """The tables of the model, with tiers joined again; a joined table comes where its first tier is."""
    tiers = tiers_of(task)
    names = dict.fromkeys(table.name if table.tier is None else table.tier.parent for table in task.tables)
    own = {table.name: table for table in task.tables if table.tier is None}
    return tuple(own[name] if name in own else _joined(name, tiers[name]) for name in names)


def _joined(name: str, tiers: Sequence[Table]) -> Table:
    rows = np.sum([(tier.unique_rows or 0.0) * np.array(tier.reuse) for tier in tiers], axis=0)
    num_embeddings = sum(tier.num_embeddings for tier in tiers)
    return replace(
        tiers[0],
        name=name,
        num_embeddings=num_embeddings,
        pooling_factor=sum(tier.pooling_factor for tier in tiers),
        unique_rows=min(float(rows.sum()), float(num_embeddings)),
        reuse=tuple((rows / rows.sum()).tolist()),
        tier=None,
        popularity=_joined_points(tiers),
    )


def _part_of(curve: PopularityCurve, first: int, num_rows: int) -> CurvePoints:
    """The curve of a tier: `num_rows` rows of the parent, from the `first`-th most popular row (counted from 0) on."""
    below, above = curve.share_of([first, first + num_rows]).tolist()
    inner = (curve.rows > first) & (curve.rows < first + num_rows) & (above > below)
    shares = (curve.shares[inner] - below) / (above - below)
    return (*zip((curve.rows[inner] - first).tolist(), shares.tolist(), strict=True), (float(num_rows), 1.0))


def _joined_points(tiers: Sequence[Table]) -> CurvePoints | None:
    """The parent's curve, joined from the curves of its tiers, hottest first; None if a tier has no curve."""
    points: list[tuple[float, float]] = []
    rows, ids, all_ids = 0, 0.0, sum(tier.pooling_factor for tier in tiers)
    for tier in tiers:
        if tier.popularity is None:
            return None
        points += [(rows + own, (ids + share * tier.pooling_factor) / all_ids) for own, share in tier.popularity]
        rows, ids = rows + tier.num_embeddings, ids + tier.pooling_factor
    return (*points[:-1], (points[-1][0], 1.0))


def _split(part: _Part, num_rows: int, share: float) -> tuple[_Part, _Part]:
    """The most popular `num_rows` rows of a part, which get `share` of its ids, and the other rows of the part.

    The profile does not tell which of a batch's distinct rows are among the most popular `num_rows`. The smallest
    choice takes rows from the reuse bins, hottest first, until they have `share` of the ids. A larger choice takes
    `share` of the rows of each bin. The result is a mixture of both. As far as the mixture allows, it has as many
    popular rows as one batch is expected to look up if all popular rows are equally popular.
    """
    if num_rows in (0, part.num_rows):
        none = _Part(0, np.zeros_like(part.rows), np.zeros_like(part.ids))
        return (none, part) if num_rows == 0 else (part, none)
    ids = share * part.ids.sum()
    above = np.cumsum(part.ids[::-1])[::-1] - part.ids  # ids of hotter bins
    some = part.ids > 1e-9 * part.ids.sum()
    hottest = np.clip((ids - above) / np.where(some, part.ids, np.inf), 0.0, 1.0)
    fewest, many, all_rows = part.rows @ hottest, share * part.rows.sum(), part.rows.sum()
    expected = -num_rows * np.expm1(-ids / num_rows)
    # Neither of the two parts has more distinct rows in a batch than it has rows.
    expected = np.clip(expected, all_rows - (part.num_rows - num_rows), num_rows)
    mixed = np.clip((expected - fewest) / (many - fewest), 0.0, 1.0) if many > fewest else 1.0
    taken = (1.0 - mixed) * hottest + mixed * share
    rows = taken * part.rows
    rows *= min(1.0, num_rows / max(float(rows.sum()), 1e-9))
    return (
        _Part(num_rows, rows, taken * part.ids),
        _Part(part.num_rows - num_rows, part.rows - rows, (1.0 - taken) * part.ids),
    )


def _tier_table(table: Table, tier: Tier, part: _Part, batch_size: int, curve: PopularityCurve) -> Table:
    rows = np.maximum(part.rows, 0.0)
    unique_rows = float(rows.sum())
    return replace(
        table,
        name=f"{table.name}/{tier.kind}",
        num_embeddings=part.num_rows,
        pooling_factor=max(float(part.ids.sum()) / batch_size, _LEAST_POOLING_FACTOR),
        unique_rows=min(max(unique_rows, _LEAST_UNIQUE_ROWS), float(part.num_rows)),
        reuse=tuple((rows / unique_rows).tolist()) if unique_rows > 0 else table.reuse,
        tier=tier,
        popularity=table.popularity and _part_of(curve, tier.row_offset, part.num_rows),
    )
