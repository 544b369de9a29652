"""Nodes of the search stage."""

from __future__ import annotations

from typing import Any

import pandas as pd
from tqdm import tqdm

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.anchors import AnchorParams, Anchors, choose_anchors
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.measure_plans import MeasuredPlans, PlanMeasurement, PlanRecords
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.evaluation.plan_intervals import plan_intervals_frame
from neuroshard_pipeline.evaluation.plan_samples import plans_frame
from neuroshard_pipeline.evaluation.summary import summarise
from neuroshard_pipeline.pipelines.params import ContestParams, TorchRecExportParams
from neuroshard_pipeline.pipelines.plan_measurement import Records
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import Solutions, solve_all
from neuroshard_pipeline.tables import tasks_from_frame
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json


def solve_tasks(
    tasks: pd.DataFrame, models: CostModels, contest: ContestParams, settings: SharderSettings
) -> Solutions:
    """Solve every task with every sharder."""
    return solve_all(
        tasks_from_frame(tasks),
        contest.sharders,
        models,
        settings,
        contest.seed,
        lambda each: tqdm(each, desc="search", unit=" tasks", disable=None),
    )


def tabulate_plans(solutions: Solutions) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tabulate the shards of the plans, and the duration or error of every attempt."""
    return plans_frame(solutions.plans), solutions.attempts


def pick_anchors(solutions: Solutions, first: MeasuredSamples, params: AnchorParams) -> Anchors:
    """Choose samples of the first campaign that are measured again among the plans."""
    return choose_anchors(first, params, {plan.task.world_size for plan in solutions.plans})


def plan_measurement(solutions: Solutions, campaigns: Campaigns, anchors: Anchors) -> PlanMeasurement:
    """Set up the measurement of all plans."""
    return PlanMeasurement(solutions.plans, campaigns, anchors)


def tabulate_costs(
    measurement: PlanMeasurement, compute: Records, backward: Records, forward: Records
) -> MeasuredPlans:
    """Tabulate the costs of every plan by rank, and the first and second costs of the anchors.

    Recorded compute costs are null for ranks that the recording has no equal sample of.
    """
    return measurement.costs(PlanRecords(compute, backward, forward))


def bound_plans(solutions: Solutions, models: CostModels) -> pd.DataFrame:
    """Compute the prediction intervals of all plans."""
    return plan_intervals_frame(solutions.plans, models)


def compare_sharders(
    plan_costs: pd.DataFrame,
    attempts: pd.DataFrame,
    intervals: pd.DataFrame,
    anchors: pd.DataFrame,
    campaigns: Campaigns,
) -> dict[str, Any]:
    """Compare the sharders on the tasks that all of them solved, and state where the costs come from."""
    return summarise(plan_costs, attempts, intervals, anchors) | {"costs_are": campaigns.costs_are}


def export_torchrec_plans(solutions: Solutions, params: TorchRecExportParams) -> dict[str, dict[str, Any]]:
    """Write one TorchRec plan per task, of the sharder that the parameters name."""
    return {
        plan.task.task_id: plan_to_json(plan, params.local_world_size, params.compute_device)
        for plan in solutions.plans
        if plan.sharder == params.sharder
    }
