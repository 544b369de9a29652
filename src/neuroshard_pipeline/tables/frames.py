"""Nouns to data frames and back: what stands between a stage's files and the code that works on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, REUSE_COLUMNS, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

PROFILE_COLUMNS: tuple[str, ...] = ("unique_rows", *REUSE_COLUMNS)
TABLE_COLUMNS: tuple[str, ...] = ("table", "num_embeddings", "embedding_dim", "pooling_factor", *PROFILE_COLUMNS)
POOL_COLUMNS: tuple[str, ...] = tuple(column for column in TABLE_COLUMNS if column != "embedding_dim")
TASK_COLUMNS: tuple[str, ...] = ("task_id", "world_size", "batch_size", "memory_bytes", *TABLE_COLUMNS)

_DEFAULT_DATA_TYPE = "fp32"
_DEFAULT_OPTIMIZER = "sgd"


def tables_to_frame(tables: Sequence[Table]) -> pd.DataFrame:
    """One row per table: `TABLE_COLUMNS`, and `data_type` where any is not fp32. Unknown profiles are NaN."""
    frame = pd.DataFrame(
        {
            "table": [table.name for table in tables],
            "num_embeddings": np.array([table.num_embeddings for table in tables], dtype=np.int64),
            "embedding_dim": np.array([table.embedding_dim for table in tables], dtype=np.int64),
            "pooling_factor": np.array([table.pooling_factor for table in tables], dtype=np.float64),
        }
    )
    profiles = [
        (table.unique_rows, *table.reuse) if table.unique_rows is not None and table.reuse is not None else None
        for table in tables
    ]
    missing = (np.nan,) * len(PROFILE_COLUMNS)
    values = np.array([profile or missing for profile in profiles], dtype=np.float64)
    values = values.reshape(len(tables), len(PROFILE_COLUMNS))
    frame = pd.concat([frame, pd.DataFrame(values, columns=list(PROFILE_COLUMNS))], axis=1)
    if any(table.data_type != _DEFAULT_DATA_TYPE for table in tables):
        frame["data_type"] = [table.data_type for table in tables]
    return frame


def tables_from_frame(frame: pd.DataFrame) -> list[Table]:
    """Tables of a frame with `TABLE_COLUMNS` or, as in a pool, without `embedding_dim`.

    Without that column a table gets the least width there is: whoever reads a pool gives the width that counts.
    Profile columns may be missing or NaN.

    Raises:
        TaskError: a column is missing or a value is impossible.
    """
    required = [column for column in POOL_COLUMNS if column not in PROFILE_COLUMNS]
    missing = [column for column in required if column not in frame.columns]
    if missing:
        raise TaskError(f"column {missing[0]!r} is missing; a frame of tables needs {', '.join(required)}")
    dims = frame.get("embedding_dim", pd.Series(COLUMN_GRANULARITY, index=frame.index))
    types = frame.get("data_type", pd.Series(_DEFAULT_DATA_TYPE, index=frame.index))
    profiles: list[Any] = [None] * len(frame)
    if set(PROFILE_COLUMNS) <= set(frame.columns):
        profiles = frame[list(PROFILE_COLUMNS)].to_numpy(dtype=np.float64).tolist()
    columns = [frame[column].tolist() for column in required]
    return [
        Table(
            name=name,
            num_embeddings=rows,
            embedding_dim=dim,
            pooling_factor=pooling,
            unique_rows=None if profile is None or np.isnan(profile[0]) else profile[0],
            reuse=None if profile is None or np.isnan(profile[0]) else tuple(profile[1:]),
            data_type=data_type,
        )
        for name, rows, pooling, dim, data_type, profile in zip(
            *columns, dims.tolist(), types.tolist(), profiles, strict=True
        )
    ]


def tasks_to_frame(tasks: Sequence[ShardingTask]) -> pd.DataFrame:
    """One row per table of every task: `TASK_COLUMNS`.

    Tables without a reuse profile get the default one. `data_type` and `optimizer` are added where any differs from
    fp32 and sgd.

    Raises:
        TaskError: a task's ranks differ in memory or it has constraints, which the frame has no columns for.
    """
    return _joined([_task_frame(task) for task in tasks], TASK_COLUMNS)


def _task_frame(task: ShardingTask) -> pd.DataFrame:
    if len(set(task.memory_limits)) > 1:
        raise TaskError(f"{task.task_id}: a frame of tasks has one memory_bytes for all ranks, not {task.memory_bytes}")
    if task.constraints:
        raise TaskError(f"{task.task_id}: a frame of tasks has no columns for constraints; plan this task by itself")
    frame = tables_to_frame([with_profile(table, task.batch_size) for table in task.tables])
    head: dict[str, str | int] = {
        "task_id": task.task_id,
        "world_size": task.world_size,
        "batch_size": task.batch_size,
        "memory_bytes": task.memory_limits[0],
    }
    for place, (column, value) in enumerate(head.items()):
        frame.insert(place, column, value)
    return frame if task.optimizer == _DEFAULT_OPTIMIZER else frame.assign(optimizer=task.optimizer)


def _joined(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Frames one below the other; optional columns are filled with their defaults."""
    if not frames:
        return pd.DataFrame(columns=list(columns))
    joined = pd.concat(frames, ignore_index=True)
    defaults = {"data_type": _DEFAULT_DATA_TYPE, "optimizer": _DEFAULT_OPTIMIZER}
    return joined.fillna({column: value for column, value in defaults.items() if column in joined})


def tasks_from_frame(frame: pd.DataFrame) -> list[ShardingTask]:
    """Tasks of a frame with `TASK_COLUMNS`, in the order of their first rows.

    Raises:
        TaskError: a column is missing or a value is impossible.
    """
    for column in ("task_id", "world_size", "batch_size", "memory_bytes"):
        if column not in frame.columns:
            raise TaskError(f"column {column!r} is missing; a frame of tasks needs {', '.join(TASK_COLUMNS)}")
    tasks = []
    for task_id, rows in frame.groupby("task_id", sort=False):
        for column in ("world_size", "batch_size", "memory_bytes"):
            values = sorted(set(rows[column].tolist()))
            if len(values) != 1:
                raise TaskError(f"{task_id}: {column} differs between rows: {values}; give a task one value")
        first = rows.iloc[0]
        tasks.append(
            ShardingTask(
                tables=tables_from_frame(rows),
                world_size=int(first["world_size"]),
                batch_size=int(first["batch_size"]),
                memory_bytes=int(first["memory_bytes"]),
                optimizer=str(first.get("optimizer", _DEFAULT_OPTIMIZER)),
                task_id=str(task_id),
            )
        )
    return tasks


def compute_samples_from_frame(
    samples: pd.DataFrame, pool: pd.DataFrame, settings: pd.DataFrame | None = None
) -> list[ComputeSample]:
    """Compute samples of `sample_id, batch_size, table, embedding_dim`, whose tables stand in `pool`.

    A table of one width is one object in all samples, so that work per table can be shared.

    Args:
        samples: one row per table of a sample.
        pool: `augment.table_pool`.
        settings: `sample_id, optimizer`, one row per sample; None where all are sgd.

    Raises:
        TaskError: a sample names a table that the pool lacks, or settings lack a sample.
    """
    by_name = {table.name: table for table in tables_from_frame(pool)}
    made: dict[tuple[str, int], Table] = {}
    shards: dict[str, list[Table]] = {}
    batch_sizes: dict[str, int] = {}
    columns = (samples[name].tolist() for name in ("sample_id", "batch_size", "table", "embedding_dim"))
    for sample_id, batch_size, name, dim in zip(*columns, strict=True):
        if name not in by_name:
            raise TaskError(f"{sample_id}: table {name!r} is not in the pool; use the pool that the samples came from")
        if (name, dim) not in made:
            made[name, dim] = replace(by_name[name], embedding_dim=dim)
        shards.setdefault(sample_id, []).append(made[name, dim])
        batch_sizes[sample_id] = batch_size
    optimizers = _optimizers(shards, settings)
    return [
        ComputeSample(sample_id, batch_sizes[sample_id], tuple(whole(table) for table in tables), optimizers[sample_id])
        for sample_id, tables in shards.items()
    ]


def _optimizers(sample_ids: Iterable[str], settings: pd.DataFrame | None) -> dict[str, str]:
    """The optimizer of every sample."""
    if settings is None:
        return dict.fromkeys(sample_ids, _DEFAULT_OPTIMIZER)
    optimizers = dict(zip(settings["sample_id"].tolist(), settings["optimizer"].tolist(), strict=True))
    unknown = next((sample_id for sample_id in sample_ids if sample_id not in optimizers), None)
    if unknown is not None:
        raise TaskError(f"{unknown}: the samples' settings lack it; use the settings that were drawn with the samples")
    return optimizers


def comm_samples_from_frame(frame: pd.DataFrame) -> list[CommSample]:
    """Communication samples of `sample_id, world_size, batch_size, rank, dim_sum, start_skew_ms`.

    Raises:
        TaskError: a sample does not have exactly the ranks 0 to `world_size` - 1.
    """
    samples = []
    for sample_id, rows in frame.sort_values("rank", kind="stable").groupby("sample_id", sort=False):
        world_size = int(rows["world_size"].iloc[0])
        if rows["rank"].tolist() != list(range(world_size)):
            raise TaskError(f"{sample_id}: ranks are {rows['rank'].tolist()}, not 0 to {world_size - 1}")
        samples.append(
            CommSample(
                sample_id=str(sample_id),
                batch_size=int(rows["batch_size"].iloc[0]),
                dim_sums=tuple(rows["dim_sum"].tolist()),
                start_skew_ms=tuple(rows["start_skew_ms"].tolist()),
            )
        )
    order = {sample_id: place for place, sample_id in enumerate(frame["sample_id"].unique())}
    return sorted(samples, key=lambda sample: order[sample.sample_id])
