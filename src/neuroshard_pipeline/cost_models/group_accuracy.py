"""Accuracy of the compute cost model by group of samples; most groups have tables or batch sizes not trained on."""

import pandas as pd

from neuroshard_pipeline.augment.variation import is_derived
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.compute_training import compute_held_out
from neuroshard_pipeline.cost_models.measured import join_costs
from neuroshard_pipeline.cost_models.metrics import Metrics, held_out_accuracy, noise_floor_of
from neuroshard_pipeline.tables.frames import compute_samples_from_frame
from neuroshard_pipeline.tables.samples import TRAINING

#: The two groups of the random held-out samples: samples of generated tables, drawn as in the paper, and
#: samples of tables that were derived from those of the pool (`augment.variation`).
GENERATED_TABLES, DERIVED_TABLES = "generated_tables", "derived_tables"


def accuracy_by_group(
    model: ComputeCostModel,
    samples_frame: pd.DataFrame,
    pool_frame: pd.DataFrame,
    settings_frame: pd.DataFrame,
    costs_frame: pd.DataFrame,
    held_out: pd.DataFrame,
) -> tuple[Metrics, pd.DataFrame]:
    """Accuracy of forward + backward for every group of evaluation samples (`augment.evaluation_samples`).

    For comparison, the random held-out samples form two more groups; their tables also occur in training samples.

    Returns:
        Metrics under `compute_<group>`, with the number of samples `n_test`; and the predictions `group, sample_id,
        measured_ms, predicted_ms, low_ms, high_ms`.
    """
    samples = compute_samples_from_frame(samples_frame, pool_frame, settings_frame)
    by_group = settings_frame[settings_frame["purpose"] != TRAINING].groupby("purpose", sort=False)["sample_id"]
    groups = {str(name): join_costs(samples, costs_frame, "compute", ids) for name, ids in by_group}
    frames = {name: compute_held_out(model, data) for name, data in groups.items() if data.samples}
    from_derived = held_out["sample_id"].isin(samples_frame.loc[is_derived(samples_frame["table"]), "sample_id"])
    frames |= {GENERATED_TABLES: held_out[~from_derived], DERIVED_TABLES: held_out[from_derived]}
    totals = [rows[rows["model"] == "compute"].assign(group=group) for group, rows in frames.items()]
    columns = ["group", "sample_id", "measured_ms", "predicted_ms", "low_ms", "high_ms"]
    predictions = pd.concat(totals, ignore_index=True)[columns]
    floor = noise_floor_of(model.provenance.get("noise_floor"), "total")
    metrics = {
        f"compute_{group}": {**held_out_accuracy(rows, floor), "n_test": len(rows)}
        for group, rows in predictions.groupby("group", sort=False)
    }
    return metrics, predictions
