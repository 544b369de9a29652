"""The measured cost of plans: three campaigns, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.evaluation import (
    backward_comm_samples,
    forward_comm_samples,
    measured_comm_ms,
    measured_compute_ms,
    plan_costs_frame,
    rank_compute_samples,
)
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample


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
    ranks = rank_compute_samples(plans)
    compute_ms = measured_compute_ms(ranks, measure_compute(ranks.samples))
    gradients = backward_comm_samples(plans)
    backward_ms = measured_comm_ms(plans, gradients, measure_comm(gradients.samples), "backward")
    outputs = forward_comm_samples(plans, compute_ms, backward_ms)
    forward_ms = measured_comm_ms(plans, outputs, measure_comm(outputs.samples), "forward")
    return plan_costs_frame(plans, compute_ms, forward_ms, backward_ms)
