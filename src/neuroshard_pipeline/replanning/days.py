"""A change of the popular rows: what a plan costs on another day's ids, and what it costs to cut its tiers again.

Tiers cut a sequence table by the popularity of its rows: hot rows are on every rank, host rows are once on every host,
and cold rows are sharded. Hot and host rows were popular on the day that the plan was made for. The new popular rows
are counted in half of the other day's batches, and plans are priced on the remaining half, so that rows that were
popular by chance do not make cutting again look better than it is.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.replanning.choices import FREE, KEEP, LEAST_GAIN, Choice, Replan, replan
from neuroshard_pipeline.replanning.moved import move_of, moved_bytes
from neuroshard_pipeline.replanning.other_day import (
    DayIds,
    PopularRows,
    day_task,
    most_popular,
    on_ids,
    planned_shares,
    shares_of,
)
from neuroshard_pipeline.replanning.present import Judgement, Present
from neuroshard_pipeline.search.gains import slowest_parts
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.kinds import TIER_KINDS, TierKind
from neuroshard_pipeline.tables.popularity import id_counts
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, cuts_of, parent_tables, tiers_of

SAME_CUTS = "same cuts"


def plan_day(
    task: ShardingTask, day: DayIds, models: Models, settings: SharderSettings | None = None
) -> tuple[Plan, PopularRows]:
    """The plan for a day, which may have tiers, and the most popular rows of its tables with tiers.

    The profiles of the task's tables are replaced by those of the day's batches, which are of the global batch size.
    """
    plan = shard(day_task(task, day), models, params=settings)
    return plan, _popular(plan.task, day)


def replan_day(
    present: Plan, rows: PopularRows, day: DayIds, models: Models, settings: SharderSettings | None = None
) -> Replan:
    """The choices on another day's ids: keep, the same cuts with the day's popular rows, and a plan for the day.

    Without tiers in the present plan, which is trained with the popular `rows`, they are those of `replan` for the
    profiles of the day. The day has at least two batches of the global batch size for every table of the model.

    Raises:
        TaskError: batches or popular rows are missing.
    """
    _check(present, rows, day)
    if not cuts_of(present.task):
        return replan(Present.of(present), day_task(present.task, day), models, settings=settings)
    names = [table.name for table in parent_tables(present.task)]
    counted, judged = {name: day[name][::2] for name in names}, {name: day[name][1::2] for name in names}
    fresh = shard(day_task(present.task, counted), models, params=settings)
    ways = [(KEEP, present, rows)]
    ways += [(name, plan, _popular(plan.task, counted)) for name, plan in ((SAME_CUTS, present), (FREE, fresh))]
    found = list[Choice]()
    for name, plan, popular in ways:
        priced = on_ids(plan, popular, judged, models)
        before, after = rows_moved((present, rows), (priced, popular))
        sent = moved_bytes(before, after.shards, after.ranks, priced.task, stay=True)
        choice = Choice(name, priced, move_of(sent, priced.task, models), 0.0, slowest_parts(priced, models))
        choice = replace(choice, saved_ms=found[0].step_ms - choice.step_ms if found else 0.0)
        if choice.step_ms < (1 - LEAST_GAIN) * min((other.step_ms for other in found), default=np.inf):
            found.append(choice)
    problems, keep = tuple(_shares_sentences(present, rows, judged)), found[0].plan
    judgement = Judgement(problems, keep.predicted, keep.memory_bytes, keep.memory.limits(keep.task))
    return Replan(Present.of(present), judgement, tuple(found))


def _popular(task: ShardingTask, day: DayIds) -> dict[str, IntArray]:
    """The popular rows of the tables with tiers, counted in batches of ids."""
    cuts = cuts_of(task)
    tables = [table for table in parent_tables(task) if table.name in cuts]
    return most_popular(cuts, {table.name: id_counts(day[table.name], table.num_embeddings) for table in tables})


def rows_moved(old: tuple[Plan, PopularRows], new: tuple[Plan, PopularRows]) -> tuple[Present, Placement]:
    """A change of tiers as a change of plan: the rows that go from one tier to another are a table of their own.

    Each part of a sharded tier gets a proportional part of these rows, because the order of rows in a tier is free.
    """
    placed: tuple[list[tuple[Shard, int]], ...] = ([], [])
    for table in parent_tables(new[0].task):
        tiers = [_tier_rows(plan, rows, table) for plan, rows in (old, new)]
        for before, after in itertools.product(TIER_KINDS, TIER_KINDS):
            rows = _common_rows(tiers[0], tiers[1], before, after, table.num_embeddings)
            if rows:
                name = f"{table.name}: {before} to {after}"
                part = Table(name, rows, table.embedding_dim, 1.0, data_type=table.data_type)
                for found, (plan, _), kind in zip(placed, (old, new), (before, after), strict=True):
                    found += _placed_part(part, plan, table, kind)
    sides = [(tuple(shard for shard, _ in of), tuple(rank for _, rank in of)) for of in placed]
    task = old[0].task
    return Present(*sides[0], task.world_size, task.task_id, task.local_world_size), Placement(*sides[1])


def _tier_rows(plan: Plan, rows: PopularRows, table: Table) -> dict[TierKind, IntArray]:
    """The rows of the hot and the host tier of a table of the model."""
    cuts = cuts_of(plan.task).get(table.name, Cuts())
    popular = rows.get(table.name, np.empty(0, dtype=np.int64))[: cuts.hot_rows + cuts.host_rows]
    return {"hot": popular[: cuts.hot_rows], "host": popular[cuts.hot_rows :]}


def _common_rows(
    old: dict[TierKind, IntArray], new: dict[TierKind, IntArray], before: TierKind, after: TierKind, num_rows: int
) -> int:
    """Number of rows that are in one tier before and in another one after a change."""
    popular = [np.concatenate([*of.values()]) for of in (old, new)]
    if before == after == "cold":
        return num_rows - len(np.union1d(*popular))
    if "cold" in (before, after):
        return len(np.setdiff1d(new[after], popular[0]) if before == "cold" else np.setdiff1d(old[before], popular[1]))
    return len(np.intersect1d(old[before], new[after]))


def _placed_part(part: Table, plan: Plan, table: Table, kind: TierKind) -> Iterator[tuple[Shard, int]]:
    """Shards of `part` as a tier of a table of the model is sharded, or as the whole table is, without tiers."""
    for of, rank in zip(plan.shards, plan.ranks, strict=True):
        if of.table.name in (table.name, f"{table.name}/{kind}"):
            share = part.num_embeddings, of.table.num_embeddings
            first, end = (row * share[0] // share[1] for row in (of.row_offset, of.row_offset + of.num_rows))
            if first < end:
                yield replace(of, table=part, row_offset=first, num_rows=end - first), rank


def _shares_sentences(plan: Plan, rows: PopularRows, day: DayIds) -> list[str]:
    """What share of the ids looks up the tiers of every table, as planned and on the day."""
    now, sentences = shares_of(plan.task, rows, day), []
    for name, tiers in tiers_of(plan.task).items():
        pairs = zip(planned_shares(tiers).items(), now[name].values(), strict=True)
        shares = ", ".join(f"{after:.0%} (planned {before:.0%}) {kind}" for (kind, before), after in pairs)
        sentences.append(f"the ids of table {name!r} look up {shares} rows")
    return sentences


def _check(plan: Plan, rows: PopularRows, day: DayIds) -> None:
    task_id = plan.task.task_id
    for table in parent_tables(plan.task):
        if len(day.get(table.name, ())) < 2:
            raise TaskError(f"{task_id}: give at least two batches of ids of table {table.name!r}")
    for name, own in cuts_of(plan.task).items():
        if len(rows.get(name, ())) < own.hot_rows + own.host_rows:
            raise TaskError(
                f"{task_id}: table {name!r} has {own.hot_rows} hot and {own.host_rows} host rows, but "
                f"{len(rows.get(name, ()))} popular rows are given; give the rows that the plan is trained with"
            )
