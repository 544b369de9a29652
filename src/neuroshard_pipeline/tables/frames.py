"""Tables, sharding tasks and samples as data frames, and back.

A compute sample (shards that one kernel looks up) is stored in three datasets: `augment.compute_samples` holds its
tables and their widths, `augment.table_pool` (the pool) the properties of the tables, and
`augment.compute_sample_settings` one row of settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.curve_points import points_of_text, points_text
from neuroshard_pipeline.tables.lookups import lookup_batch_size, lookup_shard
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.row_blocks import shards_together
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import (
    COLUMN_GRANULARITY,
    POPULARITY_COLUMN,
    PROFILE_COLUMNS,
    TABLE_DEFAULTS,
    Shard,
    ShardingType,
    Table,
    whole,
)
from neuroshard_pipeline.tables.task import DEFAULT_OPTIMIZER, TASK_DEFAULTS, TASK_ONLY_COLUMNS, ShardingTask

TABLE_COLUMNS: tuple[str, ...] = ("table", "num_embeddings", "embedding_dim", "pooling_factor", *PROFILE_COLUMNS)

#: A pool has no widths; a width is drawn for every table of a sample or task.
POOL_COLUMNS: tuple[str, ...] = tuple(column for column in TABLE_COLUMNS if column != "embedding_dim")

TASK_COLUMNS: tuple[str, ...] = (*TASK_ONLY_COLUMNS, *TABLE_COLUMNS)

#: Settings of a compute sample, and their values if a frame has none.
_SETTINGS = ("optimizer", "sharding_type", "world_size")
_DEFAULT_SETTINGS: tuple[str, ShardingType, int] = (DEFAULT_OPTIMIZER, "column_wise", 1)

#: Columns of tables that a frame has only if a table differs from these values.
_OPTIONAL: dict[str, Any] = {POPULARITY_COLUMN: None, **TABLE_DEFAULTS}

_REQUIRED_COLUMNS = ["table", "num_embeddings", "pooling_factor"]


def tables_to_frame(tables: Sequence[Table]) -> pd.DataFrame:
    """A frame of `TABLE_COLUMNS`, plus the columns of `_OPTIONAL` in which any table differs from the default.

    Unknown reuse profiles are NaN. Popularity curves are text (`curve_points`).

    Raises:
        TaskError: a table is a tier.
    """
    return _without_defaults(_full_frame(tables), _OPTIONAL)


def _full_frame(tables: Sequence[Table]) -> pd.DataFrame:
    """A frame of `TABLE_COLUMNS` and all columns of `_OPTIONAL`."""
    for table in tables:
        if table.tier is not None:
            raise TaskError(f"table {table.name!r} is a tier; a frame has no columns for tiers: use the whole table")
    unknown = (np.nan,) * len(PROFILE_COLUMNS)
    rows = [
        (table.name, table.num_embeddings, table.embedding_dim, table.pooling_factor)
        + (unknown if table.reuse is None else (table.unique_rows, *table.reuse))
        for table in tables
    ]
    counts = ("num_embeddings", "embedding_dim")
    types = {column: np.int64 if column in counts else np.float64 for column in TABLE_COLUMNS[1:]}
    frame = pd.DataFrame(rows, columns=list(TABLE_COLUMNS)).astype(types)
    frame[POPULARITY_COLUMN] = [None if of.popularity is None else points_text(of.popularity) for of in tables]
    return frame.assign(**{column: [getattr(table, column) for table in tables] for column in TABLE_DEFAULTS})


def _without_defaults(frame: pd.DataFrame, defaults: Mapping[str, Any]) -> pd.DataFrame:
    """The frame without those columns of `defaults` in which all values are the default."""
    given = {name: frame[name].notna() if value is None else frame[name] != value for name, value in defaults.items()}
    return frame.drop(columns=[name for name, is_given in given.items() if not is_given.any()])


def tables_from_frame(frame: pd.DataFrame) -> list[Table]:
    """Tables of a frame with `TABLE_COLUMNS`, or of a pool with `POOL_COLUMNS`.

    A pool has no widths: its tables get the smallest width, and the caller sets others. Profiles may be missing or NaN.

    Raises:
        TaskError: a column is missing or a value is impossible.
    """
    missing = [column for column in _REQUIRED_COLUMNS if column not in frame.columns]
    if missing:
        raise TaskError(f"column {missing[0]!r} is missing; a frame of tables needs {', '.join(_REQUIRED_COLUMNS)}")
    defaults = {"embedding_dim": COLUMN_GRANULARITY, **TABLE_DEFAULTS}
    given = {POPULARITY_COLUMN: None, **defaults}
    optional = (frame.get(name, pd.Series(value, index=frame.index)).tolist() for name, value in given.items())
    profiles: list[Any] = [[np.nan]] * len(frame)
    if set(PROFILE_COLUMNS) <= set(frame.columns):
        profiles = frame[list(PROFILE_COLUMNS)].to_numpy(dtype=np.float64).tolist()
    columns = (*(frame[column].tolist() for column in _REQUIRED_COLUMNS), profiles, *optional)
    return [
        Table(
            name=name,
            num_embeddings=rows,
            pooling_factor=pooling_factor,
            unique_rows=None if np.isnan(profile[0]) else profile[0],
            reuse=None if np.isnan(profile[0]) else tuple(profile[1:]),
            popularity=points_of_text(points) if isinstance(points, str) else None,
            **dict(zip(defaults, values, strict=True)),
        )
        for name, rows, pooling_factor, profile, points, *values in zip(*columns, strict=True)
    ]


def tasks_to_frame(tasks: Sequence[ShardingTask]) -> pd.DataFrame:
    """A frame of `TASK_COLUMNS`, one row per table of every task.

    Tables without a reuse profile get the default one. The columns of `_OPTIONAL` and `TASK_DEFAULTS` are added
    if any value is not the default.

    Raises:
        TaskError: the ranks of a task differ in memory, a task has constraints, or a table is a tier; the frame has no
            columns for them.
    """
    if not tasks:
        return pd.DataFrame(columns=list(TASK_COLUMNS))
    for task in tasks:
        if len(set(task.memory_limits)) > 1:
            raise TaskError(f"{task.task_id}: a frame has one memory_bytes for all ranks, not {task.memory_bytes}")
        if task.constraints:
            raise TaskError(f"{task.task_id}: a frame has no columns for constraints; plan this task by itself")
    frame = _full_frame([with_profile(table, task.batch_size) for task in tasks for table in task.tables])
    owners = [task for task in tasks for _ in task.tables]
    values = [(of.task_id, of.world_size, of.batch_size, of.memory_limits[0]) for of in owners]
    for place, (column, of_rows) in enumerate(zip(TASK_ONLY_COLUMNS, zip(*values, strict=True), strict=True)):
        frame.insert(place, column, of_rows)
    frame = frame.assign(**{column: [getattr(task, column) for task in owners] for column in TASK_DEFAULTS})
    frame = frame.astype({name: "Int64" for name, value in TASK_DEFAULTS.items() if value is None})
    return _without_defaults(frame, {**_OPTIONAL, **TASK_DEFAULTS})


def tasks_from_frame(frame: pd.DataFrame) -> list[ShardingTask]:
    """Tasks of a frame with one row per table, in the order of their first rows; see `tasks_to_frame`.

    Raises:
        TaskError: a column is missing, rows of a task disagree, or a value is impossible.
    """
    for column in TASK_ONLY_COLUMNS:
        if column not in frame.columns:
            needed = ", ".join((*TASK_ONLY_COLUMNS, *_REQUIRED_COLUMNS))
            raise TaskError(f"column {column!r} is missing; a frame of tasks needs {needed}")
    return [_task(str(task_id), rows) for task_id, rows in frame.groupby("task_id", sort=False)]


def _task(task_id: str, rows: pd.DataFrame) -> ShardingTask:
    for column in (*TASK_ONLY_COLUMNS[1:], *(name for name in TASK_DEFAULTS if name in rows)):
        values = rows[column].unique().tolist()
        if len(values) != 1:
            raise TaskError(f"{task_id}: {column} differs between rows: {values}; give them the same value")
    first: dict[Any, Any] = {**TASK_DEFAULTS, **rows.iloc[0]}
    return ShardingTask(
        tables=tables_from_frame(rows),
        world_size=int(first["world_size"]),
        batch_size=int(first["batch_size"]),
        memory_bytes=int(first["memory_bytes"]),
        task_id=task_id,
        **{name: _task_value(first[name], default) for name, default in TASK_DEFAULTS.items()},
    )


def _task_value(value: Any, default: Any) -> Any:
    """A value of a column of `TASK_DEFAULTS` in the type of the default (int if this is None); None if it is empty."""
    if pd.isna(value):
        return None
    return int(value) if default is None else type(default)(value)


def compute_samples_from_frame(
    samples: pd.DataFrame, pool: pd.DataFrame, settings: pd.DataFrame | None = None
) -> list[ComputeSample]:
    """Join the three frames of compute samples.

    Column shards of the same table and width are the same object in all samples, so that callers can process them once.
    A sample with a `sharding_type` other than `column_wise` is spread over `world_size` ranks: it has the shards and
    the batch size that the kernel of one rank sees (`tables.lookups`).

    Args:
        samples: `sample_id, batch_size, table, embedding_dim`, one row per table of a sample.
        pool: the dataset `augment.table_pool`, which holds the properties of the tables.
        settings: `sample_id, optimizer`, one row per sample; None if all samples use SGD and are column-wise. The
            columns `sharding_type` and `world_size` may be missing or empty: the sample is then column-wise.

    Returns:
        The samples in the order of their first rows.

    Raises:
        TaskError: a sample names a table that the pool does not have, or has no settings.
    """
    by_name = {table.name: table for table in tables_from_frame(pool)}
    of_sample = _settings_of_samples(settings)
    made: dict[tuple[str, int, ShardingType, int], Shard] = {}
    shards: dict[str, list[Shard]] = {}
    columns = (samples[name].tolist() for name in ("sample_id", "table", "embedding_dim"))
    for sample_id, name, dim in zip(*columns, strict=True):
        if name not in by_name:
            raise TaskError(f"{sample_id}: table {name!r} is not in the pool; use the pool that the samples came from")
        if settings is not None and sample_id not in of_sample:
            raise TaskError(f"{sample_id}: has no settings; use the settings that were drawn with the samples")
        _, sharding_type, world_size = of_sample.get(sample_id, _DEFAULT_SETTINGS)
        key = (name, dim, sharding_type, world_size)
        if key not in made:
            table = replace(by_name[name], embedding_dim=dim)
            made[key] = shards_together(whole(table), sharding_type, world_size)[0]
        shards.setdefault(sample_id, []).append(made[key])
    batch_sizes = dict(zip(samples["sample_id"].tolist(), samples["batch_size"].tolist(), strict=True))
    found = []
    for name, own in shards.items():
        optimizer, _, world_size = of_sample.get(name, _DEFAULT_SETTINGS)
        seen = tuple(lookup_shard(shard, batch_sizes[name], world_size) for shard in own)  # by the kernel of one rank
        batch_size = lookup_batch_size(own[0], batch_sizes[name], world_size)
        found.append(ComputeSample(name, batch_size, seen, optimizer))
    return found


def _settings_of_samples(settings: pd.DataFrame | None) -> dict[str, tuple[str, ShardingType, int]]:
    """Optimizer, sharding type and world size by sample."""
    if settings is None:
        return {}
    given = settings.reindex(columns=list(_SETTINGS)).astype(object).to_numpy()
    values = np.where(pd.isna(given), np.array(_DEFAULT_SETTINGS, dtype=object), given).tolist()
    return {name: (own[0], own[1], int(own[2])) for name, own in zip(settings["sample_id"], values, strict=True)}


def comm_samples_from_frame(frame: pd.DataFrame) -> list[CommSample]:
    """Communication samples of a frame of `sample_id, world_size, batch_size, rank, dim_sum, start_skew_ms`.

    Returns:
        The samples in the order of their first rows; the rows of a sample may have any order.

    Raises:
        TaskError: the ranks of a sample are not 0 to `world_size` - 1.
    """
    samples = []
    for sample_id, rows in frame.groupby("sample_id", sort=False):
        rows = rows.sort_values("rank")
        world_size, batch_size = map(int, rows[["world_size", "batch_size"]].iloc[0])
        if rows["rank"].tolist() != list(range(world_size)):
            raise TaskError(f"{sample_id}: ranks are {rows['rank'].tolist()}, not 0 to {world_size - 1}")
        dim_sums, start_skew_ms = (tuple(rows[name].tolist()) for name in ("dim_sum", "start_skew_ms"))
        samples.append(CommSample(str(sample_id), batch_size, dim_sums, start_skew_ms))
    return samples


def comm_samples_to_frame(samples: Sequence[CommSample]) -> pd.DataFrame:
    """`sample_id, world_size, batch_size, rank, dim_sum, start_skew_ms`, one row per rank of a sample."""
    rows = [
        (sample.sample_id, sample.world_size, sample.batch_size, rank, dim_sum, skew_ms)
        for sample in samples
        for rank, (dim_sum, skew_ms) in enumerate(zip(sample.dim_sums, sample.start_skew_ms, strict=True))
    ]
    columns = ["sample_id", "world_size", "batch_size", "rank", "dim_sum", "start_skew_ms"]
    return pd.DataFrame(rows, columns=columns).astype({"start_skew_ms": np.float64})
