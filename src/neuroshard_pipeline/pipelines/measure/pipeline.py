"""The measure stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.measure import nodes


def create_pipeline() -> Pipeline:
    """Samples → raw shards (resumable) → costs; and what they were measured on."""
    compute = ["compute_samples", "table_pool", "compute_sample_settings", "params:compute", "params:seed"]
    comm = ["comm_samples", "params:comm", "params:seed"]
    stage = [
        Node(nodes.measure_compute, [*compute, "compute_shards_done"], "compute_shards", name="measure_compute"),
        Node(
            nodes.reduce_compute_costs,
            ["compute_shards", *compute, "params:recording"],
            "compute_costs",
            name="reduce_compute_costs",
        ),
        Node(nodes.measure_comm, [*comm, "comm_shards_done"], "comm_shards", name="measure_comm"),
        Node(
            nodes.reduce_comm_costs, ["comm_shards", *comm, "params:topology"], "comm_costs", name="reduce_comm_costs"
        ),
        Node(
            nodes.describe_measurement,
            [
                "compute_shards",
                "comm_shards",
                "compute_samples",
                "table_pool",
                "compute_sample_settings",
                "comm_samples",
                "params:compute",
                "params:comm",
                "params:seed",
                "params:recording",
                "params:topology",
            ],
            "hardware",
            name="describe_measurement",
        ),
    ]
    drawn = ("compute_samples", "compute_sample_settings", "table_pool", "comm_samples")
    inputs = {name: f"augment.{name}" for name in drawn}
    shared = {"params:recording", "params:topology"}  # with augment and search
    return Pipeline(stage, namespace="measure", inputs=inputs, parameters=shared, tags="measure")
