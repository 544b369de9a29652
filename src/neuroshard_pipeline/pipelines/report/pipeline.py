"""The report stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.report import nodes
from neuroshard_pipeline.report import FIGURES

#: In the order of `nodes.gather`'s arguments.
SHOWN = [
    "measure.hardware",
    "train.metrics",
    "search.summary",
    "lineage",
    "measure.compute_costs",
    "measure.comm_costs",
    "train.held_out",
    "search.plans",
    "search.plan_costs",
    "augment.sharding_tasks",
    "augment.table_pool",
    "augment.reuse_comparison",
]


def create_pipeline() -> Pipeline:
    """What all stages have left → figures and one page."""
    stage = [
        Node(nodes.gather, SHOWN, "inputs", name="gather"),
        Node(nodes.draw, "inputs", {name: name for name in FIGURES}, name="draw"),
        Node(nodes.render, "inputs", "search.report", name="render"),
    ]
    return Pipeline(stage, namespace="report", inputs=set(SHOWN), outputs={"search.report"}, tags="report")
