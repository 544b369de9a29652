"""Times steps of TorchRec's embedding module under the plans of several sharders, beside their predicted costs."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.shared import SEARCH_PARAMETERS, TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.pipelines.truth import nodes
from neuroshard_pipeline.torchrec_bridge.truth.summary import summarise_steps
from neuroshard_pipeline.torchrec_bridge.truth.tasks import truth_tasks


def create_pipeline() -> Pipeline:
    """Table pool + cost models → tasks → plans → timed steps under each plan → predicted beside measured."""
    stage = [
        models_node(),
        sharder_settings_node(),
        Node(truth_tasks, ["table_pool", "params:sharding_tasks", "params:task"], "tasks", name="draw_tasks"),
        Node(
            nodes.solve_tasks,
            ["tasks", "models", "params:contest", "sharder_settings", "params:steps", "params:task"],
            "solutions",
            name="solve_tasks",
        ),
        Node(nodes.tabulate_plans, "solutions", "plans", name="tabulate_plans"),
        Node(nodes.measure, ["solutions", "params:steps"], "steps", name="measure"),
        Node(summarise_steps, ["steps", "solutions", "params:steps"], "summary", name="summarise"),
        Node(nodes.tabulate_summary, "summary", "table", name="tabulate_summary"),
    ]
    return Pipeline(
        stage,
        namespace="truth",
        inputs={"table_pool": "augment.table_pool"} | TRAINED_MODELS,
        parameters=SEARCH_PARAMETERS | {"params:sharding_tasks": "params:augment.sharding_tasks"},
        tags="truth",
    )
