"""The search stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.evaluation.plan_frames import plans_frame
from neuroshard_pipeline.pipelines.judging import HARDWARE_PARAMETERS, comparing_nodes, measuring_nodes, solving_node
from neuroshard_pipeline.pipelines.search.nodes import export_torchrec_plans
from neuroshard_pipeline.pipelines.shared import TRAINED_MODELS, models_node, sharder_settings_node


def create_pipeline() -> Pipeline:
    """Tasks → plans of every sharder → measured steps, summary, TorchRec plans."""
    stage = [
        models_node(),
        sharder_settings_node(),
        solving_node(),
        Node(plans_frame, "solved_plans", "plans", name="tabulate_plans"),
        Node(export_torchrec_plans, ["solved_plans", "params:torchrec"], "torchrec_plans", name="export_plans"),
        *measuring_nodes("solved_plans"),
        *comparing_nodes("solved_plans"),
    ]
    return Pipeline(
        stage,
        namespace="search",
        inputs={"tasks": "augment.sharding_tasks", **TRAINED_MODELS},
        parameters=HARDWARE_PARAMETERS,
        tags="search",
    )
