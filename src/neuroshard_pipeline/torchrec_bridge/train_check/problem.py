"""The sharding task that `train_check` trains, its batches, and every sharder's plan for it."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.models import Models, check_hardware
from neuroshard_pipeline.search.packing import check_room
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions, solve_all
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import ShardingTask, task_from_tables
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch, criteo_batches, drawn_batches
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainCheckError, TrainingParams, TrainTaskParams
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec


def state_problem(
    tasks: pd.DataFrame, params: TrainTaskParams, training: TrainingParams
) -> tuple[ShardingTask, tuple[Batch, ...]]:
    """The task and its batches. With a Criteo file, pooling factors and profiles are measured on the file's samples.

    `tasks` is `augment.sharding_tasks`. The dense networks of the models in `training` take a part of the memory.

    Raises:
        NeuroShardError: TorchRec is missing, the samples cannot be read or do not match; or as `stated_task`.
    """
    require_torchrec()
    task = stated_task(tasks, params, training)
    if params.criteo_file is None:
        return task, drawn_batches(task.tables, params.batch_size, params.num_batches, params.seed)
    batches = criteo_batches(params.criteo_file, task.tables, params.batch_size, params.num_batches)
    return _with_profiles(task, batches), batches


def stated_task(
    tasks: pd.DataFrame, params: TrainTaskParams, training: TrainingParams, memory: MemoryModel | None = None
) -> ShardingTask:
    """The task without its batches; its memory is what the largest dense network leaves on a rank.

    Raises:
        NeuroShardError: the task is unknown, tables cannot be read, `train_check` cannot train a table, or the dense
            network needs all memory.
        DoesNotFitError: `memory` is given, and no sharding type makes the tables fit.
    """
    if params.task_id is not None:
        task = _named_task(tasks, params)
    else:
        given, name = read_tables(params.tables), Path(params.tables).stem
        task = task_from_tables(
            given, params.world_size, params.batch_size, params.memory_bytes, params.row_scale, name
        )
    from torch import nn  # imported late: this takes seconds

    for table in task.tables:
        if "." in table.name or hasattr(nn.ModuleDict(), table.name):
            raise TaskError(f"table {table.name!r}: PyTorch does not accept this name for a module; rename the table")
        if table.pooling == "none" or table.num_features > 1 or table.is_weighted:
            raise TrainCheckError(
                f"table {table.name!r}: train_check trains only pooled tables with one feature and unweighted ids; "
                "leave the table out, or time plans of the embedding module alone in Python with "
                "neuroshard_pipeline.torchrec_bridge.truth.steps.measure_steps"
            )
    task = dataclasses.replace(
        task, local_world_size=params.local_world_size, pipelines_input_dist=training.trainer == "pipelined"
    )
    task = dataclasses.replace(task, memory_bytes=_left_by_dense(task, params, training))
    if memory is not None:
        check_room(task, memory, {table.name: task.possible_types(table) for table in task.tables})
    return task


def _left_by_dense(task: ShardingTask, params: TrainTaskParams, training: TrainingParams) -> int:
    """The memory of a rank that every dense network leaves, bytes."""
    from neuroshard_pipeline.torchrec_bridge.train_check.sharding import dense_memory_bytes

    needs = {
        (model, mode): dense_memory_bytes(model, mode, task, training)
        for model, mode in itertools.product(training.models, training.dense)
    }
    most = max(needs, key=lambda form: needs[form])
    if needs[most] >= params.memory_bytes:
        raise TrainCheckError(
            f"train_check.task.memory_gib {params.memory_gib:g}: the dense network of {most[0]} needs "
            f"{needs[most] / 2**30:.3f} GiB of every rank with {most[1]}; raise memory_gib, or leave {most[0]} out"
        )
    return params.memory_bytes - needs[most]


def solve_problem(
    task: ShardingTask,
    models: Models,
    sharders: Sequence[str],
    settings: SharderSettings,
    seed: int,
    training: TrainingParams,
) -> Solutions:
    """The plans of all sharders that find one for the task, and the errors of the others.

    Raises:
        CostModelError: the models describe another kind of device than `training.compute_device`.
        TrainCheckError: no sharder found a plan.
    """
    check_hardware(models, training.compute_device)
    solutions = solve_all([task], sharders, models, settings, seed)
    if not solutions.plans:
        raise TrainCheckError(f"{task.task_id}: no sharder found a plan: {solutions.failures['error'].iloc[0]}")
    return solutions


def _named_task(tasks: pd.DataFrame, params: TrainTaskParams) -> ShardingTask:
    known = tasks["task_id"].unique()
    if params.task_id not in known:
        raise TrainCheckError(f"no sharding task is called {params.task_id!r}; use one of {', '.join(known)}")
    found = tasks_from_frame(tasks[tasks["task_id"] == params.task_id])[0]
    if found.batch_size != params.batch_size:
        raise TrainCheckError(
            f"the reuse profiles of task {params.task_id!r} describe batches of {found.batch_size} samples; set "
            f"train_check.task.batch_size to that number instead of {params.batch_size}"
        )
    return dataclasses.replace(found, world_size=params.world_size, local_world_size=params.local_world_size)


def _with_profiles(task: ShardingTask, batches: Sequence[Batch]) -> ShardingTask:
    """The task, with pooling factors and reuse profiles measured on the batches."""
    from neuroshard_pipeline.torchrec_bridge.profile import profile_from_batches
    from neuroshard_pipeline.torchrec_bridge.train_check.model import keyed_ids

    names = [table.name for table in task.tables]
    samples = [keyed_ids(names, batch.ids, slice(0, task.batch_size)) for batch in batches]
    return dataclasses.replace(task, tables=profile_from_batches(samples, task.tables, task.batch_size))
