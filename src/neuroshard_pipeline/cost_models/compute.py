"""The compute cost model: what one fused lookup of a rank's shards costs, forward and backward apart.

Shapes: S shards, N shard sets, E ensemble members, C channels per member, H = E * C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    segment_sums,
    shard_features,
)
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

    def inputs(self, shards: Sequence[Shard], batch_size: int) -> tuple[FloatArray, FloatArray]:
        """Work (S, P) and context (S, F) before normalisation."""
        features = shard_features(shards, batch_size)
        return features.work, features.raw if self.context_names == tuple(RAW_FEATURES) else features.context


def _layers(*names: str) -> set[str]:
    return {f"{name}.{part}" for name in names for part in ("weight", "bias")}


ARCHITECTURES: dict[str, Architecture] = {
    "universal": Architecture(
        architectures.universal_embeddings,
        architectures.universal_costs,
        tuple(CONTEXT_FEATURES),
        frozenset(_layers("in", "mid", "out") | {"log_price", "log_launch", "gate.log_weight", "gate.bias"}),
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
        provenance: hardware, data versions and training settings, JSON values.
    """

    architecture: str
    weights: dict[str, FloatArray]
    normalisation: Normalisation
    batch_size: int
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> int:
        """Networks in the ensemble."""
        return next(iter(self.weights.values())).shape[0]

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int) -> FloatArray:
        """What each shard adds to the sums of its rank: (S, H), non-negative."""
        kind = ARCHITECTURES[self.architecture]
        work, context = kind.inputs(shards, batch_size)
        scaled = self.normalisation.work(work), self.normalisation.context(context)
        embeddings = kind.embeddings(np, self.weights, *scaled)  # (E, S, C)
        return np.ascontiguousarray(np.moveaxis(embeddings, 0, 1)).reshape(len(shards), -1)

    def costs_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:  # noqa: ARG002
        """Forward and backward cost in ms of shard sets, given the sums of their embeddings.

        Args:
            sums: (..., H).
            batch_size: the global batch that the embeddings were made for, which already holds all its effect.

        Returns:
            (..., 2). The sum of no shards at all is a launch without work; whoever places shards knows that an
            empty rank launches nothing and costs 0.
        """
        flat = np.asarray(sums, dtype=np.float64).reshape(-1, self.members, sums.shape[-1] // self.members)
        costs = np.empty((len(flat), architectures.DIRECTIONS))
        for start in range(0, len(flat), _CHUNK_SETS):
            by_member = np.moveaxis(flat[start : start + _CHUNK_SETS], 1, 0)  # (E, N, C)
            chunk = ARCHITECTURES[self.architecture].costs(np, self.weights, by_member)
            costs[start : start + _CHUNK_SETS] = chunk.mean(axis=0)
        return np.maximum(costs, 0.0).reshape(*sums.shape[:-1], architectures.DIRECTIONS)

    def predict(self, samples: Sequence[Sequence[Shard]], batch_size: int) -> FloatArray:
        """Forward and backward cost in ms of every sample's shards: (N, 2); 0 for a sample without shards."""
        counts = [len(sample) for sample in samples]
        if not any(counts):
            return np.zeros((len(samples), architectures.DIRECTIONS))
        embeddings = self.shard_embeddings([shard for sample in samples for shard in sample], batch_size)
        costs = self.costs_from_sums(segment_sums(embeddings, counts), batch_size)
        costs[np.array(counts) == 0] = 0.0
        return costs

    def save(self, folder: Path | str) -> None:
        """Write `model.json` and `weights.safetensors` into `folder`."""
        description = {
            "architecture": self.architecture,
            "work_terms": list(WORK_TERMS),
            "context_features": list(ARCHITECTURES[self.architecture].context_names),
            "batch_size": self.batch_size,
            "provenance": self.provenance,
        }
        arrays = {**self.weights, **self.normalisation.arrays("normalisation.")}
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
        checkpoint.require_weights(arrays, kind.weight_names | scaling, folder)
        return cls(
            architecture=name,
            weights={key: value for key, value in arrays.items() if key not in scaling},
            normalisation=Normalisation.from_arrays(arrays, "normalisation."),
            batch_size=int(checkpoint.described(description, "batch_size", folder)),
            provenance=checkpoint.described(description, "provenance", folder),
        )
