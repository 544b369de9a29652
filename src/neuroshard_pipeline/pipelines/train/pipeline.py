"""The train stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.train import nodes


def create_pipeline() -> Pipeline:
    """Samples and costs → the three cost models and how well they hold on held-out samples."""
    stage = [
        Node(
            nodes.train_compute,
            [
                "compute_samples",
                "table_pool",
                "compute_sample_settings",
                "compute_costs",
                "params:compute",
                "hardware",
                "lineage",
            ],
            ["compute_cost_model", "compute_metrics", "compute_held_out"],
            name="train_compute",
        ),
        Node(
            nodes.train_comm,
            ["comm_samples", "comm_costs", "params:comm", "hardware", "lineage"],
            ["comm_cost_model", "comm_metrics", "comm_held_out"],
            name="train_comm",
        ),
        Node(
            nodes.judge_compute,
            [
                "compute_cost_model",
                "compute_samples",
                "table_pool",
                "compute_sample_settings",
                "compute_costs",
                "compute_held_out",
            ],
            ["group_metrics", "judged"],
            name="judge_compute",
        ),
        Node(
            nodes.merge_metrics, ["compute_metrics", "comm_metrics", "group_metrics"], "metrics", name="merge_metrics"
        ),
        Node(nodes.merge_held_out, ["compute_held_out", "comm_held_out"], "held_out", name="merge_held_out"),
    ]
    inputs = {
        "compute_samples": "augment.compute_samples",
        "compute_sample_settings": "augment.compute_sample_settings",
        "table_pool": "augment.table_pool",
        "comm_samples": "augment.comm_samples",
        "compute_costs": "measure.compute_costs",
        "comm_costs": "measure.comm_costs",
        "hardware": "measure.hardware",
        "lineage": "lineage",
    }
    return Pipeline(stage, namespace="train", inputs=inputs, tags="train")
