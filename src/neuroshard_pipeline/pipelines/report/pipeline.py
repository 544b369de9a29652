"""The report stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.report import nodes
from neuroshard_pipeline.report import FIGURES

#: The arguments of `nodes.gather`, in order, and the datasets that they are.
SHOWN = {
    "hardware": "measure.hardware",
    "metrics": "train.metrics",
    "summary": "search.summary",
    "lineage": "lineage",
    "compute_costs": "measure.compute_costs",
    "comm_costs": "measure.comm_costs",
    "held_out": "train.held_out",
    "plans": "search.plans",
    "plan_costs": "search.plan_costs",
    "sharding_tasks": "augment.sharding_tasks",
    "table_pool": "augment.table_pool",
    "reuse": "augment.reuse_comparison",
    "compute_samples": "augment.compute_samples",
    "refinement": "refine.newest_summary",
}


def create_pipeline() -> Pipeline:
    """What all stages have left → figures and one page."""
    stage = [
        Node(nodes.gather, list(SHOWN), "inputs", name="gather"),
        Node(nodes.draw, "inputs", {name: name for name in FIGURES}, name="draw"),
        Node(nodes.render, "inputs", "report", name="render"),
    ]
    return Pipeline(stage, namespace="report", inputs=SHOWN, outputs={"report": "search.report"}, tags="report")
