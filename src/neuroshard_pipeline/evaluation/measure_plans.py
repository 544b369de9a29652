"""Measures the costs of plans in three campaigns; the third one needs the costs of the first two.

A campaign measures many samples; a sample is one lookup kernel of a rank, or one collective.

1. Compute: the lookup kernels of every rank, each kernel on its own.
2. Backward all-to-alls and the reductions of both directions: all ranks start together.
3. Forward all-to-alls: each rank enters the first one with a delay, its start skew, which follows from the costs of
   lookups, reductions and backward all-to-alls [Zha2023] §4, and the predicted costs of parts that are not measured.

All plans of a task go through each campaign together, so that the machine's drift affects all sharders alike. If one
plan of a task changes, all plans of this task are measured again (`session_marks`). Within a task, ranks with the same
shards are measured once, and so are all-to-alls with the same sizes and start skews. Between the samples of the plans,
samples of the campaign of the training data can be measured again. These `anchors` show how far the machine drifted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import pandas as pd

from neuroshard_pipeline.evaluation.anchors import NO_ANCHORS, Anchors, among, anchors_frame
from neuroshard_pipeline.evaluation.campaigns import Campaigns, Records
from neuroshard_pipeline.evaluation.plan_samples import (
    PlanSamples,
    RankCosts,
    backward_comm_samples,
    forward_comm_samples,
    measured_comm_ms,
    measured_compute_ms,
    measured_reduction_ms,
    one_way,
    own_costs_ms,
    rank_compute_samples,
    reduction_samples,
    session_marks,
)
from neuroshard_pipeline.evaluation.totals import plan_costs_frame
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.samples import CollectiveSample, CommSample, ComputeSample, ReductionSample

#: A dictionary from the key of one record to this record. A partitioned dataset saves data in this form.
NewRecord = dict[str, pd.DataFrame]


@final
@dataclass(frozen=True)
class PlanMeasurement:
    """The three campaigns that measure some plans; each campaign can be resumed from its records.

    Attributes:
        plans: plans of any tasks and sharders.
        campaigns: how samples are measured.
        anchors: training samples that are measured again between the samples of the plans.
    """

    plans: tuple[Plan, ...]
    campaigns: Campaigns
    anchors: Anchors = NO_ANCHORS

    def run_compute(self, done: Records) -> Iterator[NewRecord]:
        """Measure and yield the records of the first campaign that `done` lacks; the caller saves each of them."""
        for key, record in self.campaigns.compute.run(self._compute_samples(), done):
            yield {key: record}

    def run_backward(self, done: Records) -> Iterator[NewRecord]:
        """Measure and yield the records of the second campaign that `done` lacks."""
        for key, record in self.campaigns.comm.run(self._second, done):
            yield {key: record}

    def run_forward(self, compute: Records, backward: Records, done: Records) -> Iterator[NewRecord]:
        """Measure and yield the records of the third campaign that `done` lacks; the first two must be finished."""
        samples = self._with_anchors(self._forward(compute, backward))
        for key, record in self.campaigns.comm.run(samples, done):
            yield {key: record}

    def costs(self, compute: Records, backward: Records, forward: Records) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Costs from the records of the three finished campaigns.

        Returns:
            `search.plan_costs` and `search.anchors`.
        """
        collectives = self._forward(compute, backward)
        compute_costs = self.campaigns.compute.costs(compute, self._compute_samples())
        backward_costs = self.campaigns.comm.costs(backward, self._with_anchors(self._backward))
        forward_costs = self.campaigns.comm.costs(forward, self._with_anchors(collectives))
        measured_ms = {
            "compute": measured_compute_ms(self._ranks, compute_costs),
            "forward_comm": measured_comm_ms(collectives, forward_costs, "forward"),
            "backward_comm": measured_comm_ms(self._backward, backward_costs, "backward"),
        }
        reduction_ms = self._reduction_ms(backward)
        if reduction_ms is not None:
            measured_ms["reduction"] = reduction_ms
        anchors = anchors_frame(self._anchors, compute_costs, forward_costs, backward_costs)
        return plan_costs_frame(self.plans, measured_ms), anchors

    def hardware(self, compute: Records, backward: Records, forward: Records) -> dict[str, Any]:
        """Hardware and noise floor of the three finished campaigns, from their records."""
        return self.campaigns.hardware(
            (compute, self._compute_samples()),
            (backward, self._second),
            (forward, self._with_anchors(self._forward(compute, backward))),
        )

    @cached_property
    def _marks(self) -> dict[str, str]:
        return session_marks(self.plans)

    @cached_property
    def _anchors(self) -> Anchors:
        return self.anchors.marked("".join(self._marks.values()))

    @cached_property
    def _ranks(self) -> PlanSamples[ComputeSample]:
        return rank_compute_samples(self.plans, self._marks)

    @cached_property
    def _backward(self) -> PlanSamples[CommSample]:
        return one_way(backward_comm_samples(self.plans, self._marks), "backward")

    @cached_property
    def _reductions(self) -> PlanSamples[ReductionSample]:
        return reduction_samples(self.plans, self.campaigns.comm.hosts_of, self._marks)

    @property
    def _second(self) -> list[CollectiveSample]:
        """The samples of the second campaign."""
        of_plans: list[CollectiveSample] = [*self._backward.samples, *self._reductions.samples]
        return among(of_plans, self._anchors.comm)

    def _forward(self, compute: Records, backward: Records) -> PlanSamples[CommSample]:
        compute_costs = self.campaigns.compute.costs(compute, self._ranks.samples)
        backward_costs = self.campaigns.comm.costs(backward, self._backward.samples)
        compute_ms = measured_compute_ms(self._ranks, compute_costs)
        backward_ms = measured_comm_ms(self._backward, backward_costs, "backward")
        own_ms = own_costs_ms(self.plans, compute_ms, self._reduction_ms(backward))
        return one_way(forward_comm_samples(self.plans, own_ms, backward_ms, self._marks), "forward")

    def _reduction_ms(self, backward: Records) -> RankCosts | None:
        """Measured costs of the reductions, None if no plan has any."""
        if not self._reductions.samples:
            return None
        costs = self.campaigns.comm.reduction_costs(backward, self._reductions.samples)
        return measured_reduction_ms(self._reductions, costs)

    def _compute_samples(self) -> list[ComputeSample]:
        return among(self._ranks.samples, self._anchors.compute)

    def _with_anchors(self, collectives: PlanSamples[CommSample]) -> list[CommSample]:
        return among(collectives.samples, self._anchors.comm)
