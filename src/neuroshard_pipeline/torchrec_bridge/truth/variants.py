"""Variants of a sharder's plans in which some tables have another sharding type.

They show on real ranks what replicas and row shards cost, even if every sharder prefers column-wise tables.
"""

import dataclasses
from collections.abc import Iterator

import pandas as pd

from neuroshard_pipeline.errors import CostModelError, PlanError
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.tables.row_blocks import row_blocks, shards_together
from neuroshard_pipeline.tables.table import ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

#: Some variants make this many tables row-wise, those with the most ids.
_MOST_IDS = 5

#: Tables by the sharding type that they get; all other tables keep their shards.
_Changes = dict[ShardingType, list[Table]]


def with_variants(solutions: Solutions, sharder: str | None, models: Models) -> Solutions:
    """The solutions, and the variants of all plans of `sharder`; None adds nothing.

    A variant has a price if the models have a step cost model. A variant without room in memory is a failed attempt.
    """
    plans, attempts = list(solutions.plans), []
    for plan in [plan for plan in solutions.plans if plan.sharder == sharder]:
        for name, changes in _variants(plan.task):
            try:
                plans.append(_priced(_changed(plan, name, changes), models))
                error = None
            except PlanError as problem:
                error = str(problem)
            attempts.append((plan.task.task_id, name, 0.0, error))
    frame = pd.DataFrame(attempts, columns=["task_id", "sharder", "seconds", "error"])
    return Solutions(
        tuple(plans), pd.concat([solutions.attempts, frame], ignore_index=True) if attempts else solutions.attempts
    )


def _variants(task: ShardingTask) -> Iterator[tuple[str, _Changes]]:
    """Names of the variants, and the tables whose type they change."""
    small = [table for table in task.tables if table.num_embeddings <= task.batch_size]
    by_ids = sorted(task.tables, key=lambda table: -table.pooling_factor)
    cut = [table for table in by_ids if row_blocks(table.num_embeddings, task.world_size)[-1][1] > 0]
    yield "small tables data_parallel", {"data_parallel": small}
    yield "most ids row_wise", {"row_wise": cut[:_MOST_IDS]}
    yield "all row_wise", {"row_wise": cut}
    larger = [table for table in cut if table not in small]
    yield "all three types", {"data_parallel": small, "row_wise": larger[:_MOST_IDS]}


def _changed(plan: Plan, name: str, changes: _Changes) -> Plan:
    """The plan with other types for some tables, under another name and without a price."""
    world_size = plan.task.world_size
    changed = {table.name for tables in changes.values() for table in tables}
    placed = [entry for entry in zip(plan.shards, plan.ranks, strict=True) if entry[0].table.name not in changed]
    for sharding_type, tables in changes.items():
        for table in tables:
            placed += zip(shards_together(whole(table), sharding_type, world_size), range(world_size), strict=True)
    shards, ranks = zip(*placed, strict=True)
    return dataclasses.replace(
        plan, shards=shards, ranks=ranks, sharder=name, predicted=None, interval_ms=(), rejected=(), caveats=()
    )


def _priced(plan: Plan, models: Models) -> Plan:
    """The plan with its price, or without one if the models cannot price its sharding types."""
    try:
        return priced(plan, models)
    except CostModelError:
        return plan
