"""Training of the compute cost model: from frames of samples and costs to a model and its held-out accuracy.

Shapes: N samples, S shards of all samples, P work terms, F context features, E members, D = 2 directions, C channels.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.cost_models import measured
from neuroshard_pipeline.cost_models.calibration import Predictions, calibrate
from neuroshard_pipeline.cost_models.compute import ComputeCostModel, embed, price
from neuroshard_pipeline.cost_models.compute_features import segment_sums, shard_features
from neuroshard_pipeline.cost_models.fitting import FeatureRows, Fit, Loss, fit, fitted, relative_loss
from neuroshard_pipeline.cost_models.initial_weights import compute_weights
from neuroshard_pipeline.cost_models.metrics import Metrics, metrics_of
from neuroshard_pipeline.cost_models.network import Network
from neuroshard_pipeline.cost_models.params import ComputeTrainParams
from neuroshard_pipeline.cost_models.training_range import TRAINING_RANGE, compute_range
from neuroshard_pipeline.tables.frames import compute_samples_from_frame
from neuroshard_pipeline.tables.samples import TRAINING, ComputeSample
from neuroshard_pipeline.workers import WorkerParams

#: Maps every name in the metrics and in the held-out frame to the part of the cost that it describes.
_PARTS = {"compute": "total", "compute_forward": "forward", "compute_backward": "backward"}


def compute_data(
    samples_frame: pd.DataFrame,
    pool_frame: pd.DataFrame,
    costs_frame: pd.DataFrame,
    settings_frame: pd.DataFrame | None = None,
    purpose: str = TRAINING,
) -> measured.ComputeData:
    """Samples joined with their measured costs; samples without a usable cost are left out and counted.

    Args:
        samples_frame: `augment.compute_samples`.
        pool_frame: `augment.table_pool`.
        costs_frame: `measure.compute_costs`.
        settings_frame: `augment.compute_sample_settings`; None if all samples are for training and use SGD.
        purpose: `training`, or a group of evaluation samples; only samples with this purpose are returned.

    Raises:
        CostModelError: `costs_frame` has a sample that `samples_frame` lacks.
    """
    samples = compute_samples_from_frame(samples_frame, pool_frame, settings_frame)
    if settings_frame is None:
        return measured.join_costs(samples, costs_frame, "compute")
    wanted = settings_frame.loc[settings_frame["purpose"] == purpose, "sample_id"]
    return measured.join_costs(samples, costs_frame, "compute", wanted)


def train_compute_model(
    samples_frame: pd.DataFrame,
    pool_frame: pd.DataFrame,
    costs_frame: pd.DataFrame,
    params: ComputeTrainParams,
    provenance: Mapping[str, Any],
    settings_frame: pd.DataFrame | None = None,
    executor: WorkerParams | None = None,
) -> tuple[ComputeCostModel, Metrics, pd.DataFrame]:
    """Fit the compute cost model.

    Args:
        samples_frame: `augment.compute_samples`.
        pool_frame: `augment.table_pool`.
        costs_frame: `measure.compute_costs`.
        params: sizes of the network, and schedule of the training.
        provenance: JSON values to store with the model; its `noise_floor` (see `noise_floor_of`) goes into the metrics.
        settings_frame: `augment.compute_sample_settings`, see `compute_data`.
        executor: workers among which the members are divided, see `fit_compute`.

    Returns:
        The model; metrics under `compute` (forward + backward, with the coverage of its intervals),
        `compute_forward` and `compute_backward`; and the held-out predictions, see `held_out_frame`.

    Raises:
        CostModelError: too few usable samples, or frames that do not belong together.
    """
    started = time.perf_counter()
    data = compute_data(samples_frame, pool_frame, costs_frame, settings_frame)
    split = measured.split_samples(data.sample_ids, params.validation_share, params.test_share, params.seed)
    model = fit_compute(data, split, params, provenance, executor)
    held_out = compute_held_out(model, data.take(split.test))
    summary = measured.training_summary(split, params.epochs, data.left_out, time.perf_counter() - started)
    metrics = metrics_of(held_out, provenance.get("noise_floor"), _PARTS)
    return model, {name: {**figures, **summary} for name, figures in metrics.items()}, held_out


def fit_compute(
    data: measured.ComputeData,
    split: measured.Split,
    params: ComputeTrainParams,
    provenance: Mapping[str, Any],
    executor: WorkerParams | None = None,
) -> ComputeCostModel:
    """Fit a model to the training samples of a split and calibrate its intervals.

    Members of the ensemble share no weights and see the same batches, so that each worker of `executor` can fit some of
    them; without workers, this process fits all. The model is the same for any number of workers, except for rounding.

    Raises:
        CostModelError: the loss is not a finite number, or a worker could not fit its members.
    """
    parts = np.array_split(np.arange(params.members), executor.workers if executor else 1)
    fits = fitted(_MemberFit(data, split, params), [part for part in parts if len(part)], executor)
    weights = {name: np.concatenate([part[name] for part in fits]) for name in fits[0]}
    rows, context = _feature_rows(data, split)
    trained_on = compute_range(data.take(split.training).samples)
    stored = {**provenance, "training": params.model_dump(), TRAINING_RANGE: trained_on}
    network = Network(weights, rows.normalisation)
    uncalibrated = ComputeCostModel(network, data.batch_size, stored)
    seen, unseen = (
        Predictions.of(
            part.costs_ms.sum(axis=1), _by_setting(lambda *asked: uncalibrated.member_totals(*asked).T, part.samples).T
        )
        for part in (data.take(samples) for samples in (split.training, split.validation))
    )
    network = dataclasses.replace(network, calibration=calibrate(seen, unseen, context[rows.in_training]))
    return dataclasses.replace(uncalibrated, network=network)


@dataclasses.dataclass(frozen=True)
class _MemberFit:
    """Fits some members of the ensemble; calling it with their numbers returns their fit.

    Initial weights and batches are drawn as for all members, so that the fit of a member does not depend on the others.
    """

    data: measured.ComputeData
    split: measured.Split
    params: ComputeTrainParams

    def __call__(self, members: IntArray) -> Fit:
        data, split, params = self.data, self.split, self.params
        generator = torch.Generator().manual_seed(params.seed)
        rows, context = _feature_rows(data, split)
        training_work = segment_sums(rows.work, rows.counts)[split.training]
        first = compute_weights(training_work, data.costs_ms[split.training], context.shape[1], params, generator)
        own = {name: value[members] for name, value in first.items()}
        costs = torch.tensor(data.costs_ms, dtype=torch.float32)
        return fit(own, _loss(rows, costs, params), split, params, generator, "compute cost model")


def _feature_rows(data: measured.ComputeData, split: measured.Split) -> tuple[FeatureRows, FloatArray]:
    """Scaled features of all shards, and their context (S, F) before scaling."""
    work, context, counts = _sample_features(data.samples)
    return FeatureRows(work, context, counts, split), context


def _loss(rows: FeatureRows, costs: Tensor, params: ComputeTrainParams) -> Loss:
    """(E,) sum of the relative losses of forward, backward and their total, which is what searches compare."""

    def predict(weights: dict[str, Tensor], samples: IntArray) -> Tensor:
        """Predicted ms (E, n, D) of n samples."""
        _, work, context = rows.of(samples)
        embeddings = embed(torch, weights, work, context)  # (E, S, C)
        owner = torch.from_numpy(np.repeat(np.arange(len(samples)), rows.counts[samples]))
        sums = torch.zeros(embeddings.shape[0], len(samples), embeddings.shape[2]).index_add(1, owner, embeddings)
        return price(torch, weights, sums)

    def loss(weights: dict[str, Tensor], samples: IntArray) -> Tensor:
        predicted = predict(weights, samples)
        target = costs[samples].expand_as(predicted)
        parts = relative_loss(predicted, target, params.small_error).sum(dim=-1)
        total = relative_loss(predicted.sum(dim=-1), target.sum(dim=-1), params.small_error)
        return (parts + total).mean(dim=1)

    return loss


def compute_held_out(model: ComputeCostModel, data: measured.ComputeData) -> pd.DataFrame:
    """Predicted and measured costs as in `held_out_frame`; ranks are null, and only totals have intervals."""
    costs_ms, predicted = data.costs_ms, predict_compute(model, data.samples)
    none = np.full((len(predicted), 2), np.nan)
    models = {
        "compute": (costs_ms.sum(axis=1), predicted.sum(axis=1), compute_intervals(model, data.samples)),
        "compute_forward": (costs_ms[:, 0], predicted[:, 0], none),
        "compute_backward": (costs_ms[:, 1], predicted[:, 1], none),
    }
    no_rank = pd.array([None] * len(data.samples), dtype="Int64")
    return measured.held_out_frame(pd.DataFrame({"sample_id": data.sample_ids, "rank": no_rank}), models)


def predict_compute(model: ComputeCostModel, samples: Sequence[ComputeSample]) -> FloatArray:
    """Forward and backward ms (N, D) of samples that may differ in batch size and optimizer."""
    return _by_setting(model.predict, samples)


def compute_intervals(model: ComputeCostModel, samples: Sequence[ComputeSample]) -> FloatArray:
    """Lower and upper bound (N, 2) in ms of forward + backward; samples may differ in batch size and optimizer."""
    return _by_setting(model.interval, samples)


def _by_setting(evaluate: Callable[..., FloatArray], samples: Sequence[ComputeSample]) -> FloatArray:
    """Call `evaluate` once per batch size and optimizer; returns its rows (N, ...) in the order of the samples."""
    groups = _rows_by_setting(samples)
    values = [evaluate([samples[row].shards for row in rows], *setting) for setting, rows in groups.items()]
    return np.concatenate(values)[np.argsort(np.concatenate(list(groups.values())))]


def _rows_by_setting(samples: Sequence[ComputeSample]) -> dict[tuple[int, str], list[int]]:
    """Indices of the samples for every (batch size, optimizer)."""
    rows: dict[tuple[int, str], list[int]] = {}
    for row, sample in enumerate(samples):
        rows.setdefault((sample.batch_size, sample.optimizer), []).append(row)
    return rows


def _sample_features(samples: Sequence[ComputeSample]) -> tuple[FloatArray, FloatArray, IntArray]:
    """Work (S, P) and context (S, F) of all shards in the order of samples, and number of shards per sample (N,)."""
    counts = np.array([len(sample.shards) for sample in samples], dtype=np.int64)
    starts = np.cumsum(counts) - counts
    rows, parts = [], []
    for setting, members in _rows_by_setting(samples).items():
        rows += [np.arange(starts[row], starts[row] + counts[row]) for row in members]
        parts.append(shard_features([shard for row in members for shard in samples[row].shards], *setting))
    order = np.argsort(np.concatenate(rows))
    work, context = (np.concatenate(arrays)[order] for arrays in zip(*parts, strict=True))
    return work, context, counts
