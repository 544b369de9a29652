"""Puts modules whose tables are cut into tiers (by popularity of rows) into a model as a plan says.

If the plan's task has `index_dedup`, all `EmbeddingCollection`s are replaced, because TorchRec's own deduplication runs
on GPUs only.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import nn
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingCollection

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import cuts_of, parent_tables
from neuroshard_pipeline.torchrec_bridge.tiered.build import tiered_embeddings
from neuroshard_pipeline.torchrec_bridge.tiered.groups import RankGroups
from neuroshard_pipeline.torchrec_bridge.tiered.index import PopularRows
from neuroshard_pipeline.torchrec_bridge.tiered.popular import TierOptions
from neuroshard_pipeline.torchrec_plan.modules import ModuleTable, embedding_modules, read_module_tables
from neuroshard_pipeline.torchrec_plan.structures import parameter_sharding
from neuroshard_pipeline.torchrec_plan.writer import ComputeDevice, torchrec_form

_POPULAR = ("hot", "host")


def put_tiers(
    model: nn.Module,
    plan: Plan,
    popular_rows: Mapping[str, PopularRows],
    groups: RankGroups,
    *,
    device: torch.device | None = None,
    leave_out: Collection[str] = (),
) -> ShardingPlan:
    """Replace every collection of `model` that has tiers in `plan`; return TorchRec's plan of the other collections.

    `DistributedModelParallel(model, plan=...)` then shards the other collections. Every rank must call `put_tiers`.

    Args:
        model: the unsharded model, to whose tables `apply_optimizer_in_backward` has attached an optimizer.
        plan: a plan of its tables. If its task has `index_dedup`, every `EmbeddingCollection` is replaced.
        popular_rows: for every table with tiers, its most popular ids, the most popular first.
        groups: the process groups; their hosts must have as many ranks as the hosts of the plan's task.
        device: the device of this rank; None for the CPU.
        leave_out: fully qualified names of modules that the plan does not cover.

    Raises:
        PlanError: the plan does not fit the model or the groups, or a module with tiers cannot be made
            (`build.tiered_embeddings`).
    """
    task, device = plan.task, device or torch.device("cpu")
    _check_groups(task, groups)
    entries = read_module_tables(model, leave_out=leave_out)
    _check_tables(plan, entries)
    forms = _forms(plan, entries, "cuda" if device.type == "cuda" else "cpu")
    cuts, options = cuts_of(task), TierOptions(task.index_dedup, task.comm_precision, device)
    for path, unsharded in embedding_modules(model, leave_out).items():
        own = {entry.table.name for entry in entries if entry.module_path == path}
        if not own & cuts.keys() and not (task.index_dedup and isinstance(unsharded, EmbeddingCollection)):
            continue
        parent, _, name = path.rpartition(".")
        own_cuts = {name: cuts[name] for name in own & cuts.keys()}
        module = tiered_embeddings(unsharded, own_cuts, popular_rows, forms.pop(path, {}), groups, options)
        setattr(model.get_submodule(parent), name, module)
    return ShardingPlan({path: EmbeddingModuleShardingPlan(form) for path, form in forms.items()})


def _check_groups(task: ShardingTask, groups: RankGroups) -> None:
    if (groups.world.size(), groups.host.size()) != (task.world_size, task.ranks_per_host):
        found = f"the process groups have {groups.world.size()} and {groups.host.size()}"
        wanted = f"the plan is for {task.world_size} ranks, {task.ranks_per_host} on a host"
        raise PlanError(f"{task.task_id}: {wanted}, but {found}")
    if task.num_replica_groups > 1:
        raise PlanError(
            f"{task.task_id}: modules with tiers or index_dedup are not averaged over num_replica_groups "
            f"{task.num_replica_groups}; plan and train with one replica group, or set tiers and index_dedup to false"
        )


def _forms(
    plan: Plan, entries: Sequence[ModuleTable], compute_device: ComputeDevice
) -> dict[str, dict[str, ParameterSharding]]:
    """TorchRec's plan of every module, without hot and host rows."""
    paths = {entry.table.name: entry.module_path for entry in entries}
    tables = [table for table in plan.task.tables if table.tier is None or table.tier.kind not in _POPULAR]
    names = {table.name for table in tables}
    placed = [(s, rank) for s, rank in zip(plan.shards, plan.ranks, strict=True) if s.table.name in names]
    shards, ranks = zip(*placed, strict=True) if placed else ((), ())
    of_table = {table.name: paths[table.name if table.tier is None else table.tier.parent] for table in tables}
    devices = plan.devices(None, compute_device)
    forms = torchrec_form(tables, shards, ranks, devices, of_table)
    return {path: {name: parameter_sharding(form) for name, form in own.items()} for path, own in forms.items()}


def _check_tables(plan: Plan, entries: Sequence[ModuleTable]) -> None:
    """Refuse a model that is itself a collection, or whose tables differ from the plan's in name, rows or columns."""
    if any(not entry.module_path for entry in entries):
        raise PlanError("the model is itself a collection, which cannot be replaced; give the module that holds it")
    in_plan, in_model = (
        {table.name: f"{table.num_embeddings} rows of {table.embedding_dim} columns" for table in tables}
        for tables in (parent_tables(plan.task), [entry.table for entry in entries])
    )
    for name in sorted(in_plan.keys() | in_model.keys()):
        ours, theirs = in_plan.get(name, "no rows"), in_model.get(name, "no rows")
        if ours != theirs:
            raise PlanError(f"{plan.task.task_id}: table {name!r} has {ours} in the plan, but {theirs} in the model")
