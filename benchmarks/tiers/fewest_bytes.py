"""Plans with tiers for sequence tables. As far as memory allows, they send the fewest bytes between hosts.

Among the plans that send so few bytes between hosts, they send the fewest inside hosts.
The plans are for networks that no cost models describe, such as a limited wire between two emulated hosts. A table has
up to three tiers, as far as memory allows. Hot rows have a copy on every rank, because each rank looks them up often
enough. Host rows have one copy per host, because only all ranks of a host together look them up often enough. All other
rows are cold and sharded row-wise. With one host, there are no host rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.memory import ID_BYTES, OUTPUT_BYTES
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.popularity import PopularityCurve
from neuroshard_pipeline.tables.row_blocks import row_blocks, row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task

#: If the ranks lack memory for the best tiers, a row needs more lookups to get copies: on several hosts, first
#: `_HOT_FACTORS` times as many to be hot; if no such plan fits, also `_FACTORS` times as many to be in either tier.
_FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0)
_HOT_FACTORS = (*(2.0**power for power in range(8)), np.inf)


def plan_with_fewest_bytes(task: ShardingTask, curves: Mapping[str, PopularityCurve], models: Models) -> Plan:
    """The plan. As far as memory allows, a row has copies if these save more bytes than reducing their gradients takes.

    Raises:
        PlanError: even tiers of few rows do not fit the memory.
    """
    task = replace(task, tiers=True)
    of_hot_rows: tuple[float, ...] = _HOT_FACTORS if task.num_hosts > 1 else (1.0,)
    if task.index_dedup and task.num_hosts > 1:
        of_hot_rows = (np.inf,)  # a rank asks for a row at most once per batch, so that its own copy saves too little
    for factor, of_hot in product(_FACTORS, of_hot_rows):
        cuts = {table.name: _cuts(table, task, curves[table.name], factor, of_hot) for table in task.tables}
        with suppress(PlanError):
            return plan_with_cuts(task, cuts, curves, models, "fewest_bytes")
    raise PlanError(f"{task.task_id}: tiers do not fit the memory")


def plan_with_cuts(
    task: ShardingTask, cuts: Mapping[str, Cuts], curves: Mapping[str, PopularityCurve], models: Models, name: str
) -> Plan:
    """The plan with these tiers and row-wise cold rows; `name` is that of its algorithm.

    Raises:
        PlanError: the tiers do not fit the memory.
    """
    variant = tiered_task(task, {table: own for table, own in cuts.items() if own}, curves)
    placed = [place for table in variant.tables for place in placed_shards_of(table, variant)]
    placement = Placement(tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed))
    return price_plan(Problem(variant, models, default_memory()), placement, name)


def _cuts(table: Table, task: ShardingTask, curve: PopularityCurve, factor: float, of_hot: float) -> Cuts:
    """Numbers of hot rows, which each rank looks up often enough, and of host rows, which only a whole host does."""
    width = OUTPUT_BYTES * table.embedding_dim
    least = factor * 2 * width / (ID_BYTES + 2 * width)
    visits = task.batch_size * table.pooling_factor * np.diff(curve.shares) / np.diff(curve.rows)

    def rows(places: int, factor: float) -> int:
        return int(curve.rows[1:][visits / places >= factor * least].max(initial=0.0))

    hot = rows(task.world_size, of_hot)
    return Cuts(hot, rows(task.num_hosts, 1.0) - hot) if task.num_hosts > 1 else Cuts(hot, 0)


def placed_shards_of(table: Table, task: ShardingTask) -> list[tuple[Shard, int]]:
    """The shards of a table or tier, and their ranks; cold rows are row-wise."""
    kind, local = table.tier.kind if table.tier else "cold", task.ranks_per_host
    if kind == "hot":
        return [(whole(table, "data_parallel"), rank) for rank in range(task.world_size)]
    if kind == "host":
        blocks = [block for block in row_blocks(table.num_embeddings, local) if block[1]]
        return [
            (Shard(table, 0, table.embedding_dim, *block, "host_row_wise"), first + place)
            for first in range(0, task.world_size, local)
            for place, block in enumerate(blocks)
        ]
    return [(shard, rank) for rank, shard in enumerate(row_shards(table, "row_wise", task.world_size))]
