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
from neuroshard_pipeline.sharders.base import RivalParams, SharderSettings
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables import ShardingTask, read_constraints, read_tables
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
) -> Plan:
    """Search a plan with the cost models."""
    settings = SharderSettings(search, plus, memory, rivals)
    return shard(task, CostModels(compute_model, comm_model), params.sharder, settings, params.seed)


def tabulate_plan(plan: Plan) -> pd.DataFrame:
    """The plan, one row per shard."""
    return plan.to_frame()


def explain_plan(plan: Plan) -> str:
    """The plan in words: per rank shards, memory, predicted costs, and what binds."""
    return plan.explain()


def export_torchrec_plan(plan: Plan, params: TorchRecExportParams) -> dict[str, Any]:
    """The plan as TorchRec writes it."""
    return plan_to_json(plan, params.local_world_size, params.compute_device)
