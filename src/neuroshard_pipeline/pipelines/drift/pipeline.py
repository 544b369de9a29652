"""Plans tiers (blocks of rows by popularity) for a day's ids; says whether cutting them again pays on another day."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.evaluation.popularity_drift import evaluate_drift
from neuroshard_pipeline.pipelines.drift import nodes
from neuroshard_pipeline.pipelines.plan.nodes import read_task
from neuroshard_pipeline.pipelines.shared import SEARCH_PARAMETERS, TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.report.drift_tables import drift_text


def create_pipeline() -> Pipeline:
    """Table file + ids of two days → plan with tiers, popular rows → shares of ids per tier, costs and a verdict."""
    stage = [
        models_node(),
        sharder_settings_node(),
        Node(read_task, "params:task", "sharding_task", name="read_task"),
        Node(nodes.read_days, ["sharding_task", "params:days"], ["planned_ids", "other_ids"], name="read_days"),
        Node(
            nodes.search_plan,
            ["sharding_task", "planned_ids", "models", "sharder_settings", "params:task"],
            ["plan", "popular_rows"],
            name="search_plan",
        ),
        Node(
            evaluate_drift,
            ["plan", "popular_rows", "other_ids", "models", "params:recut", "sharder_settings"],
            "drift",
            name="evaluate_drift",
        ),
        Node(drift_text, "drift", "table", name="tabulate_drift"),
    ]
    return Pipeline(
        stage,
        namespace="drift",
        inputs=TRAINED_MODELS,
        parameters=SEARCH_PARAMETERS | {"params:task": "params:plan.task"},
        tags="drift",
    )
