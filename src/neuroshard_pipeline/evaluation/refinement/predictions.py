"""Predictions beside measurements, and how far they lie apart."""

from __future__ import annotations

from typing import Any

import pandas as pd

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.cost_models.metrics import accuracy
from neuroshard_pipeline.cost_models.training import compute_data, compute_held_out
from neuroshard_pipeline.cost_models.training_comm import comm_data, comm_held_out
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.evaluation.refinement.training_set import TrainingSet

#: What of `metrics.accuracy` is told; R² says little on shard sets that a search made alike.
_TOLD = ("mape", "median_ape", "bias", "kendall_tau")


def predictions(models: CostModels, measured: TrainingSet) -> pd.DataFrame:
    """`model, sample_id, rank, measured_ms, predicted_ms`, as `train.held_out`, of every usable sample.

    Raises:
        MeasurementError: there is none; names the first reason.
    """
    compute = compute_data(
        measured.compute_samples, measured.table_pool, measured.compute_costs, measured.compute_settings
    )
    comm = comm_data(measured.comm_samples, measured.comm_costs)
    parts = [compute_held_out(models.compute, compute)] if compute.samples else []
    parts += [comm_held_out(models.comm, comm)] if comm.samples else []
    if not parts:
        raise MeasurementError(
            f"none of the samples that the plans contain could be measured: {_first_error(measured)}"
        )
    return pd.concat(parts, ignore_index=True)


def _first_error(measured: TrainingSet) -> str:
    errors = pd.concat([measured.compute_costs["error"], measured.comm_costs["error"]]).dropna()
    return str(errors.iloc[0]) if len(errors) else "the plans contain none that is new; raise tasks_per_world_size"


def prediction_errors(predicted: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """`mape, median_ape, bias, kendall_tau, count` under every name in the column `model`."""
    errors = {}
    for name, rows in predicted.groupby("model", sort=False):
        figures = accuracy(rows["measured_ms"], rows["predicted_ms"], None)
        errors[str(name)] = {**{key: figures[key] for key in _TOLD}, "count": len(rows)}
    return errors
