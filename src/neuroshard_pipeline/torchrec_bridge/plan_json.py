"""A plan as a JSON document, which holds TorchRec's form of the plan and everything needed to restore the plan.

TorchRec can write its plans but cannot read them, so this project stores plans in this format. Neither writing nor
reading needs TorchRec.

The document, version 2 (`SCHEMA`, `SCHEMA_VERSION`):

    schema, version     name and version of this format
    sharder             the sharder that made the plan
    compute_device      "cuda" or "cpu"
    local_world_size    ranks per host, which determines the device index of a rank
    task                the task that the plan solves: task_id, world_size, batch_size (global), memory_bytes,
                        optimizer, local_world_size (or null), pipelines_input_dist, constraints (or null), tables (the
                        fields of every table; optional ones only where they are not the defaults) and
                        tables_sha256, the hash of `tables`; other fields only where they are not the defaults
    shards              every shard of the plan as [table, column offset, columns, rank, row offset, rows,
                        sharding_type]
    plan                the same shards as `torchrec_plan.writer.torchrec_form` writes them: module path -> table ->
                        sharding_type, compute_kernel, ranks and sharding_spec, which is null for replicas and else
                        {shards: [{shard_offsets: [row, column], shard_sizes: [rows, columns],
                        placement: "rank:R/cuda:R%local_world_size" or "rank:R/cpu"}, ...]}; with a cache, also
                        cache_params. Hot and host tiers, the popular rows of a sequence table, are left out:
                        TorchRec has no form for them (`torchrec_bridge.tiered`)
    predicted           the fields of `PlanCost`, each a list of ms per rank (empty where it was not priced); or null
    memory              parameters of the memory model that the plan was made with
    made_for            not in all documents: the task that was asked for, names and hashes of the cost models, the
                        sharder with its seed and settings, and a hash of all of them (`torchrec_bridge.made_for`)
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from neuroshard_pipeline.errors import PlanError, TaskError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.tables.constraints import UNCONSTRAINED, Constraints, TableConstraint
from neuroshard_pipeline.tables.kinds import Tier
from neuroshard_pipeline.tables.table import TABLE_DEFAULTS, Shard, Table
from neuroshard_pipeline.tables.task import TASK_DEFAULTS, ShardingTask
from neuroshard_pipeline.torchrec_plan.module_paths import module_paths
from neuroshard_pipeline.torchrec_plan.writer import ComputeDevice, Devices, torchrec_form

Json = dict[str, Any]

SCHEMA = "neuroshard_pipeline.torchrec_plan"
SCHEMA_VERSION = 2

#: Fields of a table that are written only where they differ from these defaults.
_OPTIONAL_OF_TABLES: Json = {**TABLE_DEFAULTS, "tier": None, "popularity": None}

#: Fields of a task that are written only where they differ from these defaults.
_OPTIONAL_FIELDS = {
    name: value
    for name, value in TASK_DEFAULTS.items()
    if name not in ("optimizer", "local_world_size", "pipelines_input_dist")
}


def plan_to_json(
    plan: Plan,
    local_world_size: int | None = None,
    compute_device: ComputeDevice | None = None,
    module_path: str | Mapping[str, str] | None = None,
    made_for: Json | None = None,
) -> Json:
    """The JSON document of `plan`, ready for `json.dumps`.

    Args:
        plan: any plan.
        local_world_size: ranks per host, or None for those of the task.
        compute_device: kind of device that trains the tables; None for the plan's own.
        module_path: fully qualified name of the collection that holds the tables whose `module` is empty, or a mapping
            from every table's name to the name of its collection. Cold tiers may be listed under the name of the whole
            table. None stands for `sparse_arch.embedding_bag_collection` (as in TorchRec's DLRM), or, by kind, for
            `weighted_embedding_bag_collection` and `embedding_collection` beside it. If tables of several of these
            kinds would have the same path, only the first kind keeps it (pooled, then weighted, then sequence tables);
            the paths of the others get the suffix `_weighted_embedding_bag_collection` or `_embedding_collection`.
        made_for: what the plan was made for (`made_for.MadeFor.to_json`), so that it is only used for this.

    Raises:
        PlanError: `local_world_size` does not divide the world size, the device is unknown, a table has no module, no
            TorchRec module can hold the tables (`module_paths`), or TorchRec cannot train the plan.
    """
    devices = plan.devices(local_world_size, compute_device)
    costs = {} if plan.predicted is None else _fields_of(plan.predicted)
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "sharder": plan.sharder,
        "compute_device": devices.compute_device,
        "local_world_size": devices.ranks_per_host,
        "task": task_to_json(plan.task),
        "shards": [_shard_to_json(shard, rank) for shard, rank in zip(plan.shards, plan.ranks, strict=True)],
        "plan": _torchrec_form(plan, devices, module_paths(plan.task, module_path)),
        "predicted": {name: list(map(float, ms)) for name, ms in costs.items()} or None,
        "memory": plan.memory.model_dump(),
        **({} if made_for is None else {"made_for": made_for}),
    }


def is_document(source: Any) -> bool:
    """Whether `read_document` reads a source."""
    return isinstance(source, Mapping) or (isinstance(source, str | Path) and Path(source).suffix == ".json")


def read_document(source: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """A document, or that of a file.

    Raises:
        PlanError: the file cannot be read; the message names it.
    """
    if isinstance(source, Mapping):
        return source
    try:
        document: Json = json.loads(Path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{source}: the plan cannot be read ({error}); give a plan document in JSON") from error
    return document


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """The plan of a document that `plan_to_json` wrote; it equals the plan that was written.

    Raises:
        PlanError: the document has another schema or version, lacks a field, contradicts itself, or has other tables.
    """
    if document.get("schema") != SCHEMA or document.get("version") != SCHEMA_VERSION:
        raise PlanError(
            f"this version cannot read the plan document: it has schema {document.get('schema')!r}, version "
            f"{document.get('version')!r}; expected {SCHEMA!r}, version {SCHEMA_VERSION}"
        )
    try:
        return _read_plan(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, TaskError) as error:
        raise PlanError(f"the plan document is damaged ({type(error).__name__}: {error}); write it again") from error


def tables_sha256(tables: Sequence[Table]) -> str:
    """Hash of the fields of the tables; a plan is valid only for the tables that it was made for."""
    text = json.dumps([_table_to_json(table) for table in tables], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def task_to_json(task: ShardingTask) -> Json:
    """The part `task` of a document."""
    memory = task.memory_bytes if isinstance(task.memory_bytes, int) else list(task.memory_bytes)
    constraints = None
    if task.constraints:
        of_tables = [_fields_of(entry) for entry in task.constraints.tables]
        constraints = _fields_of(task.constraints) | {"tables": of_tables}
    return {
        "task_id": task.task_id,
        "world_size": task.world_size,
        "batch_size": task.batch_size,
        "memory_bytes": memory,
        "optimizer": task.optimizer,
        "local_world_size": task.local_world_size,
        "pipelines_input_dist": task.pipelines_input_dist,
        **{name: getattr(task, name) for name, value in _OPTIONAL_FIELDS.items() if getattr(task, name) != value},
        "tables_sha256": tables_sha256(task.tables),
        "tables": [_table_to_json(table) for table in task.tables],
        "constraints": constraints,
    }


def _table_to_json(table: Table) -> Json:
    """The fields of a table, with statistics as Python floats, so that equal tables have equal hashes."""
    values = _fields_of(table) | {
        "pooling_factor": float(table.pooling_factor),
        "unique_rows": None if table.unique_rows is None else float(table.unique_rows),
        "reuse": None if table.reuse is None else [float(share) for share in table.reuse],
        "tier": None if table.tier is None else [table.tier.kind, table.tier.parent, table.tier.row_offset],
    }
    return {n: value for n, value in values.items() if n not in _OPTIONAL_OF_TABLES or value != _OPTIONAL_OF_TABLES[n]}


def _shard_to_json(shard: Shard, rank: int) -> list[Any]:
    numbers = (shard.column_offset, shard.embedding_dim, rank, shard.row_offset, shard.num_rows)
    return [shard.table.name, *map(int, numbers), shard.sharding_type]


def _read_shard(tables: Mapping[str, Table], entry: Sequence[Any]) -> tuple[Shard, int]:
    name, column, width, rank, *rectangle = entry
    if len(rectangle) != 3:
        raise ValueError(f"a shard has {len(entry)} values, not 7")
    return Shard(tables[name], column, width, *rectangle), rank


def _fields_of(record: Table | Constraints | TableConstraint | PlanCost) -> Json:
    """The arguments, by name, from which an equal `record` can be constructed."""
    return {field.name: getattr(record, field.name) for field in fields(record) if field.init and field.compare}


def _read_plan(document: Mapping[str, Any]) -> Plan:
    task = read_task(document["task"])
    tables = {table.name: table for table in task.tables}
    costs = document["predicted"]
    placed = [_read_shard(tables, entry) for entry in document["shards"]]
    plan = Plan(
        task=task,
        shards=tuple(shard for shard, _ in placed),
        ranks=tuple(rank for _, rank in placed),
        sharder=document["sharder"],
        predicted=None if costs is None else PlanCost(**{name: tuple(ms) for name, ms in costs.items()}),
        memory=MemoryModel(**document["memory"]),
        compute_device=document["compute_device"],
    )
    forms = {name: (path, form) for path, module in document["plan"].items() for name, form in module.items()}
    paths = {name: path for name, (path, _) in forms.items()}
    devices = Devices(task.world_size, document["local_world_size"], document["compute_device"])
    if _torchrec_form(plan, devices, paths) != document["plan"]:
        raise PlanError(f"{task.task_id}: the fields 'plan' and 'shards' of the plan document contradict each other")
    return plan


def _torchrec_form(plan: Plan, devices: Devices, module_path: Mapping[str, str]) -> Json:
    """TorchRec's form of the plan without hot and host tiers; cold tiers are in the module of the whole table."""
    tables = [table for table in plan.task.tables if table.tier is None or table.tier.kind == "cold"]
    names = {table.name for table in tables}
    pairs = zip(plan.shards, plan.ranks, strict=True)
    placed = [(shard, rank) for shard, rank in pairs if shard.table.name in names]
    parents = {table.name: table.tier.parent for table in tables if table.tier is not None}
    paths = {**module_path, **{name: module_path[of] for name, of in parents.items() if of in module_path}}
    return torchrec_form(tables, [shard for shard, _ in placed], [rank for _, rank in placed], devices, paths)


def _read_table(entry: Mapping[str, Any]) -> Table:
    reuse, tier, points = entry["reuse"], entry.get("tier"), entry.get("popularity")
    values = {"reuse": None if reuse is None else tuple(reuse), "tier": None if tier is None else Tier(*tier)}
    values["popularity"] = None if points is None else tuple((rows, share) for rows, share in points)
    return Table(**{**entry, **values})


def read_task(task: Mapping[str, Any]) -> ShardingTask:
    """Inverse of `task_to_json`."""
    tables = [_read_table(entry) for entry in task["tables"]]
    if tables_sha256(tables) != task["tables_sha256"]:
        raise PlanError(f"{task['task_id']}: the tables of the plan document were changed after it was written")
    values = {name: task[name] for name in ("world_size", "batch_size", "memory_bytes", "optimizer", "task_id")}
    constraints = UNCONSTRAINED
    if task["constraints"] is not None:
        entries = [TableConstraint(**entry) for entry in task["constraints"]["tables"]]
        constraints = Constraints(**task["constraints"] | {"tables": entries})
    others = {name: task[name] for name in TASK_DEFAULTS if name in task}
    return ShardingTask(tables, **values | others, constraints=constraints)
