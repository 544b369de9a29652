"""Builds TorchRec's `ShardingPlan` for a model, and reads a `ShardingPlan` back into shards and ranks."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.modules import read_module_tables
from neuroshard_pipeline.torchrec_plan.writer import COLUMN_SHARDING_TYPES, Devices, ParameterForm, torchrec_form

require_torchrec()
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata  # noqa: E402
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan  # noqa: E402


def sharding_plan(
    task: ShardingTask,
    shards: Sequence[Shard],
    ranks: Sequence[int],
    module: nn.Module,
    devices: Devices,
    leave_out: Collection[str] = (),
) -> ShardingPlan:
    """The `ShardingPlan` of a task's shards on their ranks; `Plan.to_torchrec` documents the other arguments.

    Raises:
        PlanError: the task and the model differ in the name, rows or columns of a table.
    """
    of_model = read_module_tables(module, leave_out=leave_out)
    _check_tables(task, [entry.table for entry in of_model])
    paths = {entry.table.name: entry.module_path for entry in of_model}
    return ShardingPlan(
        {
            path: EmbeddingModuleShardingPlan({table: _parameter_sharding(form) for table, form in tables.items()})
            for path, tables in torchrec_form(task.tables, shards, ranks, devices, paths).items()
        }
    )


def read_sharding_plan(plan: ShardingPlan, tables: Mapping[str, Table]) -> tuple[tuple[Shard, ...], tuple[int, ...]]:
    """The shards of all modules of a `ShardingPlan`, and the rank of each shard.

    Args:
        plan: a plan of table-wise and column-wise shards.
        tables: maps table names in `plan` to tables.

    Raises:
        PlanError: the plan has any other sharding type, an unknown table, or a table with another number of rows.
    """
    placed: list[tuple[Shard, int]] = []
    for module in plan.plan.values():
        for name, parameter in module.items():
            if name not in tables:
                raise PlanError(f"TorchRec's plan has the table {name!r}, which the sharding task does not have")
            placed += _read_parameter(tables[name], parameter)
    return tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed)


def _parameter_sharding(form: ParameterForm) -> ParameterSharding:
    shards = [ShardMetadata(**shard) for shard in form["sharding_spec"]["shards"]]
    return ParameterSharding(**form | {"sharding_spec": EnumerableShardingSpec(shards)})


def _read_parameter(table: Table, parameter: Any) -> list[tuple[Shard, int]]:
    """Shards and ranks of one table's `ParameterSharding`."""
    if parameter.sharding_type not in COLUMN_SHARDING_TYPES:
        raise PlanError(
            f"table {table.name!r} is sharded {parameter.sharding_type}; only {' and '.join(COLUMN_SHARDING_TYPES)} "
            "can be read"
        )
    placed = []
    for shard, rank in zip(parameter.sharding_spec.shards, parameter.ranks, strict=True):
        rows, columns = shard.shard_sizes
        if shard.shard_offsets[0] or rows != table.num_embeddings:
            raise PlanError(f"table {table.name!r} has {table.num_embeddings} rows, but TorchRec's plan has {rows}")
        placed.append((Shard(table, shard.shard_offsets[1], columns), rank))
    return placed


def _check_tables(task: ShardingTask, of_model: Collection[Table]) -> None:
    """Refuse a model whose tables differ from those of the task in name, rows or columns."""
    in_task, in_model = ({table.name: table for table in tables} for tables in (task.tables, of_model))
    for name in sorted(in_task.keys() | in_model.keys()):
        ours, theirs = _describe(in_task.get(name)), _describe(in_model.get(name))
        if ours != theirs:
            raise PlanError(f"{task.task_id}: table {name!r} {ours} in the plan, but {theirs} in the model")


def _describe(table: Table | None) -> str:
    return "is missing" if table is None else f"has {table.num_embeddings} rows of {table.embedding_dim} columns"
