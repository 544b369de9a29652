"""Nodes of the search stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.cost_models import CommCostModel, ComputeCostModel, CostModels
from neuroshard_pipeline.evaluation.anchors import AnchorParams, Anchors, choose_both
from neuroshard_pipeline.evaluation.measure_plans import PlanMeasurement
from neuroshard_pipeline.evaluation.plan_intervals import plan_intervals_frame
from neuroshard_pipeline.evaluation.plan_samples import plans_frame
from neuroshard_pipeline.evaluation.summary import summarise
from neuroshard_pipeline.measurement import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.pipelines.params import ContestParams, TorchRecExportParams
from neuroshard_pipeline.pipelines.plan_measurement import Shards
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import PlusParams, SearchParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import RivalParams, SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions, solve_all
from neuroshard_pipeline.tables import comm_samples_from_frame, compute_samples_from_frame, tasks_from_frame
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json


def solve_tasks(
    tasks: pd.DataFrame,
    compute_model: ComputeCostModel,
    comm_model: CommCostModel,
    contest: ContestParams,
    search: SearchParams,
    plus: PlusParams,
    memory: MemoryModel,
    rivals: RivalParams,
) -> Solutions:
    """Let every sharder plan every task."""
    return solve_all(
        tasks_from_frame(tasks),
        contest.sharders,
        CostModels(compute_model, comm_model),
        SharderSettings(search, plus, memory, rivals),
        contest.seed,
        lambda each: tqdm(each, desc="search", unit=" tasks", disable=None),
    )


def tabulate_plans(solutions: Solutions) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The plans shard by shard, and every attempt with its time or its failure."""
    return plans_frame(solutions.plans), solutions.attempts


def take_plans(solutions: Solutions) -> tuple[Plan, ...]:
    """All plans are measured."""
    return solutions.plans


def with_anchors(measurement: PlanMeasurement, anchors: Anchors) -> PlanMeasurement:
    """Plans are measured with samples that the models were trained on among them."""
    return replace(measurement, anchors=anchors)


def tabulate_costs(
    plans: tuple[Plan, ...], measurement: PlanMeasurement, compute: Shards, backward: Shards, forward: Shards
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Costs of every plan rank by rank, and of the anchors then and now.

    Recorded compute costs are null for ranks that no recorded sample equals.
    """
    return measurement.costs(plans, compute, backward, forward)


def pick_anchors(
    solutions: Solutions,
    compute_samples: pd.DataFrame,
    table_pool: pd.DataFrame,
    compute_settings: pd.DataFrame,
    compute_costs: pd.DataFrame,
    comm_samples: pd.DataFrame,
    comm_costs: pd.DataFrame,
    params: AnchorParams,
) -> Anchors:
    """Samples that the models were trained on, to be measured again among the plans."""
    world_sizes = sorted({plan.task.world_size for plan in solutions.plans})
    compute = compute_samples_from_frame(compute_samples, table_pool, compute_settings), compute_costs
    return choose_both(compute, (comm_samples_from_frame(comm_samples), comm_costs), world_sizes, params)


def bound_plans(solutions: Solutions, compute_model: ComputeCostModel, comm_model: CommCostModel) -> pd.DataFrame:
    """Between which bounds the plans' costs lie, as far as the models know."""
    return plan_intervals_frame(solutions.plans, CostModels(compute_model, comm_model))


def compare_sharders(
    plan_costs: pd.DataFrame,
    attempts: pd.DataFrame,
    intervals: pd.DataFrame,
    anchors: pd.DataFrame,
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
) -> dict[str, Any]:
    """Sharders side by side on the tasks that all of them solved, and where their costs come from."""
    costs_are = {"compute": compute.costs_are, "comm": comm.costs_are}
    return summarise(plan_costs, attempts, intervals, anchors) | {"costs_are": costs_are}


def export_torchrec_plans(solutions: Solutions, params: TorchRecExportParams) -> dict[str, dict[str, Any]]:
    """One TorchRec plan per task, of the sharder asked for."""
    return {
        plan.task.task_id: plan_to_json(plan, params.local_world_size, params.compute_device)
        for plan in solutions.plans
        if plan.sharder == params.sharder
    }
