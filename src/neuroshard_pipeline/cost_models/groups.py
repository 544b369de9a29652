"""Accuracy of the compute cost model on tables, batch sizes and table sets outside the training data.

Random held-out samples combine tables that also occur in training samples; the samples of these groups do not.
"""

import pandas as pd

from neuroshard_pipeline.augment.variation import is_derived
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.compute_training import compute_data, compute_held_out
from neuroshard_pipeline.cost_models.metrics import Metrics, held_out_accuracy, noise_floor_of
from neuroshard_pipeline.tables.samples import TRAINING

#: Groups of the random held-out samples, for comparison: samples drawn as in the paper, and samples of derived tables.
GENERATED_TABLES, DERIVED_TABLES = "generated_tables", "derived_tables"

_COLUMNS = ["group", "sample_id", "measured_ms", "predicted_ms", "low_ms", "high_ms"]


def accuracy_by_group(
    model: ComputeCostModel,
    samples_frame: pd.DataFrame,
    pool_frame: pd.DataFrame,
    settings_frame: pd.DataFrame,
    costs_frame: pd.DataFrame,
    held_out: pd.DataFrame,
) -> tuple[Metrics, pd.DataFrame]:
    """Accuracy of forward + backward on every group.

    Args:
        model: the model to evaluate.
        samples_frame: `augment.compute_samples`.
        pool_frame: `augment.table_pool`.
        settings_frame: `augment.compute_sample_settings`; every purpose except training is a group.
        costs_frame: `measure.compute_costs`.
        held_out: predictions for the random held-out samples, as `train_compute_model` returns them.

    Returns:
        Metrics under `compute_<group>`, with the number of samples `n_test`; and the predictions `group, sample_id,
        measured_ms, predicted_ms, low_ms, high_ms`.
    """
    frames = {}
    for purpose in settings_frame["purpose"].unique():
        data = compute_data(samples_frame, pool_frame, costs_frame, settings_frame, purpose)
        if purpose != TRAINING and data.samples:
            frames[str(purpose)] = compute_held_out(model, data)
    derived = samples_frame.loc[is_derived(samples_frame["table"]), "sample_id"]
    from_derived = held_out["sample_id"].isin(derived)
    frames |= {GENERATED_TABLES: held_out[~from_derived], DERIVED_TABLES: held_out[from_derived]}
    totals = [rows[rows["model"] == "compute"].assign(group=group) for group, rows in frames.items()]
    predictions = pd.concat(totals, ignore_index=True)[_COLUMNS]
    floor = noise_floor_of(model.provenance.get("noise_floor"), "total")
    metrics = {
        f"compute_{group}": {**held_out_accuracy(rows, floor), "n_test": len(rows)}
        for group, rows in predictions.groupby("group", sort=False)
    }
    return metrics, predictions
