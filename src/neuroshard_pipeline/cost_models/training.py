"""From frames of samples and measured costs to trained cost models and how well they hold on held-out samples.

Shapes: N samples, S shards of all samples, E ensemble members, D = 2 directions.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from neuroshard_pipeline.cost_models import initialise
from neuroshard_pipeline.cost_models.calibration import Predictions, calibrate
from neuroshard_pipeline.cost_models.compute import ARCHITECTURES, Architecture, ComputeCostModel
from neuroshard_pipeline.cost_models.distillation import SelfDistillation
from neuroshard_pipeline.cost_models.features import ShardFeatures, segment_sums, shard_features
from neuroshard_pipeline.cost_models.fitting import Fit, fit, relative_loss
from neuroshard_pipeline.cost_models.intervals import coverage, relative_width
from neuroshard_pipeline.cost_models.metrics import accuracy
from neuroshard_pipeline.cost_models.normalisation import Normalisation
from neuroshard_pipeline.cost_models.params import ComputeTrainParams
from neuroshard_pipeline.cost_models.splits import Split, split_samples
from neuroshard_pipeline.cost_models.training_range import TRAINING_RANGE, compute_range
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.frames import compute_samples_from_frame
from neuroshard_pipeline.tables.samples import TRAINING, ComputeSample

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Metrics = dict[str, dict[str, Any]]

#: Names in the metrics and the held-out frame, and the part of the cost that each speaks of.
_COMPUTE_MODELS = {"compute": "total", "compute_forward": "forward", "compute_backward": "backward"}


@dataclass(frozen=True)
class ComputeData:
    """Measured compute samples.

    Attributes:
        samples: N samples.
        costs: (N, D) forward and backward ms, all finite and above 0.
        left_out: samples whose measurement failed.
    """

    samples: tuple[ComputeSample, ...]
    costs: FloatArray
    left_out: int

    @property
    def sample_ids(self) -> list[str]:
        """Ids of the samples."""
        return [sample.sample_id for sample in self.samples]

    def take(self, rows: Sequence[int] | IntArray) -> ComputeData:
        """Some of the samples."""
        return ComputeData(tuple(self.samples[row] for row in rows), self.costs[np.asarray(rows)], self.left_out)


def compute_data(
    samples_frame: pd.DataFrame,
    pool_frame: pd.DataFrame,
    costs_frame: pd.DataFrame,
    settings_frame: pd.DataFrame | None = None,
    purpose: str = TRAINING,
) -> ComputeData:
    """Join samples with their measured costs; samples without a usable cost are left out and counted.

    Args:
        samples_frame: `augment.compute_samples`.
        pool_frame: `augment.table_pool`.
        costs_frame: `measure.compute_costs`.
        settings_frame: `augment.compute_sample_settings`; None where all samples are for training, with SGD.
        purpose: which samples; all others, which are kept for judging or for training, are left aside.

    Raises:
        CostModelError: a measured sample is not among the samples.
    """
    every = compute_samples_from_frame(samples_frame, pool_frame, settings_frame)
    samples = {sample.sample_id: sample for sample in every}
    unknown = set(costs_frame["sample_id"]) - set(samples)
    if unknown:
        raise CostModelError(
            f"measure.compute_costs holds {len(unknown)} samples, such as {min(unknown)!r}, that are not in "
            "augment.compute_samples: the two versions do not belong together; measure again"
        )
    if settings_frame is not None:
        wanted = settings_frame.loc[settings_frame["purpose"] == purpose, "sample_id"]
        costs_frame = costs_frame[costs_frame["sample_id"].isin(wanted)]
    usable = usable_costs(costs_frame)
    kept = tuple(samples[sample_id] for sample_id in usable["sample_id"])
    costs = usable[["forward_ms", "backward_ms"]].to_numpy(dtype=np.float64)
    return ComputeData(kept, costs, left_out=len(costs_frame) - len(usable))


def usable_costs(costs_frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a costs frame that have no error and two finite costs above 0."""
    costs = costs_frame[["forward_ms", "backward_ms"]].to_numpy(dtype=np.float64)
    measured = np.isfinite(costs).all(axis=1) & (np.nan_to_num(costs) > 0).all(axis=1)
    failed = costs_frame["error"].notna() & (costs_frame["error"].astype(str) != "")
    return costs_frame[measured & ~failed.to_numpy()]


def train_compute_model(
    samples_frame: pd.DataFrame,
    pool_frame: pd.DataFrame,
    costs_frame: pd.DataFrame,
    params: ComputeTrainParams,
    provenance: Mapping[str, Any],
    settings_frame: pd.DataFrame | None = None,
) -> tuple[ComputeCostModel, Metrics, pd.DataFrame]:
    """Fit the compute cost model.

    Args:
        samples_frame: `augment.compute_samples`.
        pool_frame: `augment.table_pool`.
        costs_frame: `measure.compute_costs`.
        params: architecture and schedule.
        provenance: JSON values to store with the model; its `noise_floor` (see `noise_floor_of`) goes into the metrics.
        settings_frame: `augment.compute_sample_settings`, see `compute_data`.

    Returns:
        The model; metrics under `compute` (forward + backward, with the coverage of its intervals),
        `compute_forward` and `compute_backward`; and the held-out predictions, see `held_out_frame`.

    Raises:
        CostModelError: too few usable samples, or frames that do not belong together.
    """
    started = time.perf_counter()
    data = compute_data(samples_frame, pool_frame, costs_frame, settings_frame)
    split = split_samples(data.sample_ids, params.validation_share, params.test_share, params.seed)
    model, fitted = fit_compute(data, split, params, provenance)
    held_out = compute_held_out(model, data.take(split.test))
    about = fit_summary(split, fitted, data.left_out, time.perf_counter() - started)
    metrics = {}
    for name, part in _COMPUTE_MODELS.items():
        rows = held_out[held_out["model"] == name]
        floor = noise_floor_of(provenance.get("noise_floor"), part)
        accurate = accuracy(rows["measured_ms"], rows["predicted_ms"], floor)
        metrics[name] = {**accurate, **interval_figures(rows), **about}
    return model, metrics, held_out


def fit_compute(
    data: ComputeData, split: Split, params: ComputeTrainParams, provenance: Mapping[str, Any]
) -> tuple[ComputeCostModel, Fit]:
    """Fit a model to the training samples of a split."""
    kind = ARCHITECTURES[params.architecture]
    generator = torch.Generator().manual_seed(params.seed)
    features, counts = _features(data.samples)
    work, context = kind.inputs(features)
    in_training = np.repeat(np.isin(np.arange(len(counts)), split.training), counts)
    normalisation = Normalisation.fit(work[in_training], context[in_training])
    shards = _Shards(normalisation.work(work), normalisation.context(context), counts)
    training_sums = segment_sums(shards.work, counts)[split.training]
    first = _first_weights(training_sums, data.costs[split.training], context.shape[1], params, generator)
    costs = torch.tensor(data.costs, dtype=torch.float32)

    def loss(predicted: Tensor, target: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return _LOSSES[params.architecture](predicted, target, weights, params.small_error)

    def predict(weights: dict[str, Tensor], rows: IntArray, noise: float = 0.0) -> Tensor:
        return shards.costs(kind, weights, rows, noise, generator)  # (E, N, D)

    def loss_of(weights: dict[str, Tensor], rows: IntArray) -> Tensor:
        return loss(predict(weights, rows), costs[rows], weights)

    taught = None
    if params.distillation == "smc2":
        how = params.distillation_weight, params.view_noise
        taught = SelfDistillation.start(predict, loss, costs, params.members, *how)
    title = "compute cost model"
    fitted = fit(first, loss_of, split.training, split.validation, params, generator, title, taught)
    batch_size = Counter(sample.batch_size for sample in data.samples).most_common(1)[0][0]
    trained_on = compute_range(data.take(split.training).samples)
    stored = {**provenance, "training": params.model_dump(), TRAINING_RANGE: trained_on}
    model = ComputeCostModel(params.architecture, fitted.weights, normalisation, batch_size, None, stored)
    return _with_intervals(model, data, split, features.context[in_training]), fitted


def _with_intervals(
    model: ComputeCostModel, data: ComputeData, split: Split, training_context: FloatArray
) -> ComputeCostModel:
    """The model with calibrated intervals; `training_context` is (S, F)."""
    parts = [data.take(rows) for rows in (split.training, split.validation)]
    seen, unseen = (Predictions.of(part.costs.sum(axis=1), member_totals(model, part.samples)) for part in parts)
    return dataclasses.replace(model, calibration=calibrate(seen, unseen, training_context))


def member_totals(model: ComputeCostModel, samples: Sequence[ComputeSample]) -> FloatArray:
    """Forward + backward ms of samples as every member predicts them: (E, N)."""
    totals = np.empty((model.members, len(samples)))
    for setting, rows in _rows_by_setting(samples).items():
        totals[:, rows] = model.member_totals([samples[row].shards for row in rows], *setting)
    return totals


def compute_held_out(model: ComputeCostModel, data: ComputeData) -> pd.DataFrame:
    """Predictions beside measurements, as `held_out_frame`; rank is null, and only the total has an interval."""
    predicted = predict_compute(model, data.samples)
    none = np.full((len(predicted), 2), np.nan)
    columns = {
        "compute": (data.costs.sum(axis=1), predicted.sum(axis=1), compute_intervals(model, data.samples)),
        "compute_forward": (data.costs[:, 0], predicted[:, 0], none),
        "compute_backward": (data.costs[:, 1], predicted[:, 1], none),
    }
    no_rank = pd.array([None] * len(data.samples), dtype="Int64")
    return held_out_frame(pd.DataFrame({"sample_id": data.sample_ids, "rank": no_rank}), columns)


def held_out_frame(
    keys: pd.DataFrame, columns: Mapping[str, tuple[FloatArray, FloatArray, FloatArray]]
) -> pd.DataFrame:
    """Stack measured costs, predicted ones and intervals (N, 2) of several models under a column `model`.

    Returns:
        `model, sample_id, rank, measured_ms, predicted_ms, low_ms, high_ms`.
    """
    parts = [
        keys.assign(
            model=name, measured_ms=measured, predicted_ms=predicted, low_ms=interval[:, 0], high_ms=interval[:, 1]
        )
        for name, (measured, predicted, interval) in columns.items()
    ]
    order = ["model", "sample_id", "rank", "measured_ms", "predicted_ms", "low_ms", "high_ms"]
    return pd.concat(parts, ignore_index=True)[order]


def predict_compute(model: ComputeCostModel, samples: Sequence[ComputeSample]) -> FloatArray:
    """Forward and backward ms (N, D) of samples that may differ in batch size and optimizer."""
    costs = np.empty((len(samples), 2))
    for setting, rows in _rows_by_setting(samples).items():
        costs[rows] = model.predict([samples[row].shards for row in rows], *setting)
    return costs


def compute_intervals(model: ComputeCostModel, samples: Sequence[ComputeSample]) -> FloatArray:
    """Lower and upper bound (N, 2) in ms of forward + backward; samples may differ in batch size and optimizer."""
    bounds = np.empty((len(samples), 2))
    for setting, rows in _rows_by_setting(samples).items():
        bounds[rows] = model.interval([samples[row].shards for row in rows], *setting)
    return bounds


def _rows_by_setting(samples: Sequence[ComputeSample]) -> dict[tuple[int, str], list[int]]:
    """Rows of the samples that share batch size and optimizer."""
    rows: dict[tuple[int, str], list[int]] = {}
    for row, sample in enumerate(samples):
        rows.setdefault((sample.batch_size, sample.optimizer), []).append(row)
    return rows


def interval_figures(rows: pd.DataFrame) -> dict[str, float]:
    """`coverage_90` and `mean_relative_width` of held-out rows, none where the rows have no intervals."""
    known = rows.dropna(subset=["low_ms", "high_ms"])
    if known.empty:
        return {}
    bounds = known[["low_ms", "high_ms"]].to_numpy()
    return {
        "coverage_90": coverage(known["measured_ms"].to_numpy(), bounds),
        "mean_relative_width": relative_width(known["predicted_ms"].to_numpy(), bounds),
    }


def noise_floor_of(floor: Any, part: str) -> float | None:
    """The noise floor of a part of the cost.

    Args:
        floor: one number for all parts, None where unknown, or a mapping of parts to numbers or to quantiles of
            which the `median` counts, as `measurement.noise_floor` returns it.
        part: `forward`, `backward` or `total`.
    """
    if isinstance(floor, Mapping):
        return noise_floor_of(floor["median"] if "median" in floor else floor.get(part), part)
    return None if floor is None else float(floor)


def fit_summary(split: Split, fitted: Fit, left_out: int, seconds: float) -> dict[str, Any]:
    """What training reports beside the accuracy."""
    return {
        "n_train": len(split.training),
        "n_validation": len(split.validation),
        "n_test": len(split.test),
        "n_left_out": left_out,
        "epochs": fitted.epochs,
        "seconds": round(seconds, 3),
    }


class _Shards:
    """Scaled features of all samples as tensors, and how the costs of some samples follow from them."""

    def __init__(self, work: FloatArray, context: FloatArray, counts: IntArray) -> None:
        self.work = work
        self._work = torch.tensor(work, dtype=torch.float32)
        self._context = torch.tensor(context, dtype=torch.float32)
        self._counts = counts
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def costs(
        self,
        kind: Architecture,
        weights: dict[str, Tensor],
        rows: IntArray,
        noise: float,
        generator: torch.Generator,
    ) -> Tensor:
        """(E, N, D) ms of the samples `rows`, seen with noise of a standard deviation on the scaled context."""
        counts = self._counts[rows]
        shards = torch.from_numpy(np.concatenate([np.arange(self._starts[r], self._starts[r + 1]) for r in rows]))
        owner = torch.from_numpy(np.repeat(np.arange(len(rows)), counts))
        context = self._context[shards]
        if noise:
            context = context + noise * torch.randn(context.shape, generator=generator)
        embeddings = kind.embeddings(torch, weights, self._work[shards], context)  # (E, S, C)
        sums = torch.zeros(embeddings.shape[0], len(rows), embeddings.shape[2]).index_add(1, owner, embeddings)
        return kind.costs(torch, weights, sums)


def _features(samples: Sequence[ComputeSample]) -> tuple[ShardFeatures, IntArray]:
    """Features of all shards in order, and shards per sample (N,)."""
    counts = np.array([len(sample.shards) for sample in samples], dtype=np.int64)
    starts = np.cumsum(counts) - counts
    rows, parts = [], []
    for setting, members in _rows_by_setting(samples).items():
        rows.append(np.concatenate([np.arange(starts[row], starts[row] + counts[row]) for row in members]))
        parts.append(shard_features([shard for row in members for shard in samples[row].shards], *setting))
    order = np.argsort(np.concatenate(rows))
    work, context, raw = (np.concatenate([getattr(part, name) for part in parts]) for name in _FEATURE_FIELDS)
    return ShardFeatures(work[order], context[order], raw[order]), counts


_FEATURE_FIELDS = ("work", "context", "raw")


def _first_weights(
    work: FloatArray, costs: FloatArray, num_context: int, params: ComputeTrainParams, generator: torch.Generator
) -> dict[str, Tensor]:
    if params.architecture == "universal":
        return initialise.universal_weights(work, costs, num_context, params, generator)
    sizes = {
        "table.in": (num_context, 128),
        "table.out": (128, 32),
        "head.in": (32, 64),
        "head.out": (64, costs.shape[1]),
    }
    return initialise.dense_weights(sizes, params.members, generator) | initialise.cost_scaling(costs, params.members)


def _relative_loss(predicted: Tensor, measured: Tensor, weights: dict[str, Tensor], small_error: float) -> Tensor:  # noqa: ARG001
    """(E,) relative error of forward, backward and, as that is what a search compares, their sum."""
    measured = measured.expand_as(predicted)
    parts = relative_loss(predicted, measured, small_error).sum(dim=-1)
    total = relative_loss(predicted.sum(dim=-1), measured.sum(dim=-1), small_error)
    return (parts + total).mean(dim=1)


def _squared_loss(predicted: Tensor, measured: Tensor, weights: dict[str, Tensor], small_error: float) -> Tensor:  # noqa: ARG001
    """(E,) squared error of standardised costs, the paper's."""
    return (((predicted - measured) / weights["cost_scale"]) ** 2).mean(dim=(1, 2))


_LOSSES = {"universal": _relative_loss, "paper": _squared_loss}
