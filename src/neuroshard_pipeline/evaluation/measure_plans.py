"""The measured cost of plans in shards that resume: three campaigns, each of which needs the one before.

All plans go through each campaign together, task by task, so that the machine's drift hits every sharder alike; ranks
with the same shards, and plans with the same volumes and skews, are measured once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from neuroshard_pipeline.evaluation.anchors import NO_ANCHORS, Anchors, among, anchors_frame
from neuroshard_pipeline.evaluation.plan_samples import (
    CollectiveSamples,
    backward_comm_samples,
    forward_comm_samples,
    measured_comm_ms,
    measured_compute_ms,
    plan_costs_frame,
    rank_compute_samples,
)
from neuroshard_pipeline.measurement import (
    CommMeasureParams,
    ComputeMeasureParams,
    RecordingParams,
    TopologyParams,
    campaign_date,
    describe_hardware,
    noise_floor,
    reduce_comm,
    reduce_compute,
    run_comm_campaign,
    run_compute_campaign,
)
from neuroshard_pipeline.measurement.costs import Shards
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample


@dataclass(frozen=True)
class PlanMeasurement:
    """How plans are measured.

    Attributes:
        compute: of the ranks' lookups.
        comm: of both collectives.
        seed: of ids and orders; that of the samples that models are trained on.
        recording: for the backend `recorded`.
        topology: for the backend `topology`.
        anchors: samples of an earlier campaign that are measured among the plans.
    """

    compute: ComputeMeasureParams
    comm: CommMeasureParams
    seed: int
    recording: RecordingParams | None = None
    topology: TopologyParams | None = None
    anchors: Anchors = NO_ANCHORS

    def run_compute(self, plans: Sequence[Plan], done: Shards) -> Iterator[tuple[str, pd.DataFrame]]:
        """Measure what is missing of the ranks' compute, (key, raw shard) by (key, raw shard)."""
        return run_compute_campaign(self._compute_samples(plans), self.compute, self.seed, done)

    def run_backward(self, plans: Sequence[Plan], done: Shards) -> Iterator[tuple[str, pd.DataFrame]]:
        """The same for the backward collectives."""
        return run_comm_campaign(self._with_anchors(backward_comm_samples(plans)), self.comm, self.seed, done)

    def run_forward(
        self, plans: Sequence[Plan], compute: Shards, backward: Shards, done: Shards
    ) -> Iterator[tuple[str, pd.DataFrame]]:
        """The same for the forward collectives, whose start skews the two finished campaigns tell."""
        return run_comm_campaign(self._forward(plans, compute, backward), self.comm, self.seed, done)

    def costs(
        self, plans: Sequence[Plan], compute: Shards, backward: Shards, forward: Shards
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """`search.plan_costs` from three finished campaigns, and what the anchors cost then and now."""
        collectives = iter((backward, forward))  # in the order in which they are asked for
        return measure_plans_and_anchors(
            plans,
            self.anchors,
            lambda samples: self._reduce_compute(compute, samples),
            lambda samples: self._reduce_comm(next(collectives), samples),
        )

    def hardware(self, plans: Sequence[Plan], compute: Shards, backward: Shards, forward: Shards) -> dict[str, Any]:
        """What was measured on, and how far two independent measurements of these campaigns lie apart."""
        gradients, outputs = self._with_anchors(backward_comm_samples(plans)), self._forward(plans, compute, backward)
        floors = {
            "backward": noise_floor(backward, gradients, self.comm, self.seed)["backward"],
            "forward": noise_floor(forward, outputs, self.comm, self.seed)["forward"],
        }
        lookups = noise_floor(compute, self._compute_samples(plans), self.compute, self.seed, self.recording)
        dates = [
            campaign_date(compute, self._compute_samples(plans), self.compute, self.seed, self.recording),
            campaign_date(backward, gradients, self.comm, self.seed),
            campaign_date(forward, outputs, self.comm, self.seed),
        ]
        date = max((date for date in dates if date), default=None)
        return describe_hardware(self.compute, self.comm, lookups, floors, date, self.recording, self.topology)

    def _compute_samples(self, plans: Sequence[Plan]) -> list[ComputeSample]:
        return among(rank_compute_samples(plans).samples, self.anchors.compute)

    def _with_anchors(self, collectives: CollectiveSamples) -> list[CommSample]:
        return among(collectives.samples, self.anchors.comm)

    def _forward(self, plans: Sequence[Plan], compute: Shards, backward: Shards) -> list[CommSample]:
        """What to run forward: its start skews are the compute and backward communication that it waits for."""
        ranks, gradients = rank_compute_samples(plans), backward_comm_samples(plans)
        compute_ms = measured_compute_ms(ranks, self._reduce_compute(compute, ranks.samples))
        costs = self._reduce_comm(backward, gradients.samples)
        backward_ms = measured_comm_ms(plans, gradients, costs, "backward")
        return self._with_anchors(forward_comm_samples(plans, compute_ms, backward_ms))

    def _reduce_compute(self, shards: Shards, samples: Sequence[ComputeSample]) -> pd.DataFrame:
        return reduce_compute(shards, samples, self.compute, self.seed, self.recording)

    def _reduce_comm(self, shards: Shards, samples: Sequence[CommSample]) -> pd.DataFrame:
        return reduce_comm(shards, samples, self.comm, self.seed, self.topology)


def measure_plan_costs(
    plans: Sequence[Plan],
    measure_compute: Callable[[Sequence[ComputeSample]], pd.DataFrame],
    measure_comm: Callable[[Sequence[CommSample]], pd.DataFrame],
) -> pd.DataFrame:
    """Measure plans as [Zha2023] §4 does: compute rank by rank, then the collectives with the skew that it causes.

    All plans go through each campaign together, so that the machine's drift hits every sharder alike.

    Args:
        plans: of any tasks and sharders.
        measure_compute: samples → `sample_id, forward_ms, backward_ms, error`.
        measure_comm: samples → `sample_id, rank, forward_ms, backward_ms, error`.

    Returns:
        `search.plan_costs`.
    """
    return measure_plans_and_anchors(plans, NO_ANCHORS, measure_compute, measure_comm)[0]


def measure_plans_and_anchors(
    plans: Sequence[Plan],
    anchors: Anchors,
    measure_compute: Callable[[Sequence[ComputeSample]], pd.DataFrame],
    measure_comm: Callable[[Sequence[CommSample]], pd.DataFrame],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`measure_plan_costs` with samples of the training campaign among the plans' in the same three campaigns.

    Returns:
        `search.plan_costs`, and what the anchors cost then and now (`anchors_frame`).
    """
    ranks = rank_compute_samples(plans)
    compute_costs = measure_compute(among(ranks.samples, anchors.compute))
    compute_ms = measured_compute_ms(ranks, compute_costs)
    gradients = backward_comm_samples(plans)
    backward_costs = measure_comm(among(gradients.samples, anchors.comm))
    backward_ms = measured_comm_ms(plans, gradients, backward_costs, "backward")
    outputs = forward_comm_samples(plans, compute_ms, backward_ms)
    forward_costs = measure_comm(among(outputs.samples, anchors.comm))
    forward_ms = measured_comm_ms(plans, outputs, forward_costs, "forward")
    again = anchors_frame(anchors, compute_costs, forward_costs, backward_costs)
    return plan_costs_frame(plans, compute_ms, forward_ms, backward_ms), again
