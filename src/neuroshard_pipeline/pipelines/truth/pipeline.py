"""The evaluation of the stage search with tasks and sharders of its own, and with variants of one sharder's plans."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.augment.task_draws import sharding_tasks
from neuroshard_pipeline.evaluation.plan_frames import plans_frame
from neuroshard_pipeline.pipelines.judging import HARDWARE_PARAMETERS, comparing_nodes, measuring_nodes, solving_node
from neuroshard_pipeline.pipelines.shared import SEARCH_PARAMETERS, TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.pipelines.truth import nodes


def create_pipeline() -> Pipeline:
    """Table pool + cost models → tasks → plans and variants → measured steps → summary and table."""
    variants = ["solved_plans", "attempts", "models", "params:variants"]
    stage = [
        models_node(),
        sharder_settings_node(),
        Node(sharding_tasks, ["table_pool", "params:sharding_tasks"], "tasks", name="draw_tasks"),
        solving_node(),
        Node(nodes.add_variants, variants, ["all_plans", "all_attempts"], name="add_variants"),
        Node(plans_frame, "all_plans", "plans", name="tabulate_plans"),
        *measuring_nodes("all_plans"),
        *comparing_nodes("all_plans", "all_attempts"),
        Node(nodes.tabulate_summary, ["summary", "plan_costs"], "table", name="tabulate_summary"),
    ]
    return Pipeline(
        stage,
        namespace="truth",
        inputs={"table_pool": "augment.table_pool"} | TRAINED_MODELS,
        parameters=SEARCH_PARAMETERS | HARDWARE_PARAMETERS,
        tags="truth",
    )
