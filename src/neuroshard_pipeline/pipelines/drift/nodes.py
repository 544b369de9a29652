"""Nodes of the drift pipeline."""

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.other_day import DayIds, DaysParams, PopularRows
from neuroshard_pipeline.evaluation.popularity_drift import plan_day
from neuroshard_pipeline.pipelines.params import PlanParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables import ShardingTask


def read_days(task: ShardingTask, params: DaysParams) -> tuple[DayIds, DayIds]:
    """The ids of the day that the plan is made for, and those of the other day."""
    return params.read("planned", task), params.read("other", task)


def search_plan(
    task: ShardingTask, day: DayIds, models: CostModels, settings: SharderSettings, params: PlanParams
) -> tuple[Plan, PopularRows]:
    """The plan for a day and the day's popular rows; the plan may have tiers (blocks of rows by popularity)."""
    return plan_day(task, day, models, params.sharder, settings)
