"""Measures the costs of plans in three campaigns, each of which needs the costs of those before.

1. Compute: the shards of every rank, one rank at a time.
2. Backward collectives: all ranks start together.
3. Forward collectives: each rank enters later by its start skew, which follows from the first two campaigns
   [Zha2023] §4.

All plans go through each campaign together, so that the machine's drift affects all sharders alike. Ranks with the same
shards, and plans with the same volumes and start skews, are measured once. Samples of the training campaign can be
measured among those of the plans (`anchors`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import pandas as pd

from neuroshard_pipeline.evaluation.anchors import NO_ANCHORS, Anchors, among, anchors_frame
from neuroshard_pipeline.evaluation.campaigns import Campaigns, Records
from neuroshard_pipeline.evaluation.plan_samples import (
    CollectiveSamples,
    RankSamples,
    backward_comm_samples,
    forward_comm_samples,
    measured_comm_ms,
    measured_compute_ms,
    rank_compute_samples,
)
from neuroshard_pipeline.evaluation.totals import plan_costs_frame
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample


class MeasuredPlans(NamedTuple):
    """Costs of plans, and of the anchors that were measured among them.

    Attributes:
        plan_costs: `search.plan_costs`.
        anchors: `search.anchors`.
    """

    plan_costs: pd.DataFrame
    anchors: pd.DataFrame


class PlanRecords(NamedTuple):
    """Raw records of the three campaigns.

    Attributes:
        compute: records of the ranks' lookups.
        backward: records of the backward collectives.
        forward: records of the forward collectives.
    """

    compute: Records
    backward: Records
    forward: Records


@final
@dataclass(frozen=True)
class PlanMeasurement:
    """The three campaigns of some plans; each can be resumed from its records.

    Attributes:
        plans: plans of any tasks and sharders.
        campaigns: how samples are measured.
        anchors: samples of an earlier campaign that are measured among those of the plans.
    """

    plans: tuple[Plan, ...]
    campaigns: Campaigns
    anchors: Anchors = NO_ANCHORS

    def run_compute(self, done: Records) -> Iterator[tuple[str, pd.DataFrame]]:
        """Measure what is missing of the first campaign, and yield (key, record)."""
        return self.campaigns.run_compute(self._compute_samples(), done)

    def run_backward(self, done: Records) -> Iterator[tuple[str, pd.DataFrame]]:
        """Measure what is missing of the second campaign, and yield (key, record)."""
        return self.campaigns.run_comm(self._with_anchors(self._backward), done)

    def run_forward(self, compute: Records, backward: Records, done: Records) -> Iterator[tuple[str, pd.DataFrame]]:
        """Measure what is missing of the third campaign, and yield (key, record); the first two are finished."""
        return self.campaigns.run_comm(self._with_anchors(self._forward(compute, backward)), done)

    def costs(self, records: PlanRecords) -> MeasuredPlans:
        """Costs of the plans and anchors from three finished campaigns."""
        forward = self._forward(records.compute, records.backward)
        compute_costs = self.campaigns.compute_costs(records.compute, self._compute_samples())
        backward_costs = self.campaigns.comm_costs(records.backward, self._with_anchors(self._backward))
        forward_costs = self.campaigns.comm_costs(records.forward, self._with_anchors(forward))
        measured_ms = (
            measured_compute_ms(self._ranks, compute_costs),
            measured_comm_ms(self.plans, forward, forward_costs, "forward"),
            measured_comm_ms(self.plans, self._backward, backward_costs, "backward"),
        )
        anchors = anchors_frame(self.anchors, compute_costs, forward_costs, backward_costs)
        return MeasuredPlans(plan_costs_frame(self.plans, measured_ms), anchors)

    def hardware(self, records: PlanRecords) -> dict[str, Any]:
        """Hardware and noise floor of three finished campaigns."""
        forward = self._with_anchors(self._forward(records.compute, records.backward))
        return self.campaigns.hardware(
            (records.compute, self._compute_samples()),
            (records.backward, self._with_anchors(self._backward)),
            (records.forward, forward),
        )

    @cached_property
    def _ranks(self) -> RankSamples:
        return rank_compute_samples(self.plans)

    @cached_property
    def _backward(self) -> CollectiveSamples:
        return backward_comm_samples(self.plans)

    def _forward(self, compute: Records, backward: Records) -> CollectiveSamples:
        compute_costs = self.campaigns.compute_costs(compute, self._ranks.samples)
        backward_costs = self.campaigns.comm_costs(backward, self._backward.samples)
        compute_ms = measured_compute_ms(self._ranks, compute_costs)
        backward_ms = measured_comm_ms(self.plans, self._backward, backward_costs, "backward")
        return forward_comm_samples(self.plans, compute_ms, backward_ms)

    def _compute_samples(self) -> list[ComputeSample]:
        return among(self._ranks.samples, self.anchors.compute)

    def _with_anchors(self, collectives: CollectiveSamples) -> list[CommSample]:
        return among(collectives.samples, self.anchors.comm)


def measure_plans(plans: Sequence[Plan], campaigns: Campaigns, anchors: Anchors = NO_ANCHORS) -> MeasuredPlans:
    """Run all three campaigns in memory; see `PlanMeasurement`."""
    measurement = PlanMeasurement(tuple(plans), campaigns, anchors)
    compute = dict(measurement.run_compute({}))
    backward = dict(measurement.run_backward({}))
    forward = dict(measurement.run_forward(compute, backward, {}))
    return measurement.costs(PlanRecords(compute, backward, forward))
