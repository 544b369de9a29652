"""Nodes of the pipelines plan and advise."""

from pathlib import Path
from typing import Any

from neuroshard_pipeline.advice import Advice, advise
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.pipelines.params import PlanParams, TorchRecExportParams
from neuroshard_pipeline.search.models import device_of
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.rank_order import ms_per_byte_of, order_text
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import ordered_by_links, shard, solve_all
from neuroshard_pipeline.tables.bandwidth_file import read_bandwidths
from neuroshard_pipeline.tables.constraint_file import read_constraints
from neuroshard_pipeline.tables.constraints import UNCONSTRAINED
from neuroshard_pipeline.tables.id_batches import bag_lengths, counted_tables
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json
from neuroshard_pipeline.torchrec_plan.module_paths import module_paths


def read_task(params: PlanParams) -> ShardingTask:
    """Read the user's tables, constraints and ids, and build the task; refuse tables that TorchRec cannot hold."""
    tables = read_tables(params.tables)
    if params.ids is not None:
        names = "plan.task.num_batches or plan.task.batch_size"
        tables = counted_tables(params.ids, tables, params.batch_size, params.num_batches, names)
    task = ShardingTask(
        tables,
        params.world_size,
        params.batch_size,
        int(params.memory_gib * 2**30),
        params.optimizer,
        task_id=Path(params.tables).stem,
        constraints=UNCONSTRAINED if params.constraints is None else read_constraints(params.constraints),
        local_world_size=params.local_world_size,
        pipelines_input_dist=params.pipelines_input_dist,
        host_memory_bytes=None if params.host_memory_gib is None else int(params.host_memory_gib * 2**30),
        comm_precision=params.comm_precision,
        num_replica_groups=params.num_replica_groups,
        sync_interval=params.sync_interval,
        tiers=params.tiers,
        index_dedup=params.index_dedup,
    )
    module_paths(task)  # refuses tables that no model of TorchRec can have
    return task


def search_plan(
    task: ShardingTask, models: CostModels, settings: SharderSettings, params: PlanParams, export: TorchRecExportParams
) -> tuple[Plan, str]:
    """Search for a plan. If links are given, order its ranks so that its collectives are cheaper on these links.

    Returns:
        The plan, and a line about the effect of the order of ranks; the line is empty if no links are given.

    Raises:
        PlanError: the task may use the host memory of GPUs, but its plan is for CPUs.
    """
    uses_host_memory = task.host_memory_bytes is not None or any(table.is_in_host_memory for table in task.tables)
    if uses_host_memory and (export.compute_device or device_of(models.compute)) == "cpu":
        raise PlanError(
            f"{task.task_id}: TorchRec can keep tables in host memory only if GPUs train them, but this plan is for "
            "CPUs (search.torchrec.compute_device; by default the device of the cost models); set it to cuda, use "
            "--env h100, or leave out plan.task.host_memory_gib and the compute_kernel of tables"
        )
    gb_per_s = None if params.links is None else read_bandwidths(params.links, params.world_size)
    found = shard(task, models, params.sharder, settings, params.seed)
    if gb_per_s is None:
        return found, ""
    ordered = ordered_by_links(found, gb_per_s, models)
    return ordered, order_text(found, ordered, ms_per_byte_of(gb_per_s, params.world_size))


def find_advice(task: ShardingTask, models: CostModels, settings: SharderSettings, params: PlanParams) -> Advice:
    """What would make a step faster; lengths of bags are counted in the user's ids if there are any."""
    lengths = bag_lengths(params.ids, task.tables, params.batch_size * params.num_batches) if params.ids else {}
    return advise(task, models, settings, params.seed, lengths=lengths)


def plan_rivals(
    task: ShardingTask, models: CostModels, settings: SharderSettings, params: PlanParams
) -> tuple[list[Plan], str]:
    """Plans of other sharders for the same task, and lines about those that have none."""
    solved = solve_all([task], params.rivals, models, settings, params.seed)
    failed = zip(solved.failures["sharder"], solved.failures["error"], strict=True)
    return list(solved.plans), "\n".join(f"no plan by {name}: {error}" for name, error in failed)


def explain_plan(plan: Plan, order: str, rivals: list[Plan], failed: str) -> str:
    """The plan in words, beside other sharders, with the effect of the order of ranks."""
    return "\n".join(filter(None, (plan.explain(rivals), failed, order)))


def export_torchrec_plan(plan: Plan, params: TorchRecExportParams) -> dict[str, Any]:
    """The plan as a JSON document that `torchrec_bridge.plan_json` can read again."""
    return plan_to_json(plan, compute_device=params.compute_device)
