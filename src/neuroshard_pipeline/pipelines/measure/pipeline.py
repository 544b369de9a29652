"""The measure stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.measure import nodes


def create_pipeline() -> Pipeline:
    """Samples → records (resumable) → costs and a description of the hardware."""
    compute = ["compute_samples", "table_pool", "compute_sample_settings", "params:compute", "params:seed"]
    comm = ["params:comm", "params:seed"]
    drawn = ("compute_samples", "compute_sample_settings", "table_pool", "comm_samples", "reduction_samples")
    summaries = ["compute_summary", "comm_summary"]
    params = ["params:compute", "params:comm", "params:recording", "params:topology"]
    stage = [
        Node(nodes.measure_compute, [*compute, "compute_shards_done"], "compute_shards", name="measure_compute"),
        Node(
            nodes.reduce_compute_costs,
            ["compute_shards", *compute, "params:recording"],
            ["compute_costs", "compute_summary"],
            name="reduce_compute_costs",
        ),
        Node(
            nodes.measure_comm,
            ["comm_samples", "reduction_samples", *comm, "comm_shards_done"],
            "comm_shards",
            name="measure_comm",
        ),
        Node(
            nodes.reduce_comm_costs,
            ["comm_shards", "comm_samples", *comm, "params:topology"],
            ["comm_costs", "comm_summary"],
            name="reduce_comm_costs",
        ),
        Node(
            nodes.reduce_reduction_costs,
            ["comm_shards", "reduction_samples", *comm, "params:topology"],
            "reduction_costs",
            name="reduce_reduction_costs",
        ),
        Node(nodes.describe_measurement, [*summaries, *params], "hardware", name="describe_measurement"),
    ]
    inputs = {name: f"augment.{name}" for name in drawn}
    shared = {"params:recording", "params:topology"}  # not in the namespace of the stage
    return Pipeline(stage, namespace="measure", inputs=inputs, parameters=shared, tags="measure")
