"""The measure stage as a Kedro pipeline."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.measurement import describe_hardware
from neuroshard_pipeline.pipelines.measure import nodes


def create_pipeline() -> Pipeline:
    """Samples → records (resumable) → costs and a description of the hardware."""
    drawn = ("compute_samples", "compute_sample_settings", "table_pool", "comm_samples", "reduction_samples")
    return Pipeline(
        [*_lookups(), *_collectives(), _steps(), _hardware()],
        namespace="measure",
        inputs={name: f"augment.{name}" for name in drawn},
        parameters={"params:recording", "params:topology"},  # not in the namespace of the stage
        tags="measure",
    )


def _lookups() -> list[Node]:
    compute = ["compute_samples", "table_pool", "compute_sample_settings", "params:compute", "params:seed"]
    return [
        Node(nodes.measure_compute, [*compute, "compute_shards_done"], "compute_shards", name="measure_compute"),
        Node(
            nodes.reduce_compute_costs,
            ["compute_shards", *compute, "params:recording"],
            ["compute_costs", "compute_summary"],
            name="reduce_compute_costs",
        ),
    ]


def _collectives() -> list[Node]:
    protocol = ["params:comm", "params:seed"]
    return [
        Node(
            nodes.measure_comm,
            ["comm_samples", "reduction_samples", *protocol, "comm_shards_done"],
            "comm_shards",
            name="measure_comm",
        ),
        Node(
            nodes.reduce_comm_costs,
            ["comm_shards", "comm_samples", *protocol, "params:topology"],
            ["comm_costs", "comm_summary"],
            name="reduce_comm_costs",
        ),
        Node(
            nodes.reduce_reduction_costs,
            ["comm_shards", "reduction_samples", *protocol, "params:topology"],
            "reduction_costs",
            name="reduce_reduction_costs",
        ),
    ]


def _steps() -> Node:
    params = ["params:step_plans", "params:steps", "params:compute", "params:comm", "params:topology"]
    outputs = ["step_tasks", "step_plans", "step_costs"]
    return Node(nodes.measure_steps, ["table_pool", *params], outputs, name="measure_steps")


def _hardware() -> Node:
    campaigns = ["params:compute", "params:comm", "compute_summary", "comm_summary"]
    inputs = [*campaigns, "params:recording", "params:topology"]
    return Node(describe_hardware, inputs, "hardware", name="describe_measurement")
