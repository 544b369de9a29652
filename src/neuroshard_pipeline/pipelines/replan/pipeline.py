"""Plans from the plan that runs, for the tables, ranks, memory and ids of today."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.plan.nodes import read_task
from neuroshard_pipeline.pipelines.replan import nodes
from neuroshard_pipeline.pipelines.shared import SEARCH_PARAMETERS, TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.report.plan_page import render_replan
from neuroshard_pipeline.report.replan_tables import replan_text


def create_pipeline() -> Pipeline:
    """Table file + present plan (or ids of two days) → choices with steps and moves, and the best as TorchRec plan."""
    stage = [
        models_node(),
        sharder_settings_node(),
        Node(read_task, "params:task", "sharding_task", name="read_task"),
        Node(
            nodes.choose,
            ["sharding_task", "models", "sharder_settings", "params:present", "params:days"],
            "choices",
            name="choose",
        ),
        Node(replan_text, ["choices", "params:verdict"], "table", name="tabulate_choices"),
        Node(render_replan, ["choices", "params:verdict"], "page", name="render_replan"),
        Node(nodes.export_best, ["choices", "params:verdict", "params:torchrec"], "torchrec_plan", name="export_best"),
    ]
    return Pipeline(
        stage,
        namespace="replan",
        inputs=TRAINED_MODELS,
        parameters=SEARCH_PARAMETERS | {"params:task": "params:plan.task", "params:torchrec": "params:search.torchrec"},
        tags="replan",
    )
