"""What a plan with tiers costs on another day, and after how many steps it pays to cut the tiers again.

Tiers cut a sequence table by the popularity of its rows: hot rows are on every rank, host rows are once on every host,
and cold rows are sharded. Hot and host rows were popular on the day that the plan was made for. On another day, cold
rows get more of the ids, and the ranks exchange more. Cutting again moves rows between ranks, which takes time once,
and saves time in every step. The new popular rows are counted in half of the other day's batches, and plans are priced
on the remaining half, so that rows that were popular by chance do not make cutting again look better than it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.evaluation.other_day import (
    DayIds,
    PopularRows,
    TierShares,
    day_task,
    most_popular,
    on_ids,
    planned_shares,
    shares_of,
)
from neuroshard_pipeline.evaluation.recut_bytes import RowPlaces, places_without_tiers, received_bytes
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.tier_prices import cuttable_tables
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.popularity import id_counts
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, cuts_of, parent_tables, tiers_of

_BYTES_PER_MS = 1e6  # at 1 GB/s


class DriftParams(Parameters):
    """When cutting again pays.

    Attributes:
        gb_per_s: bandwidth at which one rank receives rows when tiers are cut again.
        steps: training steps until popularity has changed again; cutting must have paid by then.
        least_saving: share of a step's time that cutting again must save. Cost models do not resolve less.
    """

    gb_per_s: float = Field(gt=0)
    steps: int = Field(ge=1)
    least_saving: float = Field(ge=0, lt=1)


@dataclass(frozen=True)
class Recut:
    """One way to cut again.

    Attributes:
        name: `same cuts` or `new plan`.
        plan: the plan after the change, priced for the day's ids.
        cuts: numbers of hot and host rows of the tables with tiers.
        shares: shares of the day's ids per tier.
        moved_bytes: bytes that all ranks together receive.
        move_ms: time in which they are received if every rank receives an equal share.
        saved_ms: predicted time by which the change shortens a step; negative if the step becomes longer.
        pays_after: steps after which `saved_ms` has made up for `move_ms`; None if it is not worth it (`DriftParams`).
    """

    name: str
    plan: Plan
    cuts: Mapping[str, Cuts]
    shares: Mapping[str, TierShares]
    moved_bytes: float
    move_ms: float
    saved_ms: float
    pays_after: float | None


@dataclass(frozen=True)
class Drift:
    """A plan with tiers on another day.

    Attributes:
        plan: the plan, with the cost that was predicted for the day it was made for.
        planned_shares: shares of the ids per tier that the plan expected.
        drifted: the plan with the same shards and popular rows, priced for the other day's ids.
        shares: shares of the other day's ids per tier.
        cuts: the plan's numbers of hot and host rows, by table with tiers.
        recuts: ways to cut again, the one with the largest `saved_ms` first.
    """

    plan: Plan
    planned_shares: Mapping[str, TierShares]
    drifted: Plan
    shares: Mapping[str, TierShares]
    cuts: Mapping[str, Cuts]
    recuts: tuple[Recut, ...]

    @property
    def worth_it(self) -> Recut | None:
        """The way to cut again that pays after the fewest steps; None if none is worth it."""
        paying = [recut for recut in self.recuts if recut.pays_after is not None]
        return min(paying, key=lambda recut: recut.pays_after or 0.0, default=None)


def plan_day(
    task: ShardingTask, day: DayIds, models: Models, sharder: str, settings: SharderSettings | None = None
) -> tuple[Plan, PopularRows]:
    """The plan for a day, which may have tiers, and the most popular rows of its tables with tiers.

    Args:
        task: the task of the model's tables; their profiles are replaced by those of the day.
        day: batches of ids of every table, of the task's global batch size.
        models: cost models.
        sharder: name of the sharder.
        settings: settings of the search.
    """
    plan = shard(day_task(task, day), models, sharder, settings)
    return plan, _popular(plan.task, day)


def evaluate_drift(
    plan: Plan,
    rows: PopularRows,
    day: DayIds,
    models: Models,
    params: DriftParams,
    settings: SharderSettings | None = None,
) -> Drift:
    """Compare a plan on another day's ids with plans that are cut for that other day.

    Two ways to cut again are tried: the same cuts and shards with the day's popular rows, and a new plan for the day's
    profiles.

    Args:
        plan: a plan with tiers.
        rows: the popular rows that it is trained with.
        day: at least two batches of the other day for every table of the model, of the task's global batch size.
            Popular rows are counted in every second batch, and plans are priced on the remaining ones.
        models: cost models.
        params: when cutting again pays.
        settings: settings of the search for the new plan.

    Raises:
        TaskError: the plan has no tiers, for the reason that the message gives, or batches or popular rows are missing.
    """
    _check(plan, rows, day, models)
    names = [table.name for table in parent_tables(plan.task)]
    counted, judged = {name: day[name][::2] for name in names}, {name: day[name][1::2] for name in names}
    here = _Here(on_ids(plan, rows, judged, models), rows, judged)
    fresh = shard(day_task(plan.task, counted), models, plan.sharder, settings)
    ways = (("same cuts", plan), ("new plan", fresh))
    recuts = [_recut(name, here, changed, _popular(changed.task, counted), (models, params)) for name, changed in ways]
    return Drift(
        plan,
        {name: planned_shares(tiers) for name, tiers in tiers_of(plan.task).items()},
        here.plan,
        shares_of(plan.task, rows, judged),
        cuts_of(plan.task),
        tuple(sorted(recuts, key=lambda recut: -recut.saved_ms)),
    )


@dataclass(frozen=True)
class _Here:
    """A plan that is priced for some ids, its popular rows, and these ids."""

    plan: Plan
    rows: PopularRows
    ids: DayIds


def _popular(task: ShardingTask, day: DayIds) -> dict[str, IntArray]:
    """The popular rows of the tables with tiers, counted in batches of ids."""
    cuts = cuts_of(task)
    tables = [table for table in parent_tables(task) if table.name in cuts]
    return most_popular(cuts, {table.name: id_counts(day[table.name], table.num_embeddings) for table in tables})


def _recut(name: str, here: _Here, plan: Plan, rows: PopularRows, judging: tuple[Models, DriftParams]) -> Recut:
    """The change from the plan `here` to `plan`, whose popular rows are `rows`."""
    models, params = judging
    changed = on_ids(plan, rows, here.ids, models)
    moved = _moved_bytes(here, changed, rows)
    move_ms = moved / changed.task.world_size / (params.gb_per_s * _BYTES_PER_MS)
    before_ms = _predicted_ms(here.plan)
    saved_ms = before_ms - _predicted_ms(changed)
    pays_after = move_ms / saved_ms if saved_ms > params.least_saving * before_ms else None
    return Recut(
        name,
        changed,
        cuts_of(changed.task),
        shares_of(changed.task, rows, here.ids),
        moved,
        move_ms,
        saved_ms,
        pays_after if pays_after is not None and pays_after <= params.steps else None,
    )


def _predicted_ms(plan: Plan) -> float:
    assert plan.predicted_cost_ms is not None, "price_plan predicts a cost"
    return plan.predicted_cost_ms


def _moved_bytes(here: _Here, changed: Plan, rows: PopularRows) -> float:
    """Bytes that all ranks together receive (`recut_bytes`)."""
    task, total = here.plan.task, 0.0
    for table in parent_tables(task):
        old, new = _places(here.plan, table.name, here.rows), _places(changed, table.name, rows)
        own = changed.memory.row_bytes(table, task)
        total += received_bytes(old, new, own, task.world_size, task.num_hosts)
    return total


def _places(plan: Plan, name: str, rows: PopularRows) -> RowPlaces:
    """The places of the rows of one table of the model."""
    own = [
        (shard, rank)
        for shard, rank in zip(plan.shards, plan.ranks, strict=True)
        if shard.table.name in (name, f"{name}/cold")
    ]
    shards, ranks = [shard for shard, _ in own], [rank for _, rank in own]
    cuts = cuts_of(plan.task).get(name)
    if cuts is None:
        return places_without_tiers(shards, ranks)
    popular = rows[name]
    end = cuts.hot_rows + cuts.host_rows
    return RowPlaces(popular[: cuts.hot_rows], popular[cuts.hot_rows : end], tuple(shards), tuple(ranks))


def _why_no_tiers(plan: Plan, models: Models) -> str:
    task = plan.task
    if not task.tiers:
        return "its task does not allow them; set the task's field tiers to True"
    if all(table.pooling != "none" for table in task.tables):
        return "none of the tables is a sequence table; give at least one with pooling none"
    if task.world_size == 1:
        return "with one rank, nothing is sent between ranks; plan for more ranks"
    if models.step is None or plan.sharder != "neuroshard_plus":
        return f"{plan.sharder} cannot make any with these cost models; use neuroshard_plus and a step cost model"
    if not cuttable_tables(task):
        return "no sequence table may be cut: each is in host memory, is not in fp32, or has constraints that forbid it"
    return "the search found none that make a step cheaper"


def _check(plan: Plan, rows: PopularRows, day: DayIds, models: Models) -> None:
    task_id, cuts = plan.task.task_id, cuts_of(plan.task)
    if not cuts:
        raise TaskError(f"{task_id}: the plan has no tiers to cut again: {_why_no_tiers(plan, models)}")
    for table in parent_tables(plan.task):
        if len(day.get(table.name, ())) < 2:
            raise TaskError(f"{task_id}: give at least two batches of ids of table {table.name!r}")
    for name, own in cuts.items():
        if len(rows.get(name, ())) < own.hot_rows + own.host_rows:
            raise TaskError(
                f"{task_id}: table {name!r} has {own.hot_rows} hot and {own.host_rows} host rows, but "
                f"{len(rows.get(name, ()))} popular rows are given; give the rows that the plan is trained with"
            )
