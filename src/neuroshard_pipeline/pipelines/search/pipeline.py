"""The search stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.evaluation.measure_plans import PlanMeasurement
from neuroshard_pipeline.evaluation.plan_frames import plans_frame
from neuroshard_pipeline.evaluation.plan_intervals import plan_intervals_frame
from neuroshard_pipeline.pipelines.plan_measurement import MEASURE_PARAMETERS, RECORDS, campaigns_node, measuring_nodes
from neuroshard_pipeline.pipelines.search import nodes
from neuroshard_pipeline.pipelines.shared import TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.pipelines.training_data import FIRST_CAMPAIGN, first_campaign_node

SOLVING = [
    models_node(),
    sharder_settings_node(),
    Node(
        nodes.solve_tasks,
        ["sharding_tasks", "models", "params:contest", "sharder_settings", "params:executor"],
        ["solved_plans", "attempts"],
        name="solve_tasks",
    ),
    Node(plans_frame, "solved_plans", "plans", name="tabulate_plans"),
    Node(nodes.export_torchrec_plans, ["solved_plans", "params:torchrec"], "torchrec_plans", name="export_plans"),
]
MEASURING = [
    campaigns_node(),
    first_campaign_node(),
    Node(
        nodes.pick_anchors, ["solved_plans", "first_campaign", "params:anchors"], "chosen_anchors", name="pick_anchors"
    ),
    Node(PlanMeasurement, ["solved_plans", "campaigns", "chosen_anchors"], "measurement", name="set_up_measurement"),
    *measuring_nodes(),
    Node(PlanMeasurement.costs, ["measurement", *RECORDS], ["plan_costs", "anchors"], name="tabulate_costs"),
]
COMPARING = [
    Node(plan_intervals_frame, ["solved_plans", "models"], "plan_intervals", name="predict_intervals"),
    Node(
        nodes.compare_sharders,
        ["plan_costs", "attempts", "plan_intervals", "anchors", "campaigns"],
        "summary",
        name="compare_sharders",
    ),
]


def create_pipeline() -> Pipeline:
    """Tasks → plans of every sharder → measured costs, summary, TorchRec plans."""
    return Pipeline(
        [*SOLVING, *MEASURING, *COMPARING],
        namespace="search",
        inputs={"sharding_tasks": "augment.sharding_tasks", **TRAINED_MODELS, **FIRST_CAMPAIGN},
        parameters=MEASURE_PARAMETERS,
        tags="search",
    )
