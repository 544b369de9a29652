"""The nodes that measure plans, which the search stage and the benchmark share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
from kedro.pipeline import Node

from neuroshard_pipeline.evaluation.measure_plans import PlanMeasurement
from neuroshard_pipeline.measurement import CommMeasureParams, ComputeMeasureParams, RecordingParams, TopologyParams
from neuroshard_pipeline.search.plan import Plan

Shards = dict[str, Callable[[], pd.DataFrame]]
Plans = tuple[Plan, ...]

#: Parameters of a campaign; the seed is that of the samples that models are trained on, so that ids are the same.
PROTOCOL = [f"params:{name}" for name in ("compute", "comm", "measure_seed", "recording", "topology")]
#: The same outside of the namespace.
SHARED = {
    "params:measure_seed": "params:measure.seed",
    "params:recording": "params:recording",
    "params:topology": "params:topology",
}
#: What three finished campaigns leave.
CAMPAIGNS = ["compute_shards", "backward_shards", "forward_shards"]


def state_measurement(
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    seed: int,
    recording: RecordingParams,
    topology: TopologyParams,
) -> PlanMeasurement:
    """How plans are measured."""
    return PlanMeasurement(compute, comm, seed, recording, topology)


def measure_compute(plans: Plans, measurement: PlanMeasurement, done: Shards) -> Iterator[dict[str, pd.DataFrame]]:
    """Run what is missing of the ranks' lookups; Kedro saves every shard as it is yielded."""
    for key, shard in measurement.run_compute(plans, done):
        yield {key: shard}


def measure_backward(plans: Plans, measurement: PlanMeasurement, done: Shards) -> Iterator[dict[str, pd.DataFrame]]:
    """Run what is missing of the backward collectives."""
    for key, shard in measurement.run_backward(plans, done):
        yield {key: shard}


def measure_forward(
    plans: Plans, measurement: PlanMeasurement, compute: Shards, backward: Shards, done: Shards
) -> Iterator[dict[str, pd.DataFrame]]:
    """Run what is missing of the forward collectives."""
    for key, shard in measurement.run_forward(plans, compute, backward, done):
        yield {key: shard}


def measuring_nodes() -> list[Node]:
    """`measured_plans` and `measurement` → `CAMPAIGNS`, each going on where an earlier run stopped."""
    campaign = ["measured_plans", "measurement"]
    return [
        Node(measure_compute, [*campaign, "compute_shards_done"], "compute_shards", name="measure_compute"),
        Node(measure_backward, [*campaign, "backward_shards_done"], "backward_shards", name="measure_backward"),
        Node(
            measure_forward,
            [*campaign, "compute_shards", "backward_shards", "forward_shards_done"],
            "forward_shards",
            name="measure_forward",
        ),
    ]
