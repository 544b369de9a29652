"""Builds TorchRec's `ShardingPlan` for a model, and reads a `ShardingPlan` back into shards and ranks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.table import (
    COMPUTE_KERNELS,
    DEFAULT_CACHE_LOAD_FACTOR,
    SHARDING_TYPES,
    Shard,
    Table,
    whole,
)
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.modules import read_module_tables
from neuroshard_pipeline.torchrec_plan.writer import COLUMN_SHARDING_TYPES, Devices, ParameterForm, torchrec_form

require_torchrec()
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata  # noqa: E402
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan  # noqa: E402


def sharding_plan(
    task: ShardingTask,
    shards: Sequence[Shard],
    ranks: Sequence[int],
    module: nn.Module,
    devices: Devices,
    leave_out: Collection[str] = (),
) -> ShardingPlan:
    """The `ShardingPlan` of a task's shards on their ranks; `Plan.to_torchrec` documents `module` and `leave_out`.

    Raises:
        PlanError: the task and the model differ in the name, rows or columns of a table, or in whether it is a
            sequence table; a table has tiers (`tables.tiers`); or TorchRec cannot train the plan.
    """
    of_model = {entry.table.name: entry for entry in read_module_tables(module, leave_out=leave_out)}
    _check_tables(task, [entry.table for entry in of_model.values()])
    tables = [of_model[table.name].table for table in task.tables]
    paths = {name: entry.module_path for name, entry in of_model.items()}
    return ShardingPlan(
        {
            path: EmbeddingModuleShardingPlan({table: parameter_sharding(form) for table, form in forms.items()})
            for path, forms in torchrec_form(tables, shards, ranks, devices, paths).items()
        }
    )


def read_sharding_plan(plan: ShardingPlan, tables: Mapping[str, Table]) -> tuple[tuple[Shard, ...], tuple[int, ...]]:
    """The shards of all modules of a `ShardingPlan` of `tables` (by name), and the rank of each shard.

    The tables of the shards have the kernels and load factors of the plan. `table_wise` and `table_column_wise` tables
    are read as `column_wise`. Shards without rows are left out.

    Raises:
        PlanError: the plan has an unknown sharding type, a table that is not in `tables`, or shards that do not end at
            the last row and column of their table.
    """
    placed: list[tuple[Shard, int]] = []
    for module in plan.plan.values():
        for name, parameter in module.items():
            if name not in tables:
                raise PlanError(f"TorchRec's plan has the table {name!r}, which the sharding task does not have")
            cache = parameter.cache_params
            load_factor = None if cache is None else cache.load_factor
            table = with_compute_kernel(tables[name], parameter.compute_kernel, load_factor)
            placed += _read_parameter(table, parameter)
    return tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed)


def with_compute_kernel(table: Table, compute_kernel: str, load_factor: float | None) -> Table:
    """The table with a kernel of TorchRec; a `load_factor` of None stands for TorchRec's default.

    Kernels other than `COMPUTE_KERNELS`, such as that of replicas, leave the table as it is.
    """
    if compute_kernel not in COMPUTE_KERNELS:
        return table
    if compute_kernel != "fused_uvm_caching" or load_factor is None:
        load_factor = DEFAULT_CACHE_LOAD_FACTOR
    return replace(table, compute_kernel=compute_kernel, cache_load_factor=load_factor)


def parameter_sharding(form: ParameterForm) -> ParameterSharding:
    """TorchRec's `ParameterSharding` of one table, made from the fields that `torchrec_form` returns for it."""
    spec, cache = form["sharding_spec"], form.get("cache_params")
    if spec is not None:
        spec = EnumerableShardingSpec([ShardMetadata(**shard) for shard in spec["shards"]])
    cache = None if cache is None else CacheParams(**cache)
    return ParameterSharding(**form | {"sharding_spec": spec, "cache_params": cache})


def _read_parameter(table: Table, parameter: Any) -> list[tuple[Shard, int]]:
    """Shards and ranks of one table's `ParameterSharding`."""
    sharding_type = parameter.sharding_type
    sharding_type = "column_wise" if sharding_type in COLUMN_SHARDING_TYPES else sharding_type
    if sharding_type not in SHARDING_TYPES or sharding_type == "host_row_wise":
        names = dict.fromkeys((*COLUMN_SHARDING_TYPES, *SHARDING_TYPES))
        known = ", ".join(name for name in names if name != "host_row_wise")
        raise PlanError(f"table {table.name!r} is sharded {sharding_type}, which is unknown; known types are {known}")
    if sharding_type == "data_parallel":
        return [(whole(table, sharding_type), rank) for rank in parameter.ranks]
    shards = parameter.sharding_spec.shards
    ends = [max(s.shard_offsets[axis] + s.shard_sizes[axis] for s in shards) for axis in (0, 1)]
    if ends != [table.num_embeddings, table.embedding_dim]:
        size = f"{table.num_embeddings} rows of {table.embedding_dim} columns"
        raise PlanError(f"table {table.name!r} has {size}, but TorchRec's plan has {ends[0]} of {ends[1]}")
    placed = []
    for shard, rank in zip(shards, parameter.ranks, strict=True):
        (row, column), (rows, width) = shard.shard_offsets, shard.shard_sizes
        if rows:
            placed.append((Shard(table, column, width, row, rows, sharding_type), rank))
    return placed


def _check_tables(task: ShardingTask, of_model: Collection[Table]) -> None:
    """Refuse a model whose tables differ from those of the task in name, rows, columns, or whether they are pooled.

    Refuse a task whose tables have tiers, too.
    """
    for table in task.tables:
        if table.tier is not None:
            raise PlanError(
                f"{task.task_id}: table {table.tier.parent!r} has tiers, which TorchRec's EmbeddingCollection does not "
                "know; call torchrec_bridge.tiered.put_tiers(model, plan, popular_rows, groups) instead"
            )
    in_task, in_model = ({table.name: table for table in tables} for tables in (task.tables, of_model))
    for name in sorted(in_task.keys() | in_model.keys()):
        ours, theirs = _describe(in_task.get(name)), _describe(in_model.get(name))
        if ours != theirs:
            raise PlanError(f"{task.task_id}: table {name!r} {ours} in the plan, but {theirs} in the model")


def _describe(table: Table | None) -> str:
    if table is None:
        return "is missing"
    kind = ", not pooled" if table.pooling == "none" else ""
    return f"has {table.num_embeddings} rows of {table.embedding_dim} columns{kind}"
