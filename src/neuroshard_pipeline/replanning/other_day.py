"""Plans with tiers on the ids of another day: profiles of the day, shares of the ids per tier, and predicted costs.

Tiers cut a sequence table, the parent, by the popularity of its rows: hot rows are on every rank, host rows are once on
every host, and cold rows are sharded. Shape: N ids of a batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.id_batches import counted, observed, read_id_batches
from neuroshard_pipeline.tables.kinds import TierKind
from neuroshard_pipeline.tables.popularity import IdCounts, popular_rows
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, parent_tables, tiers_of

#: The batches of one day: the ids (N,) of every batch, by table.
DayIds = Mapping[str, Sequence[IntArray]]
#: Most popular rows of every table with tiers, hottest first.
PopularRows = Mapping[str, IntArray]


class DaysParams(Parameters):
    """The ids of two days (`tables.id_batches`).

    Attributes:
        planned: path of the ids of the day that the plan is made for.
        other: path of the ids of the day that the plan is judged on.
        num_batches: number of batches that are read of each day; their size is the task's global batch size.
    """

    planned: str | None
    other: str | None
    num_batches: int = Field(ge=2)

    def read(self, name: Literal["planned", "other"], task: ShardingTask) -> DayIds:
        """The ids of one of the days.

        Raises:
            TableFileError: no file is given, or it cannot be used.
            CriteoFileError: a line of a click log is malformed.
        """
        path = getattr(self, name)
        if path is None:
            remedy = f"set replan.days.{name} to a click log in Criteo's format or a Parquet file of ids"
            raise TableFileError(f"{task.task_id}: no ids of the {name} day are given; {remedy}")
        names = "replan.days.num_batches or plan.task.batch_size"
        return read_id_batches(path, task.tables, task.batch_size, self.num_batches, names)


def most_popular(cuts: Mapping[str, Cuts], counted: Mapping[str, IdCounts]) -> dict[str, IntArray]:
    """The hot and host rows of every table of `cuts`, hottest first, by the ids that were counted."""
    return {name: popular_rows(counted[name], own.hot_rows + own.host_rows) for name, own in cuts.items()}


def day_task(task: ShardingTask, day: DayIds) -> ShardingTask:
    """The task of the model's tables, with the profiles and popularity curves of a day's batches; tiers are allowed.

    The tables of the given task, which is that of a plan, may be tiers.
    """
    parents = {tier.name: name for name, tiers in tiers_of(task).items() for tier in tiers}
    entries = (replace(entry, table=parents.get(entry.table, entry.table)) for entry in task.constraints.tables)
    return replace(
        task,
        tables=[counted(table, day[table.name], task.batch_size) for table in parent_tables(task)],
        constraints=replace(task.constraints, tables=list(dict.fromkeys(entries))),
        tiers=True,
    )


def on_ids(plan: Plan, rows: PopularRows, day: DayIds, models: Models) -> Plan:
    """The plan with the cost predicted for batches of ids; every table or tier gets the profile of its own ids."""
    size = plan.task.batch_size
    seen = {t.name: observed(t, day[t.name], size) for t in plan.task.tables if t.tier is None}
    for name, tiers in tiers_of(plan.task).items():
        parts = [_split(ids, tiers, rows[name]) for ids in day[name]]
        seen |= {tier.name: observed(tier, [own[at] for own in parts], size) for at, tier in enumerate(tiers)}
    task = replace(plan.task, tables=[seen[table.name] for table in plan.task.tables])
    shards = tuple(replace(shard, table=seen[shard.table.name]) for shard in plan.shards)
    return price_plan(Problem(task, models, plan.memory), Placement(shards, plan.ranks), plan.sharder)


def shares_of(task: ShardingTask, rows: PopularRows, day: DayIds) -> dict[str, dict[TierKind, float]]:
    """Shares of the ids that look up each tier, by table and kind of tier, for every table of a task with tiers."""
    found = {}
    for name, tiers in tiers_of(task).items():
        ids = np.sum([[len(part) for part in _split(own, tiers, rows[name])] for own in day[name]], axis=0)
        found[name] = _as_shares(tiers, ids)
    return found


def planned_shares(tiers: Sequence[Table]) -> dict[TierKind, float]:
    """Shares of the ids that look up each of the tiers of one table, from their pooling factors."""
    return _as_shares(tiers, [tier.pooling_factor for tier in tiers])


def _as_shares(tiers: Sequence[Table], ids: Iterable[float]) -> dict[TierKind, float]:
    kinds = {tier.tier.kind: count for tier, count in zip(tiers, ids, strict=True) if tier.tier is not None}
    return {kind: count / max(sum(kinds.values()), 1e-9) for kind, count in kinds.items()}


def _split(ids: IntArray, tiers: Sequence[Table], rows: IntArray) -> list[IntArray]:
    """The part of `ids` (N,) that looks up each tier, in the order of `tiers`; `rows`: popular rows, hottest first."""
    ends = np.cumsum([tier.num_embeddings for tier in tiers if tier.tier is not None and tier.tier.kind != "cold"])
    order = np.argsort(rows, kind="stable")
    at = np.minimum(np.searchsorted(rows[order], ids), len(rows) - 1)
    place = np.where(rows[order][at] == ids, order[at], len(rows))
    of_tier = np.searchsorted(ends, place, side="right")
    return [ids[of_tier == number] for number in range(len(tiers))]
