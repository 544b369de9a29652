"""The train stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.train import nodes


def create_pipeline() -> Pipeline:
    """Samples and costs → the three cost models and how well they hold on held-out samples."""
    stage = [
        Node(
            nodes.train_compute,
            [
                "augment.compute_samples",
                "augment.table_pool",
                "measure.compute_costs",
                "params:compute",
                "measure.hardware",
                "lineage",
            ],
            ["compute_cost_model", "compute_metrics", "compute_held_out"],
            name="train_compute",
        ),
        Node(
            nodes.train_comm,
            ["augment.comm_samples", "measure.comm_costs", "params:comm", "measure.hardware", "lineage"],
            ["comm_cost_model", "comm_metrics", "comm_held_out"],
            name="train_comm",
        ),
        Node(nodes.merge_metrics, ["compute_metrics", "comm_metrics"], "metrics", name="merge_metrics"),
        Node(nodes.merge_held_out, ["compute_held_out", "comm_held_out"], "held_out", name="merge_held_out"),
    ]
    inputs = {
        "augment.compute_samples",
        "augment.table_pool",
        "augment.comm_samples",
        "measure.compute_costs",
        "measure.comm_costs",
        "measure.hardware",
        "lineage",
    }
    return Pipeline(stage, namespace="train", inputs=inputs, tags="train")
