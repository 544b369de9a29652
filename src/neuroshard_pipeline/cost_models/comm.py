"""The communication cost model: what every rank pays for an all-to-all, for any world size.

Shapes: W ranks of a collective, `...` any number of collectives, P work terms, F context features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neuroshard_pipeline.cost_models import architectures, checkpoint
from neuroshard_pipeline.cost_models.comm_features import (
    COMM_CONTEXT_FEATURES,
    COMM_DIRECTIONS,
    COMM_WORK_TERMS,
    FloatArray,
    comm_features,
    paper_comm_features,
)
from neuroshard_pipeline.cost_models.intervals import CALIBRATION_FIELDS, Calibration, member_spread
from neuroshard_pipeline.cost_models.normalisation import NORMALISATION_FIELDS, Normalisation
from neuroshard_pipeline.errors import CostModelError

#: Ranks whose costs are computed together: their hidden layers stay in the level-2 cache. 330 collectives of 8 ranks
#: take 3.8 ms instead of 8.6 on one core of an AMD EPYC.
_CHUNK_RANKS = 1024

#: More columns than any rank holds: 5,000 tables of the widest kind.
MAX_DIM_SUM = 1e8


@dataclass(frozen=True)
class CommNetwork:
    """The network of one direction.

    Attributes:
        weights: members first.
        normalisation: scaling of its features.
        calibration: of its prediction intervals; None before it is calibrated, which training does.
    """

    weights: dict[str, FloatArray]
    normalisation: Normalisation
    calibration: Calibration | None = None


@dataclass(frozen=True)
class CommCostModel:
    """Predicts forward and backward all-to-all costs; NumPy only.

    Attributes:
        architecture: `universal`, or `paper` for the fixed-size rival.
        networks: per direction of `COMM_DIRECTIONS`.
        batch_size: the global batch that most training samples had.
        world_sizes: world sizes trained on, ascending; `paper` has one and refuses all others.
        provenance: hardware, data versions and training settings, JSON values.
    """

    architecture: str
    networks: dict[str, CommNetwork]
    batch_size: int
    world_sizes: tuple[int, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks_per_host(self) -> int | None:
        """Of the cluster that was trained on; None where all ranks were on one host."""
        return ranks_per_host_of(self.provenance)

    def predict(self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int) -> tuple[FloatArray, FloatArray]:
        """Forward and backward cost in ms of every rank, from its own start until it has everything.

        The backward collective follows the dense model's gradients, which all ranks have at once: its cost does
        not depend on the start skew.

        Args:
            dim_sums: (..., W).
            start_skew_ms: (..., W) of the forward collective.
            batch_size: global batch.

        Returns:
            Two arrays (..., W).

        Raises:
            CostModelError: shapes differ, or `paper` is asked for a world size that it was not trained on.
        """
        return self.forward_ms(dim_sums, start_skew_ms, batch_size), self.backward_ms(dim_sums, batch_size)

    def forward_ms(self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int) -> FloatArray:
        """The forward half of `predict`."""
        return self._costs("forward", *_forward_inputs(dim_sums, start_skew_ms), batch_size)

    def backward_ms(self, dim_sums: ArrayLike, batch_size: int) -> FloatArray:
        """The backward half of `predict`."""
        return self._costs("backward", *_backward_inputs(dim_sums), batch_size)

    def forward_interval_ms(self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int) -> FloatArray:
        """Lower and upper bound of every rank's forward cost (..., W, 2), between which 90 % of measurements lie.

        The interval is wide where the members disagree, and grows with how far a rank's context lies outside the
        training range (`intervals.Calibration`). It takes the start skews as given.

        Raises:
            CostModelError: as `predict`, or the model is not calibrated.
        """
        return self._interval("forward", *_forward_inputs(dim_sums, start_skew_ms), batch_size)

    def backward_interval_ms(self, dim_sums: ArrayLike, batch_size: int) -> FloatArray:
        """Lower and upper bound of every rank's backward cost (..., W, 2); see `forward_interval_ms`."""
        return self._interval("backward", *_backward_inputs(dim_sums), batch_size)

    def member_costs(
        self, direction: str, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int
    ) -> FloatArray:
        """Cost of every rank in ms as every member predicts it: (E, ..., W)."""
        dims = np.asarray(dim_sums, dtype=np.float64)
        return self._evaluate(direction, dims, np.asarray(start_skew_ms, dtype=np.float64), batch_size)[0]

    def _costs(self, direction: str, dims: FloatArray, skew: FloatArray, batch_size: int) -> FloatArray:
        return self._evaluate(direction, dims, skew, batch_size)[0].mean(axis=0)

    def _interval(self, direction: str, dims: FloatArray, skew: FloatArray, batch_size: int) -> FloatArray:
        calibration = self.networks[direction].calibration
        if calibration is None:
            raise CostModelError(f"this communication cost model has no calibrated intervals; {checkpoint.REMEDY}")
        by_member, context = self._evaluate(direction, dims, skew, batch_size)
        return calibration.interval(by_member.mean(axis=0), member_spread(by_member), calibration.overshoot(context))

    def _evaluate(
        self, direction: str, dims: FloatArray, skew: FloatArray, batch_size: int
    ) -> tuple[FloatArray, FloatArray]:
        """Costs by member (E, ..., W), and the context (..., W, F) of every rank."""
        if batch_size < 1:
            raise CostModelError(f"batch_size {batch_size} must be at least 1")
        if not ((dims >= 0) & (dims <= MAX_DIM_SUM)).all():
            raise CostModelError(f"dim_sums must be widths between 0 and {MAX_DIM_SUM:g}, got {dims}")
        network = self.networks[direction]
        work, context = comm_features(dims, skew, batch_size, direction, self.ranks_per_host)
        if self.architecture == "paper":
            return _paper_costs(network, dims, skew, self.world_sizes[0]), context
        scaled_work = network.normalisation.work(work).reshape(-1, work.shape[-1])
        scaled_context = network.normalisation.context(context).reshape(-1, context.shape[-1])
        chunks = [slice(at, at + _CHUNK_RANKS) for at in range(0, max(len(scaled_work), 1), _CHUNK_RANKS)]
        parts = [
            architectures.comm_costs(np, network.weights, scaled_work[ranks], scaled_context[ranks]) for ranks in chunks
        ]
        costs = np.concatenate(parts, axis=1)  # (E, R)
        return costs.reshape(len(costs), *dims.shape), context

    def save(self, folder: Path | str) -> None:
        """Write `model.json` and `weights.safetensors` into `folder`."""
        description = {
            "architecture": self.architecture,
            "work_terms": list(COMM_WORK_TERMS),
            "context_features": list(COMM_CONTEXT_FEATURES),
            "batch_size": self.batch_size,
            "world_sizes": list(self.world_sizes),
            "provenance": self.provenance,
        }
        arrays: dict[str, NDArray[Any]] = {}
        for direction, network in self.networks.items():
            arrays |= {f"{direction}.{name}": value for name, value in network.weights.items()}
            arrays |= network.normalisation.arrays(f"{direction}.normalisation.")
            if network.calibration is not None:
                arrays |= network.calibration.arrays(f"{direction}.calibration.")
        checkpoint.save_checkpoint(folder, "CommCostModel", description, arrays)

    @classmethod
    def load(cls, folder: Path | str) -> CommCostModel:
        """Read what `save` wrote; predicts identically.

        Raises:
            CostModelError: missing, truncated or incompatible files; names file and remedy.
        """
        description, arrays = checkpoint.load_checkpoint(folder, "CommCostModel")
        expected = {"work_terms": list(COMM_WORK_TERMS), "context_features": list(COMM_CONTEXT_FEATURES)}
        checkpoint.require_features(description, expected, folder)
        architecture = checkpoint.described(description, "architecture", folder)
        if architecture not in COMM_WEIGHT_NAMES:
            raise CostModelError(f"{folder}: architecture {architecture!r} is unknown; {checkpoint.REMEDY}")
        networks = {}
        for direction in COMM_DIRECTIONS:
            scaling = {f"normalisation.{name}" for name in NORMALISATION_FIELDS}
            scaling |= {f"calibration.{name}" for name in CALIBRATION_FIELDS}
            names = COMM_WEIGHT_NAMES[architecture] | scaling
            checkpoint.require_weights(arrays, {f"{direction}.{name}" for name in names}, folder)
            weights = {name: arrays[f"{direction}.{name}"] for name in COMM_WEIGHT_NAMES[architecture]}
            normalisation = Normalisation.from_arrays(arrays, f"{direction}.normalisation.")
            calibration = Calibration.from_arrays(arrays, f"{direction}.calibration.")
            networks[direction] = CommNetwork(weights, normalisation, calibration)
        return cls(
            architecture=architecture,
            networks=networks,
            batch_size=int(checkpoint.described(description, "batch_size", folder)),
            world_sizes=tuple(checkpoint.described(description, "world_sizes", folder)),
            provenance=checkpoint.described(description, "provenance", folder),
        )


COMM_WEIGHT_NAMES: dict[str, frozenset[str]] = {
    "universal": frozenset(
        {f"{layer}.{part}" for layer in ("in", "mid", "out") for part in ("weight", "bias")} | {"log_price"}
    ),
    "paper": frozenset(
        {f"{layer}.{part}" for layer in range(5) for part in ("weight", "bias")} | {"cost_scale", "cost_mean"}
    ),
}


def ranks_per_host_of(provenance: Mapping[str, Any]) -> int | None:
    """Ranks per host of the hardware that a model remembers: those of a modelled cluster, else all on one host."""
    hardware = provenance.get("hardware")
    topology = hardware.get("topology") if isinstance(hardware, Mapping) else None
    return int(topology["gpus_per_host"]) if topology else None


def _forward_inputs(dim_sums: ArrayLike, start_skew_ms: ArrayLike) -> tuple[FloatArray, FloatArray]:
    dims, skew = np.asarray(dim_sums, dtype=np.float64), np.asarray(start_skew_ms, dtype=np.float64)
    if dims.shape != skew.shape or dims.ndim == 0 or dims.shape[-1] == 0:
        raise CostModelError(f"dim_sums {dims.shape} and start_skew_ms {skew.shape} must both be (..., world_size)")
    if not (skew >= 0).all():  # also refuses NaN
        raise CostModelError("start_skew_ms must be at least 0: how much later than the first rank each one enters")
    return dims, skew


def _backward_inputs(dim_sums: ArrayLike) -> tuple[FloatArray, FloatArray]:
    dims = np.asarray(dim_sums, dtype=np.float64)
    if dims.ndim == 0 or dims.shape[-1] == 0:
        raise CostModelError(f"dim_sums {dims.shape} must be (..., world_size)")
    return dims, np.zeros_like(dims)


def _paper_costs(network: CommNetwork, dims: FloatArray, skew: FloatArray, world_size: int) -> FloatArray:
    """(E, ..., W)."""
    if dims.shape[-1] != world_size:
        raise CostModelError(
            f"the communication model of architecture 'paper' was trained for {world_size} ranks and cannot be asked "
            f"for {dims.shape[-1]}; train with architecture: universal, which takes any world size"
        )
    features = network.normalisation.context(paper_comm_features(dims, skew)).reshape(-1, 2 * world_size)
    costs = architectures.paper_comm_costs(np, network.weights, features)
    return np.maximum(costs, 0.0).reshape(-1, *dims.shape)
