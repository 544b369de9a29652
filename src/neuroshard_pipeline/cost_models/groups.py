"""How the compute cost model does on groups of samples: on tables, batches and table sets that it never saw.

Random held-out samples are combinations of tables that training samples have, too; these groups are not.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from neuroshard_pipeline.augment.variation import is_derived
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.metrics import accuracy
from neuroshard_pipeline.cost_models.training import (
    Metrics,
    compute_data,
    compute_held_out,
    interval_figures,
    noise_floor_of,
)
from neuroshard_pipeline.tables.samples import TRAINING

#: Groups of the random held-out samples, for comparison: those drawn as the paper does, and those of derived tables.
GENERATED_TABLES, DERIVED_TABLES = "generated_tables", "derived_tables"

_COLUMNS = ["group", "sample_id", "measured_ms", "predicted_ms", "low_ms", "high_ms"]


def judge_compute_model(
    model: ComputeCostModel,
    samples_frame: pd.DataFrame,
    pool_frame: pd.DataFrame,
    settings_frame: pd.DataFrame,
    costs_frame: pd.DataFrame,
    held_out: pd.DataFrame,
) -> tuple[Metrics, pd.DataFrame]:
    """Accuracy of forward + backward on every group.

    Args:
        model: what is judged.
        samples_frame: `augment.compute_samples`.
        pool_frame: `augment.table_pool`.
        settings_frame: `augment.compute_sample_settings`; every purpose but training is a group.
        costs_frame: `measure.compute_costs`.
        held_out: predictions for the random held-out samples, as `training.train_compute_model` returns them.

    Returns:
        Metrics under `compute_<group>`, with the number of samples `n_test`; and the predictions `group, sample_id,
        measured_ms, predicted_ms, low_ms, high_ms`.
    """
    frames = {
        str(purpose): compute_held_out(model, data)
        for purpose in settings_frame["purpose"].unique()
        if purpose != TRAINING
        for data in [compute_data(samples_frame, pool_frame, costs_frame, settings_frame, purpose)]
        if data.samples
    }
    derived = samples_frame.loc[is_derived(samples_frame["table"]), "sample_id"]
    from_derived = held_out["sample_id"].isin(derived)
    frames |= {GENERATED_TABLES: held_out[~from_derived], DERIVED_TABLES: held_out[from_derived]}
    judged = pd.concat(
        [rows[rows["model"] == "compute"].assign(group=group) for group, rows in frames.items()], ignore_index=True
    )[_COLUMNS]
    floor = noise_floor_of(model.provenance.get("noise_floor"), "total")
    return {f"compute_{group}": _figures(rows, floor) for group, rows in judged.groupby("group", sort=False)}, judged


def _figures(rows: pd.DataFrame, floor: float | None) -> dict[str, Any]:
    return {**accuracy(rows["measured_ms"], rows["predicted_ms"], floor), **interval_figures(rows), "n_test": len(rows)}
