"""Nodes that measure plans, shared by the pipelines search and benchmark, and the node that states how to measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
from kedro.pipeline import Node

from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.measure_plans import PlanMeasurement
from neuroshard_pipeline.measurement import (
    CommMeasureParams,
    CommOverrides,
    ComputeMeasureParams,
    ComputeOverrides,
    RecordingParams,
    TopologyParams,
)

Records = dict[str, Callable[[], pd.DataFrame]]

#: Parameters of campaigns that are those of the stage measure, by their names inside a namespaced pipeline.
MEASURE_PARAMETERS = {
    "params:measure_compute": "params:measure.compute",
    "params:measure_comm": "params:measure.comm",
    "params:measure_seed": "params:measure.seed",
    "params:recording": "params:recording",
    "params:topology": "params:topology",
}
#: Records of the three campaigns of plans.
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
    """State how plans are measured: as samples are, except for the parameters that this pipeline overrides."""
    params = compute.overridden(compute_overrides), comm.overridden(comm_overrides)
    return Campaigns(*params, seed, recording, topology)


def measure_compute(measurement: PlanMeasurement, done: Records) -> Iterator[dict[str, pd.DataFrame]]:
    """Measure the compute costs that have no record yet; Kedro saves every record as it is yielded."""
    for key, record in measurement.run_compute(done):
        yield {key: record}


def measure_backward(measurement: PlanMeasurement, done: Records) -> Iterator[dict[str, pd.DataFrame]]:
    """Measure the backward collectives that have no record yet."""
    for key, record in measurement.run_backward(done):
        yield {key: record}


def measure_forward(
    measurement: PlanMeasurement, compute: Records, backward: Records, done: Records
) -> Iterator[dict[str, pd.DataFrame]]:
    """Measure the forward collectives that have no record yet."""
    for key, record in measurement.run_forward(compute, backward, done):
        yield {key: record}


def campaigns_node() -> Node:
    """Parameters of the stage measure and this pipeline's overrides → `campaigns`."""
    inputs = [*MEASURE_PARAMETERS, "params:compute", "params:comm"]
    return Node(state_campaigns, inputs, "campaigns", name="state_campaigns")


def measuring_nodes() -> list[Node]:
    """`measurement` → `RECORDS`; each campaign resumes where an earlier run stopped."""
    compute, backward, forward = RECORDS
    return [
        Node(measure_compute, ["measurement", f"{compute}_done"], compute, name="measure_compute"),
        Node(measure_backward, ["measurement", f"{backward}_done"], backward, name="measure_backward"),
        Node(measure_forward, ["measurement", compute, backward, f"{forward}_done"], forward, name="measure_forward"),
    ]
