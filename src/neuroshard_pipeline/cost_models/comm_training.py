"""Training of the two communication networks: from frames of samples and costs to a model and its held-out accuracy.

Shapes: N samples, R ranks of all samples, W ranks of one sample, E ensemble members, P work terms, F context features.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.cost_models import measured
from neuroshard_pipeline.cost_models.calibration import Predictions, calibrate
from neuroshard_pipeline.cost_models.comm import CommCostModel, rank_costs, ranks_per_host_of
from neuroshard_pipeline.cost_models.comm_features import COMM_DIRECTIONS, COMM_WORK_TERMS, comm_features
from neuroshard_pipeline.cost_models.fitting import FeatureRows, Fit, fit, fitted, relative_loss
from neuroshard_pipeline.cost_models.initial_weights import comm_weights
from neuroshard_pipeline.cost_models.metrics import Metrics, metrics_of
from neuroshard_pipeline.cost_models.network import Network
from neuroshard_pipeline.cost_models.params import CommTrainParams
from neuroshard_pipeline.cost_models.training_range import TRAINING_RANGE, comm_range
from neuroshard_pipeline.tables.frames import comm_samples_from_frame
from neuroshard_pipeline.tables.samples import CommSample
from neuroshard_pipeline.workers import WorkerParams

#: Names of the two networks in the metrics and in the held-out frame, each with its direction.
_PARTS = {f"comm_{direction}": direction for direction in COMM_DIRECTIONS}

#: Work terms that are not scaled. The wait stays in ms, because a rank that waits 3 ms longer costs 3 ms more.
_UNSCALED = (list(COMM_WORK_TERMS).index("wait"),)


def comm_data(samples_frame: pd.DataFrame, costs_frame: pd.DataFrame) -> measured.CommData:
    """Join samples with their measured costs; leave out and count samples of which any rank has no usable cost.

    Raises:
        CostModelError: a measured sample is not among the samples.
    """
    return measured.join_costs(
        comm_samples_from_frame(samples_frame), costs_frame.sort_values(["sample_id", "rank"]), "comm"
    )


def train_comm_model(
    samples_frame: pd.DataFrame,
    costs_frame: pd.DataFrame,
    params: CommTrainParams,
    provenance: Mapping[str, Any],
    executor: WorkerParams | None = None,
) -> tuple[CommCostModel, Metrics, pd.DataFrame]:
    """Fit the forward and the backward communication cost model.

    Args:
        samples_frame: `augment.comm_samples`.
        costs_frame: `measure.comm_costs`.
        params: sizes of the networks, and schedule of the training.
        provenance: JSON values to store with the model; its `noise_floor` (see `noise_floor_of`) goes into the metrics.
        executor: workers that fit the two directions; without them, this process does.

    Returns:
        The model; metrics under `comm_forward` and `comm_backward`; and the held-out predictions, see
        `held_out_frame`.

    Raises:
        CostModelError: too few usable samples, frames that do not belong together, or a loss that is not finite.
    """
    started = time.perf_counter()
    data = comm_data(samples_frame, costs_frame)
    split = measured.split_samples(data.sample_ids, params.validation_share, params.test_share, params.seed)
    model = fit_comm(data, split, params, provenance, executor)
    held_out = comm_held_out(model, data.take(split.test))
    seconds = time.perf_counter() - started
    metrics = metrics_of(held_out, provenance.get("noise_floor"), _PARTS)
    for name in _PARTS:
        summary = measured.training_summary(split, params.epochs, data.left_out, seconds)
        metrics[name] |= {**summary, "world_sizes": list(model.world_sizes)}
    return model, metrics, held_out


def fit_comm(
    data: measured.CommData,
    split: measured.Split,
    params: CommTrainParams,
    provenance: Mapping[str, Any],
    executor: WorkerParams | None = None,
) -> CommCostModel:
    """Fit a model to the training samples of a split, and calibrate its intervals."""
    networks, contexts, per_host = {}, {}, ranks_per_host_of(provenance)
    fit_direction = partial(_fit_direction, data=data, split=split, params=params, ranks_per_host=per_host)
    for direction, weights in zip(COMM_DIRECTIONS, fitted(fit_direction, COMM_DIRECTIONS, executor), strict=True):
        rows, context = _rank_rows(data, split, direction, per_host)
        networks[direction] = Network(weights, rows.normalisation)
        contexts[direction] = context[rows.in_training]
    trained_on = comm_range(data.take(split.training).samples)
    uncalibrated = CommCostModel(
        networks=networks,
        batch_size=data.batch_size,
        world_sizes=tuple(sorted({sample.world_size for sample in data.samples})),
        provenance={**provenance, "training": params.model_dump(), TRAINING_RANGE: trained_on},
    )
    parts = [data.take(samples) for samples in (split.training, split.validation)]
    for direction in COMM_DIRECTIONS:
        # The errors of one collective's ranks are correlated, so that there are fewer independent errors than ranks.
        # The mean coverage is still correct, because the errors of new samples are correlated in the same way.
        seen, unseen = (_predictions(uncalibrated, part, direction) for part in parts)
        calibration = calibrate(seen, unseen, contexts[direction])
        networks[direction] = dataclasses.replace(networks[direction], calibration=calibration)
    return dataclasses.replace(uncalibrated, networks=networks)


def _fit_direction(
    direction: str, data: measured.CommData, split: measured.Split, params: CommTrainParams, ranks_per_host: int | None
) -> Fit:
    """Fit the network of one direction; the loss is the mean of `relative_loss` over the ranks of all samples."""
    rows, _ = _rank_rows(data, split, direction, ranks_per_host)
    generator = torch.Generator().manual_seed(params.seed)
    costs = _measured(data, direction)
    seen = rows.in_training
    first = comm_weights(rows.work[seen], costs[seen], len(rows.normalisation.mean), params, generator)
    target = torch.tensor(costs, dtype=torch.float32)

    def loss(weights: dict[str, Tensor], samples: IntArray) -> Tensor:
        ranks, work, context = rows.of(samples)
        predicted = rank_costs(torch, weights, work, context)  # (E, ranks)
        return relative_loss(predicted, target[ranks].expand_as(predicted), params.small_error).mean(dim=1)

    return fit(first, loss, split, params, generator, f"{direction} comm cost model")


def _rank_rows(
    data: measured.CommData, split: measured.Split, direction: str, ranks_per_host: int | None
) -> tuple[FeatureRows, FloatArray]:
    """Features of all ranks, in the order of samples and ranks, and the context (R, F) before scaling."""
    parts = [
        comm_features(*_inputs(sample, direction), sample.batch_size, direction, ranks_per_host)
        for sample in data.samples
    ]
    work, context = (np.concatenate([part[index] for part in parts]) for index in range(2))
    worlds = np.array([sample.world_size for sample in data.samples])
    return FeatureRows(work, context, worlds, split, _UNSCALED), context


def _inputs(sample: CommSample, direction: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Sums of widths, and start skews in ms. In the backward direction, all ranks start together; the skews are 0."""
    return sample.dim_sums, sample.start_skew_ms if direction == "forward" else (0.0,) * sample.world_size


def _measured(data: measured.CommData, direction: str) -> FloatArray:
    """(R,) measured ms of all ranks."""
    return data.costs_ms[:, COMM_DIRECTIONS.index(direction)]


def _predictions(model: CommCostModel, data: measured.CommData, direction: str) -> Predictions:
    """Predictions of the members for all ranks of all samples."""
    members = [model.member_costs(direction, *_inputs(sample, direction), sample.batch_size) for sample in data.samples]
    return Predictions.of(_measured(data, direction), np.concatenate(members, axis=1))


def predict_comm(model: CommCostModel, samples: Sequence[CommSample]) -> FloatArray:
    """Forward and backward ms of all ranks of all samples: (R, 2)."""
    return np.concatenate(
        [np.stack(model.predict(s.dim_sums, s.start_skew_ms, s.batch_size), axis=-1) for s in samples]
    )


def comm_intervals(model: CommCostModel, samples: Sequence[CommSample]) -> tuple[FloatArray, FloatArray]:
    """Forward and backward intervals in ms of all ranks of all samples; each is (R, 2), lower and upper bound."""
    forward = [model.forward_interval_ms(s.dim_sums, s.start_skew_ms, s.batch_size) for s in samples]
    backward = [model.backward_interval_ms(s.dim_sums, s.batch_size) for s in samples]
    return np.concatenate(forward), np.concatenate(backward)


def comm_held_out(model: CommCostModel, data: measured.CommData) -> pd.DataFrame:
    """Predictions beside the measured costs of `data`; for the columns see `held_out_frame`."""
    predicted, intervals = predict_comm(model, data.samples), comm_intervals(model, data.samples)
    worlds = [sample.world_size for sample in data.samples]
    ranks = np.concatenate([np.arange(world) for world in worlds])
    keys = pd.DataFrame({"sample_id": np.repeat(data.sample_ids, worlds), "rank": pd.array(ranks, dtype="Int64")})
    models = {
        f"comm_{direction}": (_measured(data, direction), predicted[:, column], intervals[column])
        for column, direction in enumerate(COMM_DIRECTIONS)
    }
    return measured.held_out_frame(keys, models)
