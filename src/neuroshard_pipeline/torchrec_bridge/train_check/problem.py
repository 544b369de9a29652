"""From parameters to the sharding task that is trained, with its batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from torch import nn

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions, solve_all
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.readers import read_tables
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask, task_from_tables
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch, criteo_batches, drawn_batches
from neuroshard_pipeline.torchrec_bridge.train_check.errors import TrainCheckError
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams, TrainTaskParams
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec


def state_problem(tasks: pd.DataFrame, params: TrainTaskParams) -> tuple[ShardingTask, tuple[Batch, ...]]:
    """The task and its batches; with a Criteo file, the tables' profiles are measured on those batches.

    Args:
        tasks: `augment.sharding_tasks`.
        params: which tables, ranks and samples.

    Raises:
        NeuroShardError: TorchRec is missing, tables or samples cannot be read, or do not belong together.
    """
    require_torchrec()
    task = _named_task(tasks, params) if params.task_id is not None else _file_task(params)
    for table in task.tables:
        _check_name(table)
    if params.criteo_file is None:
        return task, drawn_batches(task.tables, params.batch_size, params.num_batches, params.seed)
    batches = criteo_batches(params.criteo_file, task.tables, params.batch_size, params.num_batches)
    return dataclasses.replace(task, tables=_measured(task.tables, batches, params.batch_size)), batches


def solve_problem(
    task: ShardingTask,
    models: Models,
    sharders: Sequence[str],
    settings: SharderSettings,
    seed: int,
    training: TrainingParams,
) -> Solutions:
    """Every sharder's plan for the task.

    Raises:
        CostModelError: the models were measured on other hardware than is trained on.
        TrainCheckError: no sharder found a plan.
    """
    from neuroshard_pipeline.torchrec_bridge.planner import check_hardware

    check_hardware(models, training.compute_device)
    solutions = solve_all([task], sharders, models, settings, seed)
    if not solutions.plans:
        raise TrainCheckError(f"{task.task_id}: no sharder found a plan: {solutions.failures['error'].iloc[0]}")
    return solutions


def same_placement(one: Plan, other: Plan) -> bool:
    """Whether two plans put the same shards on the same ranks."""
    return set(zip(one.shards, one.ranks, strict=True)) == set(zip(other.shards, other.ranks, strict=True))


def _file_task(params: TrainTaskParams) -> ShardingTask:
    return task_from_tables(
        read_tables(params.tables),
        params.world_size,
        params.batch_size,
        int(params.memory_gib * 2**30),
        params.row_scale,
        Path(params.tables).stem,
    )


def _named_task(tasks: pd.DataFrame, params: TrainTaskParams) -> ShardingTask:
    known = tasks["task_id"].unique()
    if params.task_id not in known:
        raise TrainCheckError(f"no sharding task is called {params.task_id!r}; there are {', '.join(known)}")
    found = tasks_from_frame(tasks[tasks["task_id"] == params.task_id])[0]
    if found.batch_size != params.batch_size:
        raise TrainCheckError(
            f"the reuse profiles of the task {params.task_id!r} belong to batches of {found.batch_size}; set "
            f"train_check.task.batch_size to that instead of {params.batch_size}"
        )
    return dataclasses.replace(found, world_size=params.world_size, memory_bytes=int(params.memory_gib * 2**30))


def _check_name(table: Table) -> None:
    """PyTorch makes modules of tables."""
    if "." in table.name or hasattr(nn.ModuleDict(), table.name):
        raise TaskError(f"table {table.name!r}: PyTorch takes no module of this name; rename the table")


def _measured(tables: Sequence[Table], batches: Sequence[Batch], batch_size: int) -> list[Table]:
    """The tables with the pooling factors and reuse profiles of the batches."""
    from neuroshard_pipeline.torchrec_bridge.profile import profile_from_batches
    from neuroshard_pipeline.torchrec_bridge.train_check.model import keyed_ids

    whole = slice(0, batch_size)
    names = [table.name for table in tables]
    return profile_from_batches([keyed_ids(names, batch.ids, whole) for batch in batches], tables, batch_size)
