"""Training of the two communication networks, forward and backward, and of the fixed-size rival.

Shapes: N samples, R ranks of all samples, W ranks of one sample, E ensemble members.
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

from neuroshard_pipeline.cost_models import architectures, initialise
from neuroshard_pipeline.cost_models.calibration import Predictions, calibrate
from neuroshard_pipeline.cost_models.comm import CommCostModel, CommNetwork, ranks_per_host_of
from neuroshard_pipeline.cost_models.comm_features import COMM_DIRECTIONS, comm_features, paper_comm_features
from neuroshard_pipeline.cost_models.fitting import Fit, fit, relative_loss
from neuroshard_pipeline.cost_models.metrics import accuracy
from neuroshard_pipeline.cost_models.normalisation import Normalisation
from neuroshard_pipeline.cost_models.params import CommTrainParams
from neuroshard_pipeline.cost_models.splits import Split, split_samples
from neuroshard_pipeline.cost_models.training import (
    Metrics,
    fit_summary,
    held_out_frame,
    interval_figures,
    noise_floor_of,
    usable_costs,
)
from neuroshard_pipeline.cost_models.training_range import TRAINING_RANGE, comm_range
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.frames import comm_samples_from_frame
from neuroshard_pipeline.tables.samples import CommSample

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class CommData:
    """Measured communication samples.

    Attributes:
        samples: N samples of any world sizes.
        costs: per sample, (W, 2) forward and backward ms, finite and above 0 on every rank.
        left_out: samples of which a rank's measurement failed.
    """

    samples: tuple[CommSample, ...]
    costs: tuple[FloatArray, ...]
    left_out: int

    @property
    def sample_ids(self) -> list[str]:
        """Ids of the samples."""
        return [sample.sample_id for sample in self.samples]

    def take(self, rows: Sequence[int] | IntArray) -> CommData:
        """Some of the samples."""
        chosen = [int(row) for row in rows]
        return CommData(
            tuple(self.samples[row] for row in chosen), tuple(self.costs[row] for row in chosen), self.left_out
        )


def comm_data(samples_frame: pd.DataFrame, costs_frame: pd.DataFrame) -> CommData:
    """Join samples with their measured costs; samples that lack a usable cost on any rank are left out and counted.

    Raises:
        CostModelError: a measured sample is not among the samples.
    """
    samples = {sample.sample_id: sample for sample in comm_samples_from_frame(samples_frame)}
    unknown = set(costs_frame["sample_id"]) - set(samples)
    if unknown:
        raise CostModelError(
            f"measure.comm_costs holds {len(unknown)} samples, such as {min(unknown)!r}, that are not in "
            "augment.comm_samples: the two versions do not belong together; measure again"
        )
    kept, costs = [], []
    for sample_id, rows in usable_costs(costs_frame).sort_values(["sample_id", "rank"]).groupby("sample_id"):
        sample = samples[str(sample_id)]
        if rows["rank"].tolist() == list(range(sample.world_size)):
            kept.append(sample)
            costs.append(rows[["forward_ms", "backward_ms"]].to_numpy(dtype=np.float64))
    return CommData(tuple(kept), tuple(costs), left_out=costs_frame["sample_id"].nunique() - len(kept))


def train_comm_model(
    samples_frame: pd.DataFrame, costs_frame: pd.DataFrame, params: CommTrainParams, provenance: Mapping[str, Any]
) -> tuple[CommCostModel, Metrics, pd.DataFrame]:
    """Fit the forward and the backward communication cost model.

    Args:
        samples_frame: `augment.comm_samples`.
        costs_frame: `measure.comm_costs`.
        params: architecture and schedule.
        provenance: JSON values to store with the model; its `noise_floor` (see `noise_floor_of`) goes into the metrics.

    Returns:
        The model; metrics under `comm_forward` and `comm_backward`; and the held-out predictions, see
        `held_out_frame`.

    Raises:
        CostModelError: too few usable samples, or frames that do not belong together.
    """
    started = time.perf_counter()
    data = comm_data(samples_frame, costs_frame)
    if params.architecture == "paper":
        data = _one_kind(data)
    split = split_samples(data.sample_ids, params.validation_share, params.test_share, params.seed)
    model, fits = fit_comm(data, split, params, provenance)
    held_out = comm_held_out(model, data.take(split.test))
    seconds = time.perf_counter() - started
    metrics = {}
    for direction in COMM_DIRECTIONS:
        rows = held_out[held_out["model"] == f"comm_{direction}"]
        floor = noise_floor_of(provenance.get("noise_floor"), direction)
        metrics[f"comm_{direction}"] = {
            **accuracy(rows["measured_ms"], rows["predicted_ms"], floor),
            **interval_figures(rows),
            **fit_summary(split, fits[direction], data.left_out, seconds),
            "world_sizes": list(model.world_sizes),
        }
    return model, metrics, held_out


def fit_comm(
    data: CommData, split: Split, params: CommTrainParams, provenance: Mapping[str, Any]
) -> tuple[CommCostModel, dict[str, Fit]]:
    """Fit a model to the training samples of a split; for `paper`, all samples have one world size."""
    fit_one = _fit_universal if params.architecture == "universal" else _fit_paper
    networks, fits = {}, {}
    for direction in COMM_DIRECTIONS:
        networks[direction], fits[direction] = fit_one(data, split, params, direction, ranks_per_host_of(provenance))
    model = CommCostModel(
        architecture=params.architecture,
        networks=networks,
        batch_size=Counter(sample.batch_size for sample in data.samples).most_common(1)[0][0],
        world_sizes=tuple(sorted({sample.world_size for sample in data.samples})),
        provenance={
            **provenance,
            "training": params.model_dump(),
            TRAINING_RANGE: comm_range(data.take(split.training).samples),
        },
    )
    return _with_intervals(model, data, split), fits


def _with_intervals(model: CommCostModel, data: CommData, split: Split) -> CommCostModel:
    """The model with calibrated intervals.

    Ranks of one collective err alike, so that fewer errors are independent than there are ranks; the coverage over
    samples is right on average nevertheless, as validation and new samples have ranks alike.
    """
    parts = [data.take(rows) for rows in (split.training, split.validation)]
    networks = {}
    for direction, network in model.networks.items():
        seen, unseen = (_predictions(model, part, direction) for part in parts)
        calibration = calibrate(seen, unseen, _rank_features(parts[0].samples, direction, model.ranks_per_host)[1])
        networks[direction] = dataclasses.replace(network, calibration=calibration)
    return dataclasses.replace(model, networks=networks)


def _predictions(model: CommCostModel, data: CommData, direction: str) -> Predictions:
    """What the members say of all ranks of all samples."""
    members = [model.member_costs(direction, *_inputs(sample, direction), sample.batch_size) for sample in data.samples]
    measured = np.concatenate(data.costs)[:, COMM_DIRECTIONS.index(direction)]
    return Predictions.of(measured, np.concatenate(members, axis=1))


def _inputs(sample: CommSample, direction: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Dimension sums and start skews; backward, all ranks start together."""
    return sample.dim_sums, sample.start_skew_ms if direction == "forward" else (0.0,) * sample.world_size


def predict_comm(model: CommCostModel, samples: Sequence[CommSample]) -> list[FloatArray]:
    """Per sample, (W, 2) forward and backward ms."""
    return [
        np.stack(model.predict(sample.dim_sums, sample.start_skew_ms, sample.batch_size), axis=-1) for sample in samples
    ]


def comm_intervals(model: CommCostModel, samples: Sequence[CommSample]) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds in ms of all ranks of all samples, forward and backward: (R, 2) each."""
    forward = [model.forward_interval_ms(s.dim_sums, s.start_skew_ms, s.batch_size) for s in samples]
    backward = [model.backward_interval_ms(s.dim_sums, s.batch_size) for s in samples]
    return np.concatenate(forward), np.concatenate(backward)


def comm_held_out(model: CommCostModel, data: CommData) -> pd.DataFrame:
    """Predictions beside measurements, as `held_out_frame`."""
    measured = np.concatenate(data.costs)
    predicted = np.concatenate(predict_comm(model, data.samples))
    worlds = [sample.world_size for sample in data.samples]
    ranks = np.concatenate([np.arange(world) for world in worlds])
    keys = pd.DataFrame({"sample_id": np.repeat(data.sample_ids, worlds), "rank": pd.array(ranks, dtype="Int64")})
    intervals = comm_intervals(model, data.samples)
    columns = {
        f"comm_{direction}": (measured[:, column], predicted[:, column], intervals[column])
        for column, direction in enumerate(COMM_DIRECTIONS)
    }
    return held_out_frame(keys, columns)


def _fit_universal(
    data: CommData, split: Split, params: CommTrainParams, direction: str, ranks_per_host: int | None
) -> tuple[CommNetwork, Fit]:
    """The permutation-equivariant network: every rank of every sample is one row."""
    generator = torch.Generator().manual_seed(params.seed)
    worlds = np.array([sample.world_size for sample in data.samples])
    raw_work, raw_context = _rank_features(data.samples, direction, ranks_per_host)  # (R, P), (R, F)
    in_training = np.repeat(np.isin(np.arange(len(worlds)), split.training), worlds)
    normalisation = _keeping_wait(Normalisation.fit(raw_work[in_training], raw_context[in_training]))
    work, context = normalisation.work(raw_work), normalisation.context(raw_context)
    costs = np.concatenate(data.costs)[:, COMM_DIRECTIONS.index(direction)]  # (R,)
    first = initialise.comm_weights(work[in_training], costs[in_training], context.shape[1], params, generator)
    tensors = [torch.tensor(values, dtype=torch.float32) for values in (work, context, costs)]
    starts = np.concatenate([[0], np.cumsum(worlds)])

    def loss_of(weights: dict[str, Tensor], rows: IntArray) -> Tensor:
        ranks = torch.from_numpy(np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows]))
        predicted = architectures.comm_costs(torch, weights, tensors[0][ranks], tensors[1][ranks])  # (E, ranks)
        return relative_loss(predicted, tensors[2][ranks].expand_as(predicted), params.small_error).mean(dim=1)

    fitted = fit(first, loss_of, split.training, split.validation, params, generator, f"{direction} comm cost model")
    return CommNetwork(fitted.weights, normalisation), fitted


def _rank_features(
    samples: Sequence[CommSample], direction: str, ranks_per_host: int | None
) -> tuple[FloatArray, FloatArray]:
    """Work (R, P) and context (R, F) of all ranks, in the order of samples and ranks."""
    parts = [
        comm_features(*_inputs(sample, direction), sample.batch_size, direction, ranks_per_host) for sample in samples
    ]
    return np.concatenate([work for work, _ in parts]), np.concatenate([context for _, context in parts])


def _keeping_wait(normalisation: Normalisation) -> Normalisation:
    """The wait stays in ms: a rank that waits 3 ms longer pays 3 ms more."""
    scale = normalisation.work_scale.copy()
    scale[0] = 1.0
    return Normalisation(scale, normalisation.low, normalisation.high, normalisation.mean, normalisation.inverse_scale)


def _fit_paper(
    data: CommData,
    split: Split,
    params: CommTrainParams,
    direction: str,
    ranks_per_host: int | None,  # noqa: ARG001
) -> tuple[CommNetwork, Fit]:
    """The fixed-size network of [Zha2023] §3.2; its squared error is the paper's too."""
    generator = torch.Generator().manual_seed(params.seed)
    dims = np.array([sample.dim_sums for sample in data.samples], dtype=np.float64)  # (N, W)
    skew = np.array([sample.start_skew_ms for sample in data.samples]) * (direction == "forward")
    raw = paper_comm_features(dims, skew)
    normalisation = Normalisation.fit(raw[split.training], raw[split.training])
    features = torch.tensor(normalisation.context(raw), dtype=torch.float32)
    measured = np.stack(data.costs)[:, :, COMM_DIRECTIONS.index(direction)]  # (N, W)
    costs = torch.tensor(measured, dtype=torch.float32)
    widths = (features.shape[1], 128, 64, 32, 16, costs.shape[1])
    sizes = {str(layer): (widths[layer], widths[layer + 1]) for layer in range(5)}
    first = initialise.dense_weights(sizes, params.members, generator)
    first |= initialise.cost_scaling(measured[split.training], params.members)

    def loss_of(weights: dict[str, Tensor], rows: IntArray) -> Tensor:
        predicted = architectures.paper_comm_costs(torch, weights, features[rows])  # (E, N, W)
        return (((predicted - costs[rows]) / weights["cost_scale"]) ** 2).mean(dim=(1, 2))

    fitted = fit(first, loss_of, split.training, split.validation, params, generator, f"{direction} comm cost model")
    return CommNetwork(fitted.weights, normalisation), fitted


def _one_kind(data: CommData) -> CommData:
    """The samples of the most frequent world size and, of these, batch size."""
    kinds = [(sample.world_size, sample.batch_size) for sample in data.samples]
    most = Counter(kinds).most_common(1)[0][0]
    return data.take([row for row, kind in enumerate(kinds) if kind == most])
