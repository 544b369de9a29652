"""A plan as a JSON document that holds TorchRec's plan structures and everything needed to get the plan back.

TorchRec writes its plans one way only, so this is the file format of plans. It needs no TorchRec to write or read.

The document, version 1 (`SCHEMA`, `SCHEMA_VERSION`):

    schema, version     what this is
    sharder             which sharder made the plan
    compute_device      "cuda" or "cpu"
    local_world_size    ranks per host, which decides the device index of a rank
    task                the context that the plan holds for: task_id, world_size, batch_size (global), memory_bytes,
                        optimizer, constraints (or null), tables (every field of every table) and tables_sha256, the
                        hash of `tables`
    shards              every shard of the plan as [table, column offset, columns, rank]
    plan                the same in TorchRec's terms, as `joined_for_torchrec` makes them hold: module path -> table ->
                        sharding_type, compute_kernel, ranks and
                        sharding_spec.shards[*] = {shard_offsets: [0, column], shard_sizes: [rows, columns],
                        placement: "rank:R/cuda:R%local_world_size" or "rank:R/cpu"}
    predicted           per rank, the four predicted costs in ms, or null
    memory              what the plan counts against the memory of a rank
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

from neuroshard_pipeline.errors import PlanError, TaskError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.tables.constraints import UNCONSTRAINED, Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.joining import joined_for_torchrec

ComputeDevice = Literal["cuda", "cpu"]

SCHEMA = "neuroshard_pipeline.torchrec_plan"
SCHEMA_VERSION = 1

#: Where the embedding tables stand in TorchRec's own DLRM (`torchrec.models.dlrm.DLRM`).
DLRM_MODULE_PATH = "sparse_arch.embedding_bag_collection"

#: The kernel whose costs the cost models know: FBGEMM's table-batched lookup with the optimizer in its backward.
COMPUTE_KERNEL = "fused"

#: Every table goes out as column-wise, an unsplit one as one shard; `to_torchrec` says what was measured.
SHARDING_TYPE = "column_wise"


def plan_to_json(
    plan: Plan,
    local_world_size: int | None = None,
    compute_device: ComputeDevice = "cuda",
    module_path: str | Mapping[str, str] = DLRM_MODULE_PATH,
) -> dict[str, Any]:
    """The JSON document of `plan`; `json.dumps` takes it as it is.

    Args:
        plan: any plan.
        local_world_size: ranks per host; None puts all ranks on one host.
        compute_device: where the tables are trained.
        module_path: fully qualified name of the `EmbeddingBagCollection` in the model that is trained; where tables
            stand in several, a mapping from every table's name to its module's.

    Raises:
        PlanError: `local_world_size` does not divide the world, the device is unknown, or a table has no module.
    """
    local_world_size = plan.task.world_size if local_world_size is None else local_world_size
    check_hosts(plan.task.world_size, local_world_size, compute_device)
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "sharder": plan.sharder,
        "compute_device": compute_device,
        "local_world_size": local_world_size,
        "task": _task_to_json(plan.task),
        "shards": [
            [shard.table.name, int(shard.column_offset), int(shard.embedding_dim), int(rank)]
            for shard, rank in zip(plan.shards, plan.ranks, strict=True)
        ],
        "plan": _modules_to_json(joined_for_torchrec(plan), local_world_size, compute_device, module_path),
        "predicted": None if plan.predicted is None else _costs_to_json(plan.predicted),
        "memory": plan.memory.model_dump(),
    }


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """The plan of a document that `plan_to_json` made: equal to the one that went in.

    Raises:
        PlanError: the document is of another kind or version, lacks a field, or its tables were changed.
    """
    if document.get("schema") != SCHEMA or document.get("version") != SCHEMA_VERSION:
        raise PlanError(
            f"not a plan that this version reads: schema {document.get('schema')!r}, version "
            f"{document.get('version')!r}; expected {SCHEMA!r}, version {SCHEMA_VERSION}"
        )
    try:
        return _read_plan(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, TaskError) as error:
        raise PlanError(f"the plan document is damaged ({type(error).__name__}: {error}); write it again") from error


def tables_sha256(tables: Sequence[Table]) -> str:
    """Hash of everything that is known of the tables: a plan is only good for the tables it was made for."""
    text = json.dumps([_table_to_json(table) for table in tables], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def placement(rank: int, local_world_size: int, compute_device: ComputeDevice) -> str:
    """TorchRec's name of a rank's device, such as `rank:9/cuda:1` for 8 ranks per host."""
    return f"rank:{rank}/cpu" if compute_device == "cpu" else f"rank:{rank}/cuda:{rank % local_world_size}"


def shards_by_module(plan: Plan, module_path: str | Mapping[str, str]) -> dict[str, dict[str, list[int]]]:
    """Module path -> table -> positions of its shards in `plan.shards`, by column offset; tables in the task's order.

    Raises:
        PlanError: a table has no module.
    """
    positions: dict[str, list[int]] = {table.name: [] for table in plan.task.tables}
    for position in sorted(range(len(plan.shards)), key=lambda p: plan.shards[p].column_offset):
        positions[plan.shards[position].table.name].append(position)
    modules: dict[str, dict[str, list[int]]] = {}
    for table, where in positions.items():
        module = module_path if isinstance(module_path, str) else module_path.get(table)
        if module is None:
            raise PlanError(f"table {table!r} has no module path; add it to module_path")
        modules.setdefault(module, {})[table] = where
    return modules


def check_hosts(world_size: int, local_world_size: int, compute_device: str) -> None:
    """Refuse a number of ranks per host that does not divide the world, and an unknown device.

    Raises:
        PlanError: one of the two is wrong.
    """
    if compute_device not in ("cuda", "cpu"):
        raise PlanError(f"compute_device {compute_device!r} is unknown; use 'cuda' or 'cpu'")
    if local_world_size < 1 or world_size % local_world_size:
        raise PlanError(f"local_world_size {local_world_size} must divide the world_size {world_size} of the plan")


def _modules_to_json(
    plan: Plan, local_world_size: int, compute_device: ComputeDevice, module_path: str | Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    return {
        module: {
            table: _parameter_to_json(plan, positions, local_world_size, compute_device)
            for table, positions in tables.items()
        }
        for module, tables in shards_by_module(plan, module_path).items()
    }


def _parameter_to_json(
    plan: Plan, positions: Sequence[int], local_world_size: int, compute_device: ComputeDevice
) -> dict[str, Any]:
    """TorchRec's `ParameterSharding` of one table."""
    shards = [
        {
            "shard_offsets": [0, int(plan.shards[position].column_offset)],
            "shard_sizes": [plan.shards[position].table.num_embeddings, int(plan.shards[position].embedding_dim)],
            "placement": placement(plan.ranks[position], local_world_size, compute_device),
        }
        for position in positions
    ]
    return {
        "sharding_type": SHARDING_TYPE,
        "compute_kernel": COMPUTE_KERNEL,
        "ranks": [int(plan.ranks[position]) for position in positions],
        "sharding_spec": {"shards": shards},
    }


def _task_to_json(task: ShardingTask) -> dict[str, Any]:
    memory = task.memory_bytes if isinstance(task.memory_bytes, int) else list(task.memory_bytes)
    return {
        "task_id": task.task_id,
        "world_size": task.world_size,
        "batch_size": task.batch_size,
        "memory_bytes": memory,
        "optimizer": task.optimizer,
        "tables_sha256": tables_sha256(task.tables),
        "tables": [_table_to_json(table) for table in task.tables],
        "constraints": _constraints_to_json(task.constraints) if task.constraints else None,
    }


def _constraints_to_json(constraints: Constraints) -> dict[str, Any]:
    names = [field.name for field in fields(TableConstraint)]
    return {
        "tables": [{name: getattr(entry, name) for name in names} for entry in constraints.tables],
        "together": [list(group) for group in constraints.together],
        "min_width": constraints.min_width,
        "max_shards": constraints.max_shards,
    }


def _table_to_json(table: Table) -> dict[str, Any]:
    values = {field.name: getattr(table, field.name) for field in fields(table)}
    reuse = None if table.reuse is None else [float(share) for share in table.reuse]
    unique_rows = None if table.unique_rows is None else float(table.unique_rows)
    return values | {"pooling_factor": float(table.pooling_factor), "unique_rows": unique_rows, "reuse": reuse}


def _costs_to_json(cost: PlanCost) -> dict[str, list[float]]:
    return {field.name: [float(ms) for ms in getattr(cost, field.name)] for field in fields(cost)}


def _read_plan(document: Mapping[str, Any]) -> Plan:
    task = _read_task(document["task"])
    tables = {table.name: table for table in task.tables}
    costs = document["predicted"]
    plan = Plan(
        task=task,
        shards=tuple(Shard(tables[table], offset, width) for table, offset, width, _ in document["shards"]),
        ranks=tuple(rank for *_, rank in document["shards"]),
        sharder=document["sharder"],
        predicted=None if costs is None else PlanCost(**{name: tuple(ms) for name, ms in costs.items()}),
        memory=MemoryModel(**document["memory"]),
    )
    paths = {table: module for module, tables in document["plan"].items() for table in tables}
    hosts = document["local_world_size"], document["compute_device"]
    if _modules_to_json(joined_for_torchrec(plan), *hosts, paths) != document["plan"]:
        raise PlanError(f"{task.task_id}: the fields 'plan' and 'shards' of the plan document contradict each other")
    return plan


def _read_task(task: Mapping[str, Any]) -> ShardingTask:
    tables = tuple(
        Table(**entry | {"reuse": None if entry["reuse"] is None else tuple(entry["reuse"])})
        for entry in task["tables"]
    )
    if tables_sha256(tables) != task["tables_sha256"]:
        raise PlanError(f"{task['task_id']}: the tables of the plan document were changed after it was written")
    values = {name: task[name] for name in ("world_size", "batch_size", "memory_bytes", "optimizer", "task_id")}
    return ShardingTask(tables, **values, constraints=_read_constraints(task["constraints"]))


def _read_constraints(constraints: Mapping[str, Any] | None) -> Constraints:
    if constraints is None:
        return UNCONSTRAINED
    entries = tuple(TableConstraint(**entry) for entry in constraints["tables"])
    return Constraints(entries, constraints["together"], constraints["min_width"], constraints["max_shards"])
