"""The compute cost model: forward and backward cost of one fused lookup of a rank's shards.

`embed` maps each shard to a *shard embedding*, a vector of non-negative numbers that describes its cost; it is not a
row of the table. `price` maps the sum of a rank's shard embeddings to costs. Training runs both on torch; a search runs
`embed` on NumPy, and `price` as a compiled loop (`compiled_price`).

Shapes: S shards, N shard sets, E ensemble members, P work terms, F context features, D = 2 directions (forward,
backward), G gates, K pressures, L launch terms (all three as in `price`). Each member describes a shard by
C = D * (1 + G) + K + L numbers, the *channels*. An embedding of `shard_embeddings` has H = E * C + 1 numbers: the
channels of all members, then the shard's own cost times its overshoot, which is how far the shard lies outside the
training range.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models import checkpoint
from neuroshard_pipeline.cost_models.compute_features import CONTEXT_FEATURES, WORK_TERMS, segment_sums, shard_features
from neuroshard_pipeline.cost_models.intervals import SMALLEST_MS, member_spread
from neuroshard_pipeline.cost_models.network import (
    ARCHITECTURE,
    CORRECTION_WEIGHTS,
    Array,
    Network,
    Weights,
    Xp,
    correction,
    sigmoid,
)
from neuroshard_pipeline.tables.table import Shard

DIRECTIONS = 2

COMPUTE_WEIGHTS = CORRECTION_WEIGHTS | {
    "log_price", "log_launch", "once.terms", "once.log_cost", "gate.log_weight", "gate.bias",
}  # fmt: skip

#: Added to summed pressures before their logarithm is taken; the pressure of an average shard is about 1.
_PRESSURE_FLOOR = 1e-6

#: Far smaller than any positive scaled work, so that work / (work + `_NO_WORK`) is 1 for any work and 0 without work.
_NO_WORK = 1e-9


def embed(xp: Xp, weights: Weights, work: Array, context: Array) -> Array:
    """Embeddings of shards: what each shard adds to the channels of its rank.

    `embedding = (work @ price) * correction(context)`. A launch term is a work term that also adds a cost per launch of
    the fused lookup. Each has one of the last L channels, which is 1 if the shard has work of this term, otherwise 0.

    Args:
        xp: array module.
        weights: `log_price` (E, P, C - L), the weights of `network.correction` with C - L outputs, and `once.terms`
            (E, P, L), which is 1 at the launch terms and 0 elsewhere.
        work: (S, P), non-negative.
        context: (S, F), standardised.

    Returns:
        (E, S, C), all non-negative.
    """
    priced = (work @ xp.exp(weights["log_price"])) * correction(xp, weights, context)
    marked = work @ weights["once.terms"]
    return xp.concatenate([priced, marked / (marked + _NO_WORK)], axis=-1)


def price(xp: Xp, weights: Weights, sums: Array) -> Array:
    """Costs of shard sets from their summed embeddings; a cost never falls when numbers of the sum rise.

    `cost = launch + launch terms + base + sum over gates of gated * sigmoid(gate)`. The launch and the launch
    terms are counted once for any number of shards. Optimizer state is a launch term, because it makes every launch
    pass more tensors. The base is a sum over all shards. A gated part is multiplied by the opening of its gate,
    between 0 and 1, which grows with the pressure of the whole set (for example, on the caches). Sets far larger than
    any training sample open all gates, so that the costs of their shards add up.

    Args:
        xp: array module.
        weights: `log_launch` (E, 1, D), `once.log_cost` (E, L, D), `gate.log_weight` (E, K, D * G), `gate.bias`
            (E, 1, D * G).
        sums: (E, N, C).

    Returns:
        (E, N, D) in ms.
    """
    gates = weights["gate.bias"].shape[-1] // DIRECTIONS
    pressures, once = weights["gate.log_weight"].shape[-2], weights["once.log_cost"].shape[-2]
    pressure = xp.log(sums[..., -pressures - once : -once] + _PRESSURE_FLOOR)
    opened = sigmoid(xp, pressure @ xp.exp(weights["gate.log_weight"]) + weights["gate.bias"])  # (E, N, D * G)
    gated = sums[..., DIRECTIONS : DIRECTIONS * (1 + gates)] * opened
    absent = 1.0 - sums[..., -once:]
    present = 1.0 - xp.maximum(absent, 0.0 * absent)  # 1 as soon as one shard has the launch term
    total = sums[..., :DIRECTIONS] + xp.exp(weights["log_launch"]) + present @ xp.exp(weights["once.log_cost"])
    for gate in range(gates):
        total = total + gated[..., gate * DIRECTIONS : (gate + 1) * DIRECTIONS]
    return total


@dataclass(frozen=True)
class ComputeCostModel:
    """Predicts the costs of shard sets from sums of shard embeddings; needs no torch.

    A search embeds every shard once, adds embeddings up as it places shards, and prices millions of sums.

    Attributes:
        network: the trained network; its weights have the names `COMPUTE_WEIGHTS`.
        batch_size: global batch size of most training samples.
        provenance: hardware, data versions and training settings, JSON values.
    """

    network: Network
    batch_size: int
    provenance: dict[str, Any] = field(default_factory=dict)

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int, optimizer: str = "sgd") -> FloatArray:
        """Embeddings (S, H) of shards, all non-negative, for the batch size and optimizer of a task."""
        if len(shards) == 1:  # BLAS rounds differently if a matrix has a single row
            return self.shard_embeddings([*shards, *shards], batch_size, optimizer)[:1]
        work, context = shard_features(shards, batch_size, optimizer)
        scaling, calibration = self.network.normalisation, self.network.calibration
        by_member = embed(np, self.network.weights, scaling.work(work), scaling.context(context))  # (E, S, C)
        embeddings = np.zeros((len(shards), by_member.shape[0] * by_member.shape[2] + 1))
        embeddings[:, :-1] = np.moveaxis(by_member, 0, 1).reshape(len(shards), -1)
        if calibration is not None:
            alone_ms = self.costs_from_sums(embeddings, batch_size).sum(axis=-1)
            embeddings[:, -1] = alone_ms * calibration.overshoot(context)
        return embeddings

    def costs_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:  # noqa: ARG002
        """Forward and backward cost in ms of shard sets, given the sums of their embeddings.

        Args:
            sums: (..., H).
            batch_size: global batch size; ignored, because the embeddings already contain its whole effect.

        Returns:
            (..., 2). A sum of zeros has the cost of a launch without work; the caller must give empty ranks the cost 0.
        """
        by_member = self._member_costs(sums)
        return np.maximum(by_member.sum(axis=0) / len(by_member), 0.0).reshape(*sums.shape[:-1], DIRECTIONS)

    def interval_from_sums(self, sums: FloatArray, batch_size: int) -> FloatArray:  # noqa: ARG002
        """90 % prediction intervals of forward + backward cost: lower and upper bound in ms (..., 2).

        An interval is wide if the ensemble members disagree. It also widens with the cost-weighted overshoot of the
        shards, and if the total cost exceeds all training costs (`intervals.Calibration`). Arguments are those of
        `costs_from_sums`.

        Raises:
            CostModelError: the model is not calibrated.
        """
        by_member = self._member_costs(sums).sum(axis=-1)
        total = np.maximum(by_member.mean(axis=0), 0.0)
        overshoot = sums[..., -1].reshape(-1) / np.maximum(total, SMALLEST_MS)
        bounds = self.network.calibrated.interval(total, member_spread(by_member), overshoot)
        return np.maximum(bounds, 0.0).reshape(*sums.shape[:-1], 2)

    def predict(self, samples: Sequence[Sequence[Shard]], batch_size: int, optimizer: str = "sgd") -> FloatArray:
        """Forward and backward cost in ms of every sample's shards: (N, 2); 0 for a sample without shards."""
        return self._per_sample(self.costs_from_sums, samples, batch_size, optimizer)

    def interval(self, samples: Sequence[Sequence[Shard]], batch_size: int, optimizer: str = "sgd") -> FloatArray:
        """90 % prediction interval in ms of the forward + backward cost of every sample: (N, 2); 0 without shards."""
        return self._per_sample(self.interval_from_sums, samples, batch_size, optimizer)

    def member_totals(self, samples: Sequence[Sequence[Shard]], batch_size: int, optimizer: str = "sgd") -> FloatArray:
        """Forward + backward cost in ms of every sample, predicted by each member: (E, N)."""
        return self._member_costs(self._sums(samples, batch_size, optimizer)).sum(axis=-1)

    def _per_sample(
        self,
        evaluate: Callable[[FloatArray, int], FloatArray],
        samples: Sequence[Sequence[Shard]],
        batch_size: int,
        optimizer: str,
    ) -> FloatArray:
        """Results of `evaluate` for the summed embeddings of every sample: (N, 2); samples without shards get 0."""
        if not any(samples):
            return np.zeros((len(samples), 2))
        values = evaluate(self._sums(samples, batch_size, optimizer), batch_size)
        values[[not sample for sample in samples]] = 0.0
        return values

    def _sums(self, samples: Sequence[Sequence[Shard]], batch_size: int, optimizer: str) -> FloatArray:
        """Summed embeddings of every sample: (N, H)."""
        embeddings = self.shard_embeddings([shard for sample in samples for shard in sample], batch_size, optimizer)
        return segment_sums(embeddings, [len(sample) for sample in samples])

    def _member_costs(self, sums: FloatArray) -> FloatArray:
        """Forward and backward cost of every sum by every member: (E, N, 2)."""
        from neuroshard_pipeline.cost_models.compiled_price import member_costs  # imported late: numba takes 0.3 s

        rows = np.ascontiguousarray(sums, dtype=np.float64).reshape(-1, sums.shape[-1])
        return np.asarray(member_costs(rows, *self._price))

    @cached_property
    def _price(self) -> tuple[float, FloatArray, FloatArray, FloatArray, FloatArray]:
        """The arguments of `member_costs` after the first one."""
        weights = self.network.weights
        launch, once, weight = (np.exp(weights[name]) for name in ("log_launch", "once.log_cost", "gate.log_weight"))
        return _PRESSURE_FLOOR, launch, once, weight, np.array(weights["gate.bias"])

    def save(self, folder: Path | str) -> None:
        """Write `model.json` and `weights.safetensors` into `folder`.

        Raises:
            CostModelError: the model is not calibrated.
        """
        description = {**_FORMULA, "batch_size": self.batch_size, "provenance": self.provenance}
        checkpoint.save_checkpoint(folder, "ComputeCostModel", description, self.network.arrays())

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read the files that `save` wrote; the loaded model predicts identically.

        Raises:
            CostModelError: a file is missing, truncated or incompatible; the message names file and remedy.
        """
        stored = checkpoint.load_checkpoint(folder, "ComputeCostModel")
        stored.require(_FORMULA)
        network = Network.from_checkpoint(stored, COMPUTE_WEIGHTS)
        return cls(network, int(stored.field("batch_size")), stored.field("provenance"))


#: Fields of `model.json` that must match the code.
_FORMULA = {"architecture": ARCHITECTURE, "work_terms": list(WORK_TERMS), "context_features": list(CONTEXT_FEATURES)}
