"""Random plans of the test models, and a planner for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from search.small_models import small_models
from torch import nn
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec_bridge.trained_models import LOCAL_BATCH, Batches, built

from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables.constraints import SEQUENCE_TYPES
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import SHARDING_TYPES, Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge import NeuroShardPlanner, PlannerOptions
from neuroshard_pipeline.torchrec_plan.modules import read_module_tables

#: Sharding types of tables without tiers. Host rows have another type, `host_row_wise`, which `test_tiered` trains.
TYPES = tuple(name for name in SHARDING_TYPES if name != "host_row_wise")
#: World size → ranks per host.
HOSTS = {2: 2, 4: 2, 6: 3}


def random_plan(model: nn.Module, world_size: int, seed: int = 0) -> Plan:
    """Uneven column shards on random ranks; two shards of the first split table are on the same rank."""
    rng = np.random.default_rng(seed)
    task = task_of(model, world_size)
    placed = [shard for table in task.tables for shard in _column_shards(table, world_size, rng)]
    names = [shard.table.name for shard, _ in placed]
    second = next(i for i in range(1, len(names)) if names[i] == names[i - 1])
    placed[second] = placed[second][0], placed[second - 1][1]
    return _plan(task, placed, "column_wise")


def plan_of_types(
    model: nn.Module, world_size: int, local_world_size: int, types: Sequence[str], seed: int = 0
) -> Plan:
    """Every table has a random one of `types` that TorchRec can train it with, or else is column-wise."""
    rng = np.random.default_rng(seed)
    task = task_of(model, world_size, local_world_size)
    placed = []
    for table in task.tables:
        fitting = [name for name in types if name in _possible_types(table, types)]
        sharding_type = str(rng.choice(fitting)) if fitting else "column_wise"
        placed += _placed(table, sharding_type, task, rng)
    return _plan(task, placed, "+".join(types))


def plans_to_train(world_size: int) -> dict[str, tuple[str, Plan]]:
    """By name, a kind of model and a plan: uneven column shards, one plan per sharding type, and mixed plans.

    4 ranks, on two hosts, have plans of every type. 2 and 6 ranks have a mixed plan, and 2 ranks that of many tables.
    """
    several = built("several_collections")
    kind, model = ("dlrm", built("dlrm")) if world_size == 2 else ("several_collections", several)
    plans = {f"{kind}, columns": (kind, random_plan(model, world_size))} if world_size < 6 else {}
    single = [[name] for name in TYPES[1:]] if world_size == 4 else []
    for seed, types in enumerate([*single, list(TYPES)]):
        plan = plan_of_types(several, world_size, HOSTS[world_size], types, seed)
        plans[f"{'+'.join(types)}, seed {seed}"] = ("several_collections", plan)
    return plans


def task_of(model: nn.Module, world_size: int, local_world_size: int | None = None) -> ShardingTask:
    tables = [entry.table for entry in read_module_tables(model)]
    return ShardingTask(tables, world_size, LOCAL_BATCH * world_size, 2**30, local_world_size=local_world_size)


def _plan(task: ShardingTask, placed: list[tuple[Shard, int]], name: str) -> Plan:
    return Plan(task, tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed), name)


def _possible_types(table: Table, types: Sequence[str]) -> Sequence[str]:
    """Types that TorchRec trains a table with, if tables of all `types` are in its module."""
    if table.pooling == "none":
        return SEQUENCE_TYPES
    if table.pooling == "mean":
        rows_are_cut = set(types) <= {"row_wise", "table_row_wise"}
        return types if rows_are_cut else ("column_wise", "data_parallel")
    return TYPES


def _placed(table: Table, sharding_type: str, task: ShardingTask, rng: np.random.Generator) -> list[tuple[Shard, int]]:
    ranks, local = range(task.world_size), task.ranks_per_host
    if sharding_type == "column_wise":
        return _column_shards(table, task.world_size, rng)
    if sharding_type == "data_parallel":
        return [(whole(table, "data_parallel"), rank) for rank in ranks]
    if sharding_type == "row_wise":
        return list(zip(row_shards(table, "row_wise", task.world_size), ranks, strict=True))
    ends = _cuts(table, rng) if sharding_type == "grid_shard" else [table.embedding_dim]
    placed = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        first = local * int(rng.integers(0, task.world_size // local))
        shards = row_shards(table, sharding_type, local, start, end - start)
        placed += list(zip(shards, range(first, first + local), strict=True))
    return placed


def _column_shards(table: Table, world_size: int, rng: np.random.Generator) -> list[tuple[Shard, int]]:
    ends = _cuts(table, rng)
    ranks = rng.integers(0, world_size, len(ends)).tolist()
    shards = [Shard(table, start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return list(zip(shards, ranks, strict=True))


def _cuts(table: Table, rng: np.random.Generator) -> list[int]:
    """Ends of uneven column blocks, or of a single block; blocks of sequence tables have all or half of the columns."""
    if table.pooling == "none":
        return [table.embedding_dim] if rng.random() < 0.5 else [table.embedding_dim // 2, table.embedding_dim]
    pieces = table.embedding_dim // 4
    cuts = rng.choice(np.arange(1, pieces), size=min(2, pieces - 1), replace=False) if rng.random() < 0.5 else []
    return [4 * int(cut) for cut in sorted([*cuts, pieces])]


def planner(model: nn.Module, world_size: int, memory_bytes: int | None = None) -> NeuroShardPlanner:
    """A planner with a sample of batches; if `memory_bytes` is None, ranks have little more memory than tables need.

    The buffers of a batch do not count, so that only the tables take memory.
    """
    if memory_bytes is None:
        tables = [entry.table for entry in read_module_tables(model)]
        memory_bytes = (
            max(sum(t.weight_bytes for t in tables) // world_size, max(t.weight_bytes for t in tables)) * 5 // 4
        )
    part = slice(0, LOCAL_BATCH)
    return NeuroShardPlanner(
        small_models(),
        Topology(world_size, "cpu", ddr_cap=memory_bytes, local_world_size=world_size, created_by_factory=True),
        LOCAL_BATCH,
        batches=[ids for step in range(2 * world_size) for ids in Batches(model, world_size).draw(step, part)[1]],
        options=PlannerOptions(
            settings=SharderSettings(memory=default_memory()),
            storage_reservation=FixedPercentageStorageReservation(0.15),
        ),
    )
