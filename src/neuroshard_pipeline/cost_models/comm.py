"""The communication cost model predicts what an all-to-all costs every rank, for any world size.

A single rank communicates with nobody: its costs are exactly 0. TorchRec does not start a collective among one rank.

Shapes: E ensemble members, R ranks of all collectives, W ranks of one collective, `...` any number of collectives,
P work terms, F context features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.cost_models import checkpoint
from neuroshard_pipeline.cost_models.comm_features import (
    COMM_CONTEXT_FEATURES,
    COMM_DIRECTIONS,
    COMM_WORK_TERMS,
    comm_features,
)
from neuroshard_pipeline.cost_models.intervals import member_spread
from neuroshard_pipeline.cost_models.network import (
    ARCHITECTURE,
    CORRECTION_WEIGHTS,
    Array,
    Network,
    Weights,
    Xp,
    correction,
)
from neuroshard_pipeline.errors import CostModelError

COMM_WEIGHTS = CORRECTION_WEIGHTS | {"log_price"}

#: Number of distinct contexts whose corrections are computed together, so that hidden layers stay in the level-2 cache.
#: 100 collectives of 128 ranks then take 60 % of the time that they take without chunks, or with chunks of 1,024.
_CHUNK_CONTEXTS = 256

#: Largest accepted sum of widths: that of about 6,100 tables of the largest width, 16,384. No rank holds so many.
MAX_DIM_SUM = 1e8


def rank_costs(xp: Xp, weights: Weights, work: Array, context: Array) -> Array:
    """Costs of one direction of an all-to-all, rank by rank.

    `cost = wait * factor_0 + (transfer work @ price) * factor_1` with two learned factors. The first summand is the
    part of the wait for the last rank that the rank's transfers do not fill; the second is the cost of these transfers.

    Args:
        xp: array module.
        weights: `log_price` (E, P - 1, 1), and the weights of `network.correction` with 2 outputs.
        work: (R, P), the wait in ms first, then the transfer work.
        context: (R, F), standardised.

    Returns:
        (E, R) in ms.
    """
    return _corrected(xp, weights, work, correction(xp, weights, context))


def _corrected(xp: Xp, weights: Weights, work: Array, factors: Array) -> Array:
    """The sum that `rank_costs` states, (E, R), with factors (E, R, 2)."""
    transfer = (work[..., 1:] @ xp.exp(weights["log_price"]))[..., 0]
    return work[..., 0] * factors[..., 0] + transfer * factors[..., 1]


@dataclass(frozen=True)
class CommCostModel:
    """Predicts forward and backward all-to-all costs; needs NumPy only.

    Attributes:
        networks: one per direction of `COMM_DIRECTIONS`, with the weights `COMM_WEIGHTS`.
        batch_size: global batch size of most training samples.
        world_sizes: world sizes of the training samples, ascending.
        provenance: hardware, data versions and training settings, JSON values.
        bandwidth: how many times as fast the links are as those of the samples; not saved. x bytes then take as long as
            x / bandwidth bytes.
    """

    networks: dict[str, Network]
    batch_size: int
    world_sizes: tuple[int, ...]
    provenance: dict[str, Any] = field(default_factory=dict)
    bandwidth: float = 1.0

    def predict(self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int) -> tuple[FloatArray, FloatArray]:
        """Forward and backward cost in ms of every rank, (..., W) each, from its own start until it has all data.

        The backward collective starts when the dense model's gradients are ready, on all ranks at the same time. Its
        cost therefore does not depend on the start skew.

        Args:
            dim_sums: (..., W) summed widths of each rank's shards.
            start_skew_ms: (..., W) how much later than the first rank each rank enters the forward collective.
            batch_size: global batch size.

        Raises:
            CostModelError: shapes differ, or a value is out of range.
        """
        return self.forward_ms(dim_sums, start_skew_ms, batch_size), self.backward_ms(dim_sums, batch_size)

    def forward_ms(
        self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int, ranks: IntArray | None = None
    ) -> FloatArray:
        """The forward half of `predict`; with `ranks` (..., K), only the costs of these ranks, (..., K)."""
        return self._evaluate("forward", dim_sums, start_skew_ms, batch_size, ranks)[0].mean(axis=0)

    def backward_ms(self, dim_sums: ArrayLike, batch_size: int) -> FloatArray:
        """The backward half of `predict`."""
        return self.member_costs("backward", dim_sums, None, batch_size).mean(axis=0)

    def forward_interval_ms(self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int) -> FloatArray:
        """90 % prediction interval of every rank's forward cost: lower and upper bound in ms (..., W, 2).

        An interval is wide if the ensemble members disagree, and widens with the distance of a rank's context from the
        training range (`intervals.Calibration`). It treats the start skews as exact.

        Raises:
            CostModelError: as `predict`, or the model is not calibrated.
        """
        return self._interval("forward", dim_sums, start_skew_ms, batch_size)

    def backward_interval_ms(self, dim_sums: ArrayLike, batch_size: int) -> FloatArray:
        """90 % prediction interval of every rank's backward cost (..., W, 2); see `forward_interval_ms`."""
        return self._interval("backward", dim_sums, None, batch_size)

    def member_costs(
        self, direction: str, dim_sums: ArrayLike, start_skew_ms: ArrayLike | None, batch_size: int
    ) -> FloatArray:
        """Cost of every rank in ms, predicted by each member: (E, ..., W); start skews of None mean 0."""
        return self._evaluate(direction, dim_sums, start_skew_ms, batch_size)[0]

    def _interval(
        self, direction: str, dim_sums: ArrayLike, start_skew_ms: ArrayLike | None, batch_size: int
    ) -> FloatArray:
        calibration = self.networks[direction].calibrated
        by_member, context = self._evaluate(direction, dim_sums, start_skew_ms, batch_size)
        return calibration.interval(by_member.mean(axis=0), member_spread(by_member), calibration.overshoot(context))

    def _evaluate(
        self,
        direction: str,
        dim_sums: ArrayLike,
        start_skew_ms: ArrayLike | None,
        batch_size: int,
        ranks: IntArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Costs by member (E, ..., W), and the context (..., W, F), of every rank or of the `ranks` (..., K)."""
        dims = np.asarray(dim_sums, dtype=np.float64) / self.bandwidth
        skew = np.zeros_like(dims) if start_skew_ms is None else np.asarray(start_skew_ms, dtype=np.float64)
        _require_valid(dims, skew, batch_size)
        network = self.networks[direction]
        work, context = comm_features(dims, skew, batch_size, direction, ranks_per_host_of(self.provenance), ranks)
        if dims.shape[-1] == 1:
            return np.zeros((network.members, *work.shape[:-1])), context
        from neuroshard_pipeline.cost_models.compiled_price import distinct_rows  # imported late: numba takes 0.3 s

        rows = context.reshape(-1, context.shape[-1])
        first, place = distinct_rows(rows, rows.shape[-1])  # in a backward all-to-all, most contexts of ranks are equal
        distinct = network.normalisation.context(rows[first])
        chunks = [slice(at, at + _CHUNK_CONTEXTS) for at in range(0, max(len(distinct), 1), _CHUNK_CONTEXTS)]
        factors = np.concatenate([correction(np, network.weights, distinct[chunk]) for chunk in chunks], axis=1)
        scaled_work = network.normalisation.work(work).reshape(-1, work.shape[-1])
        costs = _corrected(np, network.weights, scaled_work, factors[:, place])  # (E, R)
        return costs.reshape(len(costs), *work.shape[:-1]), context

    def save(self, folder: Path | str) -> None:
        """Write `model.json` and `weights.safetensors` into `folder`.

        Raises:
            CostModelError: the model is not calibrated.
        """
        description = {
            **_FORMULA,
            "batch_size": self.batch_size,
            "world_sizes": list(self.world_sizes),
            "provenance": self.provenance,
        }
        arrays: dict[str, FloatArray] = {}
        for direction, network in self.networks.items():
            arrays |= network.arrays(f"{direction}.")
        checkpoint.save_checkpoint(folder, "CommCostModel", description, arrays)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read the files that `save` wrote; the loaded model predicts identically.

        Raises:
            CostModelError: missing, truncated or incompatible files; the message names file and remedy.
        """
        stored = checkpoint.load_checkpoint(folder, "CommCostModel")
        stored.require(_FORMULA)
        return cls(
            networks={name: Network.from_checkpoint(stored, COMM_WEIGHTS, f"{name}.") for name in COMM_DIRECTIONS},
            batch_size=int(stored.field("batch_size")),
            world_sizes=tuple(stored.field("world_sizes")),
            provenance=stored.field("provenance"),
        )


#: Fields of `model.json` that must match the code.
_FORMULA = {
    "architecture": ARCHITECTURE,
    "work_terms": list(COMM_WORK_TERMS),
    "context_features": list(COMM_CONTEXT_FEATURES),
}


def ranks_per_host_of(provenance: Mapping[str, Any]) -> int | None:
    """Ranks per host from a model's provenance; None unless its hardware is a modelled cluster."""
    hardware = provenance.get("hardware")
    topology = hardware.get("topology") if isinstance(hardware, Mapping) else None
    return int(topology["gpus_per_host"]) if topology else None


def _require_valid(dims: FloatArray, skew: FloatArray, batch_size: int) -> None:
    if dims.shape != skew.shape or dims.ndim == 0 or dims.shape[-1] == 0:
        raise CostModelError(f"dim_sums {dims.shape} and start_skew_ms {skew.shape} must both be (..., world_size)")
    if not (skew >= 0).all():  # also refuses NaN
        raise CostModelError("start_skew_ms, the delay of each rank after the first one, must be at least 0")
    if batch_size < 1:
        raise CostModelError(f"batch_size {batch_size} must be at least 1")
    if not ((dims >= 0) & (dims <= MAX_DIM_SUM)).all():
        raise CostModelError(f"dim_sums must be widths between 0 and {MAX_DIM_SUM:g}, got {dims}")
