"""Random plans whose steps are measured to fit the step cost model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from pydantic import Field, PositiveInt

from neuroshard_pipeline.augment.drawing import BatchSize, Share, TableLimits, WorldSizesHere
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.frames import tables_from_frame
from neuroshard_pipeline.tables.row_blocks import last_rank_has_rows, ranks_together, shards_together
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

_STREAM, _KIND_STREAM = 11, 12
#: Probabilities that a column-wise table is cut into shards. One of them is drawn per plan; with 0, all are whole.
_CUT_SHARES = (0.0, 0.3, 1.0)
#: The sharding types of the tables of a plan are drawn from one of these; a table that cannot have any is column-wise.
_MIXES: tuple[tuple[ShardingType, ...], ...] = (
    ("column_wise", "column_wise", "row_wise"),
    ("column_wise", "data_parallel"),
    ("column_wise", "column_wise", "row_wise", "data_parallel", "data_parallel"),
)
_MIXES_ON_HOSTS: tuple[tuple[ShardingType, ...], ...] = (
    ("table_row_wise",),
    ("grid_shard",),
    ("column_wise", "column_wise", "table_row_wise", "data_parallel"),
    ("column_wise", "table_row_wise", "grid_shard"),
)
#: A task's tables are drawn with probabilities in proportion to one of these powers of their pooling factors. The first
#: favours tables with short bags, the last tables with long bags.
_POOLING_POWERS = (-0.5, 0.0, 0.25)
#: Most sequence tables of a task; each of their ids is an output.
_MOST_SEQUENCES = 4


class StepPlanParams(TableLimits):
    """Random plans whose steps are measured.

    Attributes:
        world_sizes: numbers of ranks; null: the number that this machine runs side by side.
        tasks: number of sets of tables for each of `world_sizes`; with 0, there is no step cost model.
        plans_per_task: plans of every set of tables.
        batch_size: global batch size of most tasks; the pool must have tables of this and of the other sizes.
        other_batch_sizes: global batch sizes of the other tasks.
        other_batch_share: share of the tasks that have one of `other_batch_sizes`.
        dimensions: widths of the tables.
        min_tables_per_4_ranks: smallest number of tables that are drawn for a task, for every 4 ranks.
        max_tables_per_4_ranks: largest number of tables that are drawn for a task, for every 4 ranks.
        weighted_share: share of tasks in which some tables have weighted ids: on average half of the tables, or a
            quarter of them if the task has mean pooling, too.
        mean_share: share of tasks in which, on average, half of the tables have mean pooling.
        sequence_share: share of tasks in which up to four tables are sequence tables, all of one width.
        half_precision_share: share of tasks with fp16 communication.
        max_weight_bytes_per_rank: largest total size of the tables of a task, for every rank; the largest drawn tables
            are left out until the others fit.
        spread_share: share of plans in which tables may have other types than `column_wise`. On several hosts, half of
            these plans have table-row-wise or grid-sharded tables.
        max_replica_bytes: largest size of a data-parallel table.
        seed: seed of all draws.
    """

    world_sizes: WorldSizesHere
    tasks: int = Field(ge=0)
    plans_per_task: PositiveInt
    batch_size: BatchSize
    other_batch_sizes: tuple[BatchSize, ...]
    other_batch_share: Share
    weighted_share: Share
    mean_share: Share
    sequence_share: Share
    half_precision_share: Share
    max_weight_bytes_per_rank: PositiveInt
    spread_share: Share
    max_replica_bytes: int = Field(ge=0)
    seed: int = Field(ge=0)


def random_plans(pool: pd.DataFrame, params: StepPlanParams, ranks_per_host: int | None = None) -> list[Plan]:
    """Draw tasks and plans whose quantities of work (`tables.step_work`) vary independently of each other.

    The number of tables of the pool (`augment.table_pool`), their widths and the lengths of their bags are drawn
    independently for every task. Every second plan places each shard on the rank that looks up least; the others have
    more work on one rank than on another. Without `ranks_per_host`, all ranks are on one host.

    Raises:
        TaskError: the pool has too few tables of a batch size.
    """
    plans = []
    for world_size in params.world_sizes:
        for index in range(params.tasks):
            rng = np.random.default_rng([_STREAM, params.seed, world_size, index])
            task = _draw_task(pool, params, world_size, index, rng)
            if ranks_per_host is not None and world_size > ranks_per_host:
                task = replace(task, local_world_size=ranks_per_host)
            plans += [_draw_plan(task, number, params, rng) for number in range(params.plans_per_task)]
    return plans


def _draw_task(
    pool: pd.DataFrame, params: StepPlanParams, world_size: int, index: int, rng: np.random.Generator
) -> ShardingTask:
    batch_size = params.batch_size
    if params.other_batch_sizes and rng.random() < params.other_batch_share:
        batch_size = int(rng.choice(params.other_batch_sizes))
    candidates = pool[(pool["batch_size"] == batch_size) & (pool["data_type"] == "fp32") & (pool["num_embeddings"] > 1)]
    count = round(np.exp(rng.uniform(*np.log(params.table_limits(world_size)))))
    if count > len(candidates):
        raise TaskError(
            f"measure.step_plans: {count} fp32 tables of batch size {batch_size} with more than one row each are "
            f"needed, but the pool has {len(candidates)}; lower max_tables_per_4_ranks, or choose batch sizes of "
            "augment.variation.batch_sizes"
        )
    weights = candidates["pooling_factor"].to_numpy() ** rng.choice(_POOLING_POWERS)
    order = rng.choice(len(candidates), size=count, replace=False, p=weights / weights.sum())
    widths = rng.choice(params.dimensions, size=rng.integers(1, 4)) if rng.random() < 0.5 else params.dimensions
    drawn = [
        replace(table, embedding_dim=int(rng.choice(widths))) for table in tables_from_frame(candidates.iloc[order])
    ]
    kind_rng = np.random.default_rng([_KIND_STREAM, params.seed, world_size, index])
    drawn = _with_other_kinds(drawn, params, kind_rng)
    return ShardingTask(
        _first_that_fit(drawn, params.max_weight_bytes_per_rank * world_size),
        world_size,
        batch_size,
        memory_bytes=2**50,  # no plan is too large for a rank; the weights of all tables together are limited
        task_id=f"step-{world_size}-ranks-{index:03d}",
        comm_precision="fp16" if kind_rng.random() < params.half_precision_share else "fp32",
    )


def _with_other_kinds(tables: Sequence[Table], params: StepPlanParams, rng: np.random.Generator) -> list[Table]:
    """The tables, some of which have weighted ids or mean pooling, or are sequence tables; no table is two of these."""
    weighted, mean = rng.random() < params.weighted_share, rng.random() < params.mean_share
    found = []
    for table in tables:
        kind = int(rng.integers(4))
        if weighted and kind < (1 if mean else 2):
            found.append(replace(table, is_weighted=True))
        else:
            found.append(replace(table, pooling="mean" if mean and kind >= 2 else table.pooling))
    count = int(rng.integers(1, _MOST_SEQUENCES + 1)) if rng.random() < params.sequence_share else 0
    sequences = (replace(t, pooling="none", embedding_dim=tables[0].embedding_dim) for t in tables[:count])
    return [*sequences, *found[count:]]


def _first_that_fit(tables: Sequence[Table], max_bytes: int) -> list[Table]:
    """The smallest tables, as many as `max_bytes` allow, in ascending order of size; at least one."""
    ascending = sorted(tables, key=lambda table: table.weight_bytes)
    used = np.cumsum([table.weight_bytes for table in ascending])
    return ascending[: max(int((used <= max_bytes).sum()), 1)]


def _draw_plan(task: ShardingTask, number: int, params: StepPlanParams, rng: np.random.Generator) -> Plan:
    cut_share, shares = rng.choice(_CUT_SHARES), rng.dirichlet(np.full(task.world_size, 3.0))
    mixes = _MIXES_ON_HOSTS if task.num_hosts > 1 and rng.random() < 0.5 else _MIXES
    mix = mixes[rng.integers(len(mixes))] if rng.random() < params.spread_share else ("column_wise",)
    looked_up, placed = np.zeros(task.world_size), list[tuple[Shard, int]]()
    for table in sorted(task.tables, key=lambda table: -table.pooling_factor * table.embedding_dim):
        kind = _draw_type(table, task, mix, params.max_replica_bytes, rng)
        is_cut = kind == "grid_shard" or (kind == "column_wise" and rng.random() < cut_share)
        for piece in _column_shards(table, rng) if is_cut else [whole(table)]:
            groups = ranks_together(kind, task)
            at, loads = rng.choice(len(groups), p=shares[groups].sum(axis=1)), looked_up[groups].sum(axis=1)
            ranks = groups[loads.argmin() if number % 2 else at]
            placed += zip(shards_together(piece, kind, len(ranks)), ranks, strict=False)
            looked_up[ranks] += table.pooling_factor * piece.embedding_dim / len(ranks)
    shards, ranks_of_shards = zip(*placed, strict=True)
    return Plan(task, shards, ranks_of_shards, f"random-{number}", compute_device=None)


def _draw_type(
    table: Table, task: ShardingTask, mix: Sequence[ShardingType], max_replica_bytes: int, rng: np.random.Generator
) -> ShardingType:
    """One of the types of `mix` that the table can have, or else `column_wise`."""
    is_cuttable = last_rank_has_rows(table.num_embeddings, task.world_size)
    others = {"column_wise": True, "data_parallel": table.weight_bytes <= max_replica_bytes}
    types = task.possible_types(table)
    possible = [kind for kind in mix if kind in types and others.get(kind, is_cuttable)] or ["column_wise"]
    return possible[int(rng.integers(len(possible)))]


def _column_shards(table: Table, rng: np.random.Generator) -> list[Shard]:
    """Two or four shards of equal width, as far as the width allows; those of all sequence tables have one width."""
    pieces = 2 if table.pooling == "none" else int(rng.choice((2, 4)))
    while table.embedding_dim % (pieces * COLUMN_GRANULARITY):
        pieces //= 2
    width = table.embedding_dim // pieces
    return [Shard(table, at * width, width) for at in range(pieces)]
