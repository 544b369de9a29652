"""The search stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.plan_measurement import (
    MEASURE_PARAMETERS,
    RECORDS,
    campaigns_node,
    measuring_nodes,
)
from neuroshard_pipeline.pipelines.search import nodes
from neuroshard_pipeline.pipelines.shared import TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.pipelines.training_data import FIRST_CAMPAIGN, first_campaign_node


def create_pipeline() -> Pipeline:
    """Tasks → plans of every sharder → measured costs, summary, TorchRec plans."""
    return Pipeline(
        [*_solving(), *_measuring(), *_comparing()],
        namespace="search",
        inputs={"sharding_tasks": "augment.sharding_tasks", **TRAINED_MODELS, **FIRST_CAMPAIGN},
        parameters=MEASURE_PARAMETERS,
        tags="search",
    )


def _solving() -> list[Node]:
    return [
        models_node(),
        sharder_settings_node(),
        Node(
            nodes.solve_tasks,
            ["sharding_tasks", "models", "params:contest", "sharder_settings"],
            "solutions",
            name="solve_tasks",
        ),
        Node(nodes.tabulate_plans, "solutions", ["plans", "attempts"], name="tabulate_plans"),
        Node(
            nodes.export_torchrec_plans,
            ["solutions", "params:torchrec"],
            "torchrec_plans",
            name="export_torchrec_plans",
        ),
    ]


def _measuring() -> list[Node]:
    return [
        campaigns_node(),
        first_campaign_node(),
        Node(
            nodes.pick_anchors, ["solutions", "first_campaign", "params:anchors"], "chosen_anchors", name="pick_anchors"
        ),
        Node(
            nodes.plan_measurement,
            ["solutions", "campaigns", "chosen_anchors"],
            "measurement",
            name="plan_measurement",
        ),
        *measuring_nodes(),
        Node(nodes.tabulate_costs, ["measurement", *RECORDS], ["plan_costs", "anchors"], name="tabulate_costs"),
    ]


def _comparing() -> list[Node]:
    return [
        Node(nodes.bound_plans, ["solutions", "models"], "plan_intervals", name="bound_plans"),
        Node(
            nodes.compare_sharders,
            ["plan_costs", "attempts", "plan_intervals", "anchors", "campaigns"],
            "summary",
            name="compare_sharders",
        ),
    ]
