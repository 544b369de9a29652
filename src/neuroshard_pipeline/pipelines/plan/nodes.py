"""Nodes of the plan pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel, CostModels
from neuroshard_pipeline.pipelines.params import PlanParams, TorchRecExportParams
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import PlusParams, SearchParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.rank_order import ms_per_byte_of, order_text
from neuroshard_pipeline.sharders.base import RivalParams, SharderSettings
from neuroshard_pipeline.sharders.registry import ordered_by_links, shard
from neuroshard_pipeline.tables import ShardingTask, read_bandwidths, read_constraints, read_tables
from neuroshard_pipeline.tables.constraints import UNCONSTRAINED
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json


def read_task(params: PlanParams) -> ShardingTask:
    """Read the user's tables and constraints and state the task."""
    constraints = UNCONSTRAINED if params.constraints is None else read_constraints(params.constraints)
    return ShardingTask(
        read_tables(params.tables),
        params.world_size,
        params.batch_size,
        int(params.memory_gib * 2**30),
        params.optimizer,
        task_id=Path(params.tables).stem,
        constraints=constraints,
    )


def search_plan(
    task: ShardingTask,
    compute_model: ComputeCostModel,
    comm_model: CommCostModel,
    params: PlanParams,
    search: SearchParams,
    plus: PlusParams,
    memory: MemoryModel,
    rivals: RivalParams,
) -> tuple[Plan, str]:
    """Search a plan with the cost models; where the user's links differ, in the order of ranks that suits them.

    Returns:
        The plan, and what the order gained in a line, empty where no links are given.
    """
    gb_per_s = None if params.links is None else read_bandwidths(params.links, params.world_size)
    models, settings = CostModels(compute_model, comm_model), SharderSettings(search, plus, memory, rivals)
    found = shard(task, models, params.sharder, settings, params.seed)
    if gb_per_s is None:
        return found, ""
    ordered = ordered_by_links(found, gb_per_s, models)
    return ordered, order_text(found, ordered, ms_per_byte_of(gb_per_s))


def tabulate_plan(plan: Plan) -> pd.DataFrame:
    """The plan, one row per shard."""
    return plan.to_frame()


def explain_plan(plan: Plan, order: str) -> str:
    """The plan in words: per rank shards, memory, predicted costs, what binds, and what the order of ranks gained."""
    return "\n".join(filter(None, (plan.explain(), order)))


def export_torchrec_plan(plan: Plan, params: TorchRecExportParams) -> dict[str, Any]:
    """The plan as TorchRec writes it."""
    return plan_to_json(plan, params.local_world_size, params.compute_device)
