"""Nodes of the search stage."""

from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.anchors import AnchorParams, Anchors, choose_anchors
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.evaluation.solving_in_workers import TaskSolver, solve_in_workers
from neuroshard_pipeline.evaluation.summary import summarise
from neuroshard_pipeline.measurement import PRELOAD
from neuroshard_pipeline.pipelines.params import ContestParams, TorchRecExportParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables import tasks_from_frame
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json
from neuroshard_pipeline.workers import WorkerParams, map_items

Plans = tuple[Plan, ...]


def solve_tasks(
    tasks: pd.DataFrame, models: CostModels, contest: ContestParams, settings: SharderSettings, executor: WorkerParams
) -> tuple[Plans, pd.DataFrame]:
    """Solve every task with every sharder; return the plans, and the duration and any error of every attempt."""
    solver = TaskSolver(tuple(contest.sharders), models, settings, contest.seed)
    asked = tasks_from_frame(tasks)
    with tqdm(total=len(asked), desc="search", unit=" tasks", disable=None) as bar:
        solutions = solve_in_workers(
            solver, asked, lambda function, left: map_items(function, left, executor, PRELOAD), bar.update
        )
    return solutions.plans, solutions.attempts


def pick_anchors(plans: Plans, first: MeasuredSamples, params: AnchorParams) -> Anchors:
    """Choose training samples that are measured again together with the plans, to estimate the machine's drift."""
    return choose_anchors(first, params, {plan.task.world_size for plan in plans})


def compare_sharders(
    plan_costs: pd.DataFrame,
    attempts: pd.DataFrame,
    intervals: pd.DataFrame,
    anchors: pd.DataFrame,
    campaigns: Campaigns,
) -> dict[str, Any]:
    """Compare the sharders on the tasks that all of them solved, and state where the costs come from."""
    return summarise(plan_costs, attempts, intervals, anchors) | {"costs_are": campaigns.costs_are}


def export_torchrec_plans(plans: Plans, params: TorchRecExportParams) -> dict[str, dict[str, Any]]:
    """TorchRec plans by task id, one per task that the sharder named in the parameters solved."""
    return {
        plan.task.task_id: plan_to_json(plan, compute_device=params.compute_device)
        for plan in plans
        if plan.sharder == params.sharder
    }
