"""The data that the report shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class ReportInputs:
    """All data of the report. Every field holds the dataset that is named here.

    Attributes:
        hardware: `measure.hardware`, any nested mapping.
        metrics: `train.metrics`: per model `mape, median_ape, r2, kendall_tau, noise_floor` and others.
        summary: `search.summary`.
        lineage: `lineage`, the versions of the run's inputs and outputs, any nested mapping.
        compute_costs: `measure.compute_costs`.
        comm_costs: `measure.comm_costs`.
        held_out: `train.held_out`: `model, sample_id, rank, measured_ms, predicted_ms, low_ms, high_ms`.
        plans: `search.plans`.
        plan_costs: `search.plan_costs`.
        sharding_tasks: `augment.sharding_tasks`.
    """

    hardware: Mapping[str, Any]
    metrics: Mapping[str, Any]
    summary: Mapping[str, Any]
    lineage: Mapping[str, Any]
    compute_costs: pd.DataFrame
    comm_costs: pd.DataFrame
    held_out: pd.DataFrame
    plans: pd.DataFrame
    plan_costs: pd.DataFrame
    sharding_tasks: pd.DataFrame
