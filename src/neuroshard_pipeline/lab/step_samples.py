"""Random plans of random tables, priced by the lab; the step cost model of a cluster is fitted to these prices.

Shapes: N ranks of all plans, Q quantities of work (`tables.step_work`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.lab.device import ModelledDevice
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.lab.step import known_ms, step_cost_ms
from neuroshard_pipeline.tables.row_blocks import ranks_together, shards_together
from neuroshard_pipeline.tables.step_work import rank_work
from neuroshard_pipeline.tables.table import Shard, ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task

#: The parts of a step that are proportional to work.
PARTS: tuple[str, ...] = ("input_dist", "module", "dense")
_WIDTHS = (8, 16, 32, 64, 128)
_LOCAL_BATCHES = (512, 1024, 2048, 4096, 8192)
_TABLES_PER_RANK = (1, 12)
_MOST_REPLICA_ROWS = 50_000
_EXCHANGED_TYPES: tuple[ShardingType, ...] = ("column_wise", "row_wise", "table_row_wise", "grid_shard")
#: Kinds of tables besides pooled sums without weights, and the shares that each kind may have in a plan.
_OTHER_KINDS: tuple[dict[str, Any], ...] = ({"is_weighted": True}, {"pooling": "mean"}, {"pooling": "none"})
_OTHER_SHARES = (0.0, 0.0, 0.3)
_HALF_PRECISION = 0.25  # share of plans that communicate in fp16
#: Shares of plans with `index_dedup`, and of plans in which half of the sequence tables have hot tiers (popular rows on
#: every rank).
_SENT_ONCE, _IN_TIERS = 0.25, 0.25
_HOT_ROWS = (2.0, 4.5)  # range of the decimal logarithm of the number of hot rows
_OF_ALL_TYPES = 0.5  # share of plans whose tables may have any type; the others are column-wise, some with replicas


@dataclass(frozen=True)
class StepSamples:
    """Work (N, Q) and modelled cost of the ranks of many plans (`plan`, (N,)); all plans have the same number of ranks.

    `cost_ms` holds milliseconds per part, (N,) each, without `step.known_ms`; 0 if a plan has no such part.
    """

    work: FloatArray
    cost_ms: Mapping[str, FloatArray]
    plan: IntArray


def step_samples(
    device: ModelledDevice, network: NetworkParams, world_size: int, num_plans: int, rng: np.random.Generator
) -> StepSamples:
    """Draw plans with 1 to 12 tables per rank, and price their steps.

    On more than one host, `world_size` must be a multiple of the GPUs per host.
    """
    works, costs = [], []
    for _ in range(num_plans):
        task, shards, ranks = _random_plan(network, world_size, rng)
        cost = step_cost_ms(task, shards, ranks, device, network)
        works.append(rank_work(task, shards, ranks))
        known = known_ms(task, shards, ranks, device, network)
        costs.append(np.stack([getattr(cost, f"{part}_ms") - known.get(part, 0.0) for part in PARTS]))
    of_part = dict(zip(PARTS, np.concatenate(costs, axis=1), strict=True))
    return StepSamples(np.concatenate(works), of_part, np.repeat(np.arange(num_plans), world_size))


def _random_plan(
    network: NetworkParams, world_size: int, rng: np.random.Generator
) -> tuple[ShardingTask, list[Shard], list[int]]:
    per_host = network.gpus_per_host if world_size > network.gpus_per_host else None
    num_tables = max(1, round(world_size * rng.uniform(*_TABLES_PER_RANK)))
    others = [rng.choice(_OTHER_SHARES) for _ in _OTHER_KINDS]
    kinds = rng.choice(len(_OTHER_KINDS) + 1, size=num_tables, p=[1.0 - sum(others), *others]) - 1
    tables = [
        Table(
            name=f"table_{index}",
            num_embeddings=round(10 ** rng.uniform(2.0, 7.5)),
            embedding_dim=int(rng.choice(_WIDTHS)),
            pooling_factor=float(np.exp(rng.uniform(0.0, 4.5))),
            **(_OTHER_KINDS[kinds[index]] if kinds[index] >= 0 else {}),
        )
        for index in range(num_tables)
    ]
    batch_size = world_size * int(rng.choice(_LOCAL_BATCHES))
    precision = "fp16" if rng.random() < _HALF_PRECISION else "fp32"
    task = ShardingTask(tables, world_size, batch_size, 2**50, local_world_size=per_host, comm_precision=precision)
    task = _with_sequence_options(task, rng)
    of_all_types, replicated_share = rng.random() < _OF_ALL_TYPES, rng.choice([0.0, 0.5])
    cut_share = rng.choice([0.0, 0.2])
    placed = []
    for table in task.tables:
        kind: ShardingType = "column_wise"
        is_hot = table.tier is not None and table.tier.kind == "hot"
        if is_hot or (table.num_embeddings <= _MOST_REPLICA_ROWS and rng.random() < replicated_share):
            kind = "data_parallel"
        elif of_all_types:
            kind = _EXCHANGED_TYPES[rng.choice(len(_EXCHANGED_TYPES), p=[0.85, 0.05, 0.05, 0.05])]
        if kind not in task.possible_types(table):
            kind = "column_wise"
        placed += _placed(table, kind, task, cut_share, rng)
    return task, [shard for shard, _ in placed], [rank for _, rank in placed]


def _with_sequence_options(task: ShardingTask, rng: np.random.Generator) -> ShardingTask:
    """The task, by chance with `index_dedup` or with hot tiers. No table gets a host tier."""
    is_sent_once, is_in_tiers = rng.random() < _SENT_ONCE, rng.random() < _IN_TIERS
    task = replace(task, index_dedup=bool(is_sent_once), tiers=bool(is_in_tiers))
    if not is_in_tiers:
        return task
    rows = {table.name: int(10 ** rng.uniform(*_HOT_ROWS)) for table in task.tables if table.pooling == "none"}
    most = {table.name: table.num_embeddings for table in task.tables}
    return tiered_task(task, {name: Cuts(min(hot, most[name])) for name, hot in rows.items() if rng.random() < 0.5})


def _placed(
    table: Table, kind: ShardingType, task: ShardingTask, cut_share: float, rng: np.random.Generator
) -> list[tuple[Shard, int]]:
    """The shards of one table on random ranks; a column-wise table is halved with probability `cut_share`."""
    half = table.embedding_dim // 2
    is_cut = kind == "grid_shard" or (kind == "column_wise" and rng.random() < cut_share)
    groups, placed = ranks_together(kind, task), list[tuple[Shard, int]]()
    for block in [Shard(table, 0, half), Shard(table, half, half)] if is_cut else [whole(table)]:
        ranks = groups[int(rng.integers(len(groups)))]
        placed += zip(shards_together(block, kind, len(ranks)), ranks, strict=False)
    return placed
