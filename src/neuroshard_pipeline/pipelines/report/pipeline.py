"""The report stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.report import FIGURES, ReportInputs, render_report

#: The fields of `ReportInputs` and the datasets that they hold.
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
}


def create_pipeline() -> Pipeline:
    """Results of all stages → figures and one HTML page."""
    stage = [
        Node(ReportInputs, SHOWN, "inputs", name="gather"),
        Node(render_report, "inputs", {name: name for name in (*FIGURES, "report")}, name="render"),
    ]
    outputs = {"report": "search.report"}
    return Pipeline(stage, namespace="report", inputs=set(SHOWN.values()), outputs=outputs, tags="report")
