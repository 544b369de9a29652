"""Nodes that measure plans in three campaigns, shared by the pipelines search and benchmark.

A campaign measures many samples: lookups of one rank, or collectives (`evaluation.measure_plans`).
"""

from kedro.pipeline import Node

from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.measure_plans import PlanMeasurement
from neuroshard_pipeline.measurement import (
    CommCampaign,
    CommMeasureParams,
    CommOverrides,
    ComputeCampaign,
    ComputeMeasureParams,
    ComputeOverrides,
    RecordingParams,
    TopologyParams,
)

#: Maps names inside a namespaced pipeline to `recording`, `topology` and the parameters of the measure stage.
MEASURE_PARAMETERS = {
    "params:measure_compute": "params:measure.compute",
    "params:measure_comm": "params:measure.comm",
    "params:measure_seed": "params:measure.seed",
    "params:recording": "params:recording",
    "params:topology": "params:topology",
}
#: Datasets with the records of the three campaigns that measure plans.
RECORDS = ["compute_records", "backward_records", "forward_records"]


def state_campaigns(
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    seed: int,
    recording: RecordingParams,
    topology: TopologyParams,
    compute_overrides: ComputeOverrides,
    comm_overrides: CommOverrides,
) -> Campaigns:
    """Return the campaigns that measure plans, with the measure stage's parameters and the pipeline's overrides."""
    return Campaigns(
        ComputeCampaign(compute.overridden(compute_overrides), seed, recording),
        CommCampaign(comm.overridden(comm_overrides), seed, topology),
    )


def campaigns_node() -> Node:
    """Return the node that builds `campaigns` from the measure stage's parameters and the pipeline's overrides."""
    inputs = [*MEASURE_PARAMETERS, "params:compute", "params:comm"]
    return Node(state_campaigns, inputs, "campaigns", name="state_campaigns")


def measuring_nodes() -> list[Node]:
    """Return the nodes that run `measurement` and save `RECORDS`.

    Kedro saves every record as soon as a node yields it. A restarted run does not measure saved records again.
    """
    compute, backward, forward = RECORDS
    return [
        Node(PlanMeasurement.run_compute, ["measurement", f"{compute}_done"], compute, name="measure_compute"),
        Node(PlanMeasurement.run_backward, ["measurement", f"{backward}_done"], backward, name="measure_backward"),
        Node(
            PlanMeasurement.run_forward,
            ["measurement", compute, backward, f"{forward}_done"],
            forward,
            name="measure_forward",
        ),
    ]
