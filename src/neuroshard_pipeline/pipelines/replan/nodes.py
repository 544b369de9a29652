"""Nodes of the replan pipeline."""

from typing import Any

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.pipelines.params import TorchRecExportParams
from neuroshard_pipeline.replanning import Present, Replan, replan
from neuroshard_pipeline.replanning.days import plan_day, replan_day
from neuroshard_pipeline.replanning.other_day import DaysParams
from neuroshard_pipeline.report.replan_tables import VerdictParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json
from neuroshard_pipeline.torchrec_bridge.running import read_plan


class PresentParams(Parameters):
    """The plan that runs, and how far the next one may be from it.

    Attributes:
        path: JSON document of the plan; null if it is made for the ids of the planned day (`DaysParams`).
        gib_per_rank: limits of the GiB that a rank receives or sends; empty for a quarter and a half of what the free
            choice moves.
    """

    path: str | None
    gib_per_rank: tuple[float, ...]


def choose(
    task: ShardingTask, models: CostModels, settings: SharderSettings, params: PresentParams, days: DaysParams
) -> Replan:
    """The choices after the present plan, for the task or for the ids of another day."""
    if params.path is not None:
        present: Present | Plan = read_plan(params.path, task)
        return replan(present, task, models, params.gib_per_rank, settings)
    plan, rows = plan_day(task, days.read("planned", task), models, settings)
    return replan_day(plan, rows, days.read("other", task), models, settings)


def export_best(found: Replan, verdict: VerdictParams, export: TorchRecExportParams) -> dict[str, Any]:
    """The choice of the verdict as a JSON document that `torchrec_bridge.plan_json` can read again."""
    return plan_to_json(found.best(verdict.steps, verdict.least_saving).plan, compute_device=export.compute_device)
