"""Measures plans and keeps the records in memory, so that an interrupted measurement cannot be resumed."""

from collections.abc import Iterable, Sequence

import pandas as pd

from neuroshard_pipeline.evaluation.anchors import NO_ANCHORS, Anchors
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.measure_plans import NewRecord, PlanMeasurement
from neuroshard_pipeline.search.plan import Plan


def measure_plans(
    plans: Sequence[Plan], campaigns: Campaigns, anchors: Anchors = NO_ANCHORS
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run all three campaigns of `PlanMeasurement` in memory.

    Returns:
        `search.plan_costs`, and `search.anchors`: the costs of samples of an earlier campaign that were measured again
        among the plans, to estimate the machine's drift.
    """
    measurement = PlanMeasurement(tuple(plans), campaigns, anchors)
    compute = collected(measurement.run_compute({}))
    backward = collected(measurement.run_backward({}))
    forward = collected(measurement.run_forward(compute, backward, {}))
    return measurement.costs(compute, backward, forward)


def collected(records: Iterable[NewRecord]) -> NewRecord:
    """All records in one dict."""
    return {key: record for each in records for key, record in each.items()}
