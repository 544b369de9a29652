"""The measure stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.measure import nodes


def create_pipeline() -> Pipeline:
    """Samples → raw shards (resumable) → costs; and what they were measured on."""
    stage = [
        Node(
            nodes.measure_compute,
            ["augment.compute_samples", "augment.table_pool", "params:compute", "compute_shards_done"],
            "compute_shards",
            name="measure_compute",
        ),
        Node(
            nodes.reduce_compute_costs,
            ["compute_shards", "augment.compute_samples", "augment.table_pool", "params:compute"],
            "compute_costs",
            name="reduce_compute_costs",
        ),
        Node(
            nodes.measure_comm,
            ["augment.comm_samples", "params:comm", "comm_shards_done"],
            "comm_shards",
            name="measure_comm",
        ),
        Node(
            nodes.reduce_comm_costs,
            ["comm_shards", "augment.comm_samples", "params:comm"],
            "comm_costs",
            name="reduce_comm_costs",
        ),
        Node(
            nodes.describe_measurement,
            ["compute_shards", "comm_shards", "compute_costs", "comm_costs", "params:compute", "params:comm"],
            "hardware",
            name="describe_measurement",
        ),
    ]
    inputs = {"augment.compute_samples", "augment.table_pool", "augment.comm_samples"}
    return Pipeline(stage, namespace="measure", inputs=inputs, tags="measure")
