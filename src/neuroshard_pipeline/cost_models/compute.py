"""The compute cost model: what one fused lookup of a rank's shards costs, forward and backward apart.

Shapes: S shards, N shard sets, E ensemble members, C channels per member, H = E * C + 1 numbers of an embedding, of
which the last is no channel: the cost of the shard alone times how far it lies outside the training range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.cost_models import architectures, checkpoint
from neuroshard_pipeline.cost_models.features import (
    CONTEXT_FEATURES,
    RAW_FEATURES,
    WORK_TERMS,
    ShardFeatures,
    segment_sums,
    shard_features,
)
from neuroshard_pipeline.cost_models.intervals import CALIBRATION_FIELDS, SMALLEST_MS, Calibration, member_spread
from neuroshard_pipeline.cost_models.normalisation import NORMALISATION_FIELDS, Normalisation
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.table import Shard

FloatArray = NDArray[np.float64]

#: Shard sets whose costs are computed together: their intermediate arrays stay in the level-2 cache. On one core of
#: an AMD EPYC 6 million sets/s, against 1.6 million all at once; float32 would give 7, so it is not worth a second
#: precision.
_CHUNK_SETS = 4096


@dataclass(frozen=True)
class Architecture:
    """One kind of compute network.

    Attributes:
        embeddings: `(xp, weights, work, context) -> (E, S, C)`.
        costs: `(xp, weights, sums (E, N, C)) -> (E, N, 2)`.
        context_names: which features the network sees as context.
        weight_names: arrays that a checkpoint must hold.
    """

    embeddings: Callable[..., Any]
    costs: Callable[..., Any]
    context_names: tuple[str, ...]
    weight_names: frozenset[str]

    def inputs(self, features: ShardFeatures) -> tuple[FloatArray, FloatArray]:
        """Work (S, P) and context (S, F) before normalisation."""
        return features.work, features.raw if self.context_names == tuple(RAW_FEATURES) else features.context


def _layers(*names: str) -> set[str]:
    return {f"{name}.{part}" for name in names for part in ("weight", "bias")}


ARCHITECTURES: dict[str, Architecture] = {
    "universal": Architecture(
        architectures.universal_embeddings,
        architectures.universal_costs,
        tuple(CONTEXT_FEATURES),
        frozenset(
            _layers("in", "mid", "out")
            | {"log_price", "log_launch", "once.terms", "once.log_cost", "gate.log_weight", "gate.bias"}
        ),
    ),
    "paper": Architecture(
        architectures.paper_embeddings,
        architectures.paper_costs,
        tuple(RAW_FEATURES),
        frozenset(_layers("table.in", "table.out", "head.in", "head.out") | {"cost_scale", "cost_mean"}),
    ),
}


@dataclass(frozen=True)
class ComputeCostModel:
    """Predicts the cost of shard sets from sums of shard embeddings; NumPy only.

    A search embeds every shard once, adds embeddings up as it places shards, and asks for the cost of millions of
    sums.

    Attributes:
        architecture: a key of `ARCHITECTURES`.
        weights: float64 arrays of that architecture, ensemble members first.
        normalisation: scaling of the features.
        batch_size: the global batch that most training samples had.
        calibration: of the prediction intervals; None before it is calibrated, which training does.
        provenance: hardware, data versions and training settings, JSON values.
    """

    architecture: str
    weights: dict[str, FloatArray]
    normalisation: Normalisation
    batch_size: int
    calibration: Calibration | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> int:
        """Networks in the ensemble."""
        return next(iter(self.weights.values())).shape[0]

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int, optimizer: str = "sgd") -> FloatArray:
        """What each shard adds to the sums of its rank: (S, H), non-negative; batch and optimizer are the task's."""
        kind = ARCHITECTURES[self.architecture]
        features = shard_features(shards, batch_size, optimizer)
        work, context = kind.inputs(features)
        scaled = self.normalisation.work(work), self.normalisation.context(context)
        by_member = kind.embeddings(np, self.weights, *scaled)  # (E, S, C)
        embeddings = np.zeros((len(shards), by_member.shape[0] * by_member.shape[2] + 1))
        embeddings[:, :-1] = np.moveaxis(by_member, 0, 1).reshape(len(shards), -1)
        if self.calibration is not None:
            alone_ms = self.costs_from_sums(embeddings, batch_size).sum(axis=-1)
            embeddings[:, -1] = alone_ms * self.calibration.overshoot(features.context)
        return embeddings

    def costs_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:  # noqa: ARG002
        """Forward and backward cost in ms of shard sets, given the sums of their embeddings.

        Args:
            sums: (..., H).
            batch_size: the global batch that the embeddings were made for, which already holds all its effect.

        Returns:
            (..., 2). The sum of no shards at all is a launch without work; whoever places shards knows that an
            empty rank launches nothing and costs 0.
        """
        costs = [by_member.mean(axis=0) for _, by_member in self._member_costs(sums)]
        return _joined(costs, sums)

    def interval_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:
        """Lower and upper bound in ms (..., 2) of forward + backward, between which 90 % of measurements lie.

        See `costs_and_interval_from_sums`.
        """
        return self.costs_and_interval_from_sums(sums, batch_size)[1]

    def costs_and_interval_from_sums(self, sums: FloatArray, batch_size: int) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002
        """`costs_from_sums` and `interval_from_sums` in one pass.

        The interval is wide where the ensemble's members disagree, and grows with how far the shards, weighted by
        their cost, or the cost of all of them lie outside the training range (`intervals.Calibration`).

        Raises:
            CostModelError: the model is not calibrated.
        """
        calibration = self._calibrated()
        costs, intervals = [], []
        for chunk, by_member in self._member_costs(sums):
            total_by_member = by_member.sum(axis=-1)  # (E, N)
            total = np.maximum(total_by_member.mean(axis=0), 0.0)
            overshoot = chunk[:, -1] / np.maximum(total, SMALLEST_MS)
            costs.append(by_member.mean(axis=0))
            intervals.append(calibration.interval(total, member_spread(total_by_member), overshoot))
        return _joined(costs, sums), _joined(intervals, sums)

    def _member_costs(self, sums: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Chunks of the sums (N, H), and what every member says that they cost (E, N, 2)."""
        flat = np.asarray(sums, dtype=np.float64).reshape(-1, sums.shape[-1])
        for start in range(0, max(len(flat), 1), _CHUNK_SETS):
            chunk = flat[start : start + _CHUNK_SETS]
            width = (flat.shape[1] - 1) // self.members  # not -1, which is undefined where N is 0
            by_member = np.moveaxis(chunk[:, :-1].reshape(len(chunk), self.members, width), 1, 0)  # (E, N, C)
            yield chunk, ARCHITECTURES[self.architecture].costs(np, self.weights, by_member)

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise CostModelError(f"this compute cost model has no calibrated intervals; {checkpoint.REMEDY}")
        return self.calibration

    def predict(self, samples: Sequence[Sequence[Shard]], batch_size: int, optimizer: str = "sgd") -> FloatArray:
        """Forward and backward cost in ms of every sample's shards: (N, 2); 0 for a sample without shards."""
        counts = [len(sample) for sample in samples]
        if not any(counts):
            return np.zeros((len(samples), architectures.DIRECTIONS))
        embeddings = self.shard_embeddings([shard for sample in samples for shard in sample], batch_size, optimizer)
        costs = self.costs_from_sums(segment_sums(embeddings, counts), batch_size)
        costs[np.array(counts) == 0] = 0.0
        return costs

    def member_totals(self, samples: Sequence[Sequence[Shard]], batch_size: int, optimizer: str = "sgd") -> FloatArray:
        """Forward + backward ms of every sample's shards as every member predicts them: (E, N)."""
        embeddings = self.shard_embeddings([shard for sample in samples for shard in sample], batch_size, optimizer)
        sums = segment_sums(embeddings, [len(sample) for sample in samples])
        return np.concatenate([by_member.sum(axis=-1) for _, by_member in self._member_costs(sums)], axis=1)

    def interval(self, samples: Sequence[Sequence[Shard]], batch_size: int, optimizer: str = "sgd") -> FloatArray:
        """Lower and upper bound in ms of forward + backward of every sample's shards: (N, 2); 0 without shards."""
        counts = [len(sample) for sample in samples]
        if not any(counts):
            return np.zeros((len(samples), 2))
        embeddings = self.shard_embeddings([shard for sample in samples for shard in sample], batch_size, optimizer)
        bounds = self.interval_from_sums(segment_sums(embeddings, counts), batch_size)
        bounds[np.array(counts) == 0] = 0.0
        return bounds

    def save(self, folder: Path | str) -> None:
        """Write `model.json` and `weights.safetensors` into `folder`.

        Raises:
            CostModelError: the model is not calibrated.
        """
        description = {
            "architecture": self.architecture,
            "work_terms": list(WORK_TERMS),
            "context_features": list(ARCHITECTURES[self.architecture].context_names),
            "batch_size": self.batch_size,
            "provenance": self.provenance,
        }
        scaling = self.normalisation.arrays("normalisation.")
        arrays = {**self.weights, **scaling, **self._calibrated().arrays("calibration.")}
        checkpoint.save_checkpoint(folder, "ComputeCostModel", description, arrays)

    @classmethod
    def load(cls, folder: Path | str) -> ComputeCostModel:
        """Read what `save` wrote; predicts identically.

        Raises:
            CostModelError: missing, truncated or incompatible files; names file and remedy.
        """
        description, arrays = checkpoint.load_checkpoint(folder, "ComputeCostModel")
        name = checkpoint.described(description, "architecture", folder)
        if name not in ARCHITECTURES:
            raise CostModelError(f"{folder}: architecture {name!r} is unknown; {checkpoint.REMEDY}")
        kind = ARCHITECTURES[name]
        expected = {"work_terms": list(WORK_TERMS), "context_features": list(kind.context_names)}
        checkpoint.require_features(description, expected, folder)
        scaling = {f"normalisation.{part}" for part in NORMALISATION_FIELDS}
        scaling |= {f"calibration.{part}" for part in CALIBRATION_FIELDS}
        checkpoint.require_weights(arrays, kind.weight_names | scaling, folder)
        return cls(
            architecture=name,
            weights={key: value for key, value in arrays.items() if key not in scaling},
            normalisation=Normalisation.from_arrays(arrays, "normalisation."),
            batch_size=int(checkpoint.described(description, "batch_size", folder)),
            calibration=Calibration.from_arrays(arrays, "calibration."),
            provenance=checkpoint.described(description, "provenance", folder),
        )


def _joined(chunks: list[FloatArray], sums: FloatArray) -> FloatArray:
    """Chunks (N, 2) as one non-negative array (..., 2), shaped as the sums that they came from."""
    return np.maximum(np.concatenate(chunks), 0.0).reshape(*sums.shape[:-1], 2)
