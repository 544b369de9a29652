"""Nodes of the search stage."""

from typing import Any

from neuroshard_pipeline.pipelines.params import TorchRecExportParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json


def export_torchrec_plans(plans: tuple[Plan, ...], params: TorchRecExportParams) -> dict[str, dict[str, Any]]:
    """TorchRec plans by task id, one per task that the sharder named in the parameters solved."""
    return {
        plan.task.task_id: plan_to_json(plan, compute_device=params.compute_device)
        for plan in plans
        if plan.sharder == params.sharder
    }
