"""Nodes of the search stage."""

from __future__ import annotations

from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel, CostModels
from neuroshard_pipeline.measurement import (
    CommMeasureParams,
    ComputeMeasureParams,
    RecordingParams,
    TopologyParams,
    measure_comm,
    measure_compute,
)
from neuroshard_pipeline.pipelines.params import ContestParams, TorchRecExportParams
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import PlusParams, SearchParams
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.evaluation import plans_frame
from neuroshard_pipeline.sharders.measured import measure_plan_costs
from neuroshard_pipeline.sharders.registry import Solutions, solve_all
from neuroshard_pipeline.sharders.summary import summarise
from neuroshard_pipeline.tables import tasks_from_frame
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json


def solve_tasks(
    tasks: pd.DataFrame,
    compute_model: ComputeCostModel,
    comm_model: CommCostModel,
    contest: ContestParams,
    search: SearchParams,
    plus: PlusParams,
    memory: MemoryModel,
) -> Solutions:
    """Let every sharder plan every task."""
    return solve_all(
        tasks_from_frame(tasks),
        contest.sharders,
        CostModels(compute_model, comm_model),
        SharderSettings(search, plus, memory),
        contest.seed,
        lambda each: tqdm(each, desc="search", unit=" tasks", disable=None),
    )


def tabulate_plans(solutions: Solutions) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The plans shard by shard, and every attempt with its time or its failure."""
    return plans_frame(solutions.plans), solutions.attempts


def measure_plans(
    solutions: Solutions,
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    seed: int,
    recording: RecordingParams,
    topology: TopologyParams,
) -> pd.DataFrame:
    """Run every plan on the hardware: compute rank by rank, then the collectives.

    Recorded compute costs are null for ranks that no recorded sample equals.
    """
    return measure_plan_costs(
        solutions.plans,
        lambda samples: measure_compute(samples, compute, seed, recording),
        lambda samples: measure_comm(samples, comm, seed, topology),
    )


def compare_sharders(plan_costs: pd.DataFrame, attempts: pd.DataFrame) -> dict[str, Any]:
    """Sharders side by side on the tasks that all of them solved."""
    return summarise(plan_costs, attempts)


def export_torchrec_plans(solutions: Solutions, params: TorchRecExportParams) -> dict[str, dict[str, Any]]:
    """One TorchRec plan per task, of the sharder asked for."""
    return {
        plan.task.task_id: plan_to_json(plan, params.local_world_size, params.compute_device)
        for plan in solutions.plans
        if plan.sharder == params.sharder
    }
