"""The search stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.plan_measurement import (
    CAMPAIGNS,
    PROTOCOL,
    SHARED,
    measuring_nodes,
    state_measurement,
)
from neuroshard_pipeline.pipelines.search import nodes

MODELS = ["compute_cost_model", "comm_cost_model"]

#: The campaign that anchors are picked from, in the order of `nodes.pick_anchors`.
CAMPAIGN = {
    "compute_samples": "augment.compute_samples",
    "table_pool": "augment.table_pool",
    "compute_sample_settings": "augment.compute_sample_settings",
    "compute_costs": "measure.compute_costs",
    "comm_samples": "augment.comm_samples",
    "comm_costs": "measure.comm_costs",
}


def create_pipeline() -> Pipeline:
    """Tasks → plans of every sharder → measured costs, summary, TorchRec plans."""
    stage = [
        Node(
            nodes.solve_tasks,
            [
                "sharding_tasks",
                *MODELS,
                "params:contest",
                "params:neuroshard",
                "params:neuroshard_plus",
                "params:memory",
                "params:rivals",
            ],
            "solutions",
            name="solve_tasks",
        ),
        Node(nodes.tabulate_plans, "solutions", ["plans", "attempts"], name="tabulate_plans"),
        Node(nodes.pick_anchors, ["solutions", *CAMPAIGN, "params:anchors"], "chosen_anchors", name="pick_anchors"),
        Node(nodes.bound_plans, ["solutions", *MODELS], "plan_intervals", name="bound_plans"),
        Node(nodes.take_plans, "solutions", "measured_plans", name="take_plans"),
        Node(state_measurement, PROTOCOL, "protocol", name="state_measurement"),
        Node(nodes.with_anchors, ["protocol", "chosen_anchors"], "measurement", name="with_anchors"),
        *measuring_nodes(),
        Node(
            nodes.tabulate_costs,
            ["measured_plans", "measurement", *CAMPAIGNS],
            ["plan_costs", "anchors"],
            name="tabulate_costs",
        ),
        Node(
            nodes.compare_sharders,
            ["plan_costs", "attempts", "plan_intervals", "anchors", "params:compute", "params:comm"],
            "summary",
            name="compare_sharders",
        ),
        Node(
            nodes.export_torchrec_plans,
            ["solutions", "params:torchrec"],
            "torchrec_plans",
            name="export_torchrec_plans",
        ),
    ]
    return Pipeline(
        stage,
        namespace="search",
        inputs={"sharding_tasks": "augment.sharding_tasks", **{name: f"train.{name}" for name in MODELS}, **CAMPAIGN},
        parameters=SHARED,
        tags="search",
    )
