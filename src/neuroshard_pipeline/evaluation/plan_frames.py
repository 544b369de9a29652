"""Plans as data frames, and back: `search.plans` and the plans of other pipelines.

A frame has one row per shard. A plan may cut a sequence table, the parent, into tiers by the popularity of its rows.
For a shard of a tier, `table` is the parent's name, and `tier` is `hot`, `host` or `cold`. Its `row_offset` is a
position in the list of all rows of the parent: hot rows, then host rows, then cold rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.plan_data import FRAME_COLUMNS, KERNEL_COLUMNS, TIER_COLUMN
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task

#: Values for the columns that plan files of older versions of this package lack; -1 stands for all rows of a table.
_COLUMN_WISE: dict[str, Any] = {"sharding_type": "column_wise", "row_offset": 0, "num_rows": -1}


def plans_frame(plans: Sequence[Plan]) -> pd.DataFrame:
    """`search.plans`: the rows of all plans (`Plan.to_frame`)."""
    frames = [plan.to_frame() for plan in plans]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(FRAME_COLUMNS))


def shards_from_frame(rows: pd.DataFrame, task: ShardingTask) -> tuple[tuple[Shard, ...], tuple[int, ...]]:
    """Shards and ranks of a plan from its rows of `search.plans`. Without `sharding_type`, all shards are column-wise.

    The task is that of `task_from_frame`.
    """
    tables = {_key(table): table for table in task.tables}
    given = rows.assign(**{name: value for name, value in _COLUMN_WISE.items() if name not in rows})
    columns = (given[name].tolist() for name in ("table", *FRAME_COLUMNS[3:5], *_COLUMN_WISE))
    shards = []
    for tier, (name, column, width, sharding_type, row, count) in zip(
        _tiers(rows), zip(*columns, strict=True), strict=True
    ):
        table = tables[name, tier]
        first = row if table.tier is None else row - table.tier.row_offset
        shards.append(Shard(table, column, width, first, None if count < 0 else count, sharding_type))  # type: ignore[arg-type]
    return tuple(shards), tuple(given["rank"].tolist())


def task_from_frame(rows: pd.DataFrame, task: ShardingTask) -> ShardingTask:
    """The task that a plan is for: `task` with the tiers and compute kernels of the plan's rows of `search.plans`."""
    cuts = _cuts(rows)
    if cuts:
        task = tiered_task(task, cuts)
    if not rows.columns.isin(KERNEL_COLUMNS).any():
        return task
    given = rows.reindex(columns=["table", *KERNEL_COLUMNS]).assign(tier=_tiers(rows))
    given = given.drop_duplicates(["table", "tier"]).set_index(["table", "tier"])
    kernels = {key: {str(name): value for name, value in of.dropna().items()} for key, of in given.iterrows()}
    return replace(task, tables=[replace(table, **kernels[_key(table)]) for table in task.tables])


def _key(table: Table) -> tuple[str, str]:
    """Two strings: (name of the table, "") for a table without tiers, (name of the parent, kind of tier) for a tier."""
    return (table.name, "") if table.tier is None else (table.tier.parent, table.tier.kind)


def _tiers(rows: pd.DataFrame) -> list[str]:
    """The kind of tier of every row, empty for shards of tables without tiers."""
    return rows[TIER_COLUMN].fillna("").tolist() if TIER_COLUMN in rows else [""] * len(rows)


def _cuts(rows: pd.DataFrame) -> dict[str, Cuts]:
    """The numbers of hot and host rows of the tables that have tiers."""
    if TIER_COLUMN not in rows:
        return {}
    tiers = rows[rows[TIER_COLUMN].fillna("") != ""]
    # The frame has hot rows once per rank and host rows once per host; each block of rows is counted once.
    blocks = tiers[tiers["column_offset"] == 0].drop_duplicates(["table", TIER_COLUMN, "row_offset"])
    found = blocks.pivot_table("num_rows", "table", TIER_COLUMN, "sum", fill_value=0)
    none = np.zeros(len(found), dtype=np.int64)
    return {
        str(name): Cuts(int(hot), int(host))
        for name, hot, host in zip(found.index, found.get("hot", none), found.get("host", none), strict=True)
    }
