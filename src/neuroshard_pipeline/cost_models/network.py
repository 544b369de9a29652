"""The network of the compute and the communication cost model: predicts work * price * correction.

Work features add up. Every work term has a learned price, except the communication model's `wait`, which is in ms.
Context features do not add up; a neural network derives the correction from them (`correction`). Both kinds of features
are scaled (`Normalisation`), again except `wait`.

Formulas are written once for NumPy (inference) and torch (training): `xp` is the array module, `numpy` or `torch`, and
weights are a dict of arrays of this module. The first dimension of every weight is the ensemble members. Weights that
must be positive are stored as logarithms.

Shapes: E ensemble members, R rows (shards or ranks), S training rows, P work terms, F context features, H hidden units.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.checkpoint import REMEDY, ArrayGroup, Checkpoint
from neuroshard_pipeline.cost_models.intervals import Calibration
from neuroshard_pipeline.errors import CostModelError

#: NumPy or torch. Only functions that both have under the same name are used.
Xp = Any
Array = Any
Weights = dict[str, Any]

#: The formulas of this version, as named in `model.json`.
ARCHITECTURE = "universal"

#: Names of the weights that `correction` reads.
CORRECTION_WEIGHTS = frozenset(f"{layer}.{part}" for layer in ("in", "mid", "out") for part in ("weight", "bias"))

#: A correction lies between 1 / 4.5 and 4.5 = e**1.5. The cost of a shard far outside the training range therefore
#: differs by at most this factor from its uncorrected cost, work times price.
MAX_LOG_CORRECTION = 1.5

#: A context feature with at most this standard deviation over the training rows carries no information and is set to 0.
_CONSTANT = 1e-9


@dataclass(frozen=True)
class Normalisation(ArrayGroup):
    """Work is divided by its training mean; context is clipped to its training range and standardised.

    Outside the training range the learned correction therefore keeps its value at the edge of the range, and only the
    additive work continues to grow.

    Attributes:
        work_scale: (P,) divisor of every work term.
        low: (F,) smallest training value of every context feature.
        high: (F,) largest training value.
        mean: (F,) mean training value.
        inverse_scale: (F,) one over the standard deviation; 0 where the feature did not vary.
    """

    work_scale: FloatArray
    low: FloatArray
    high: FloatArray
    mean: FloatArray
    inverse_scale: FloatArray

    @classmethod
    def fit(cls, work: FloatArray, context: FloatArray, unscaled: Sequence[int] = ()) -> Self:
        """The normalisation by the statistics of training rows of work (S, P) and context (S, F).

        The work terms with the indices `unscaled` keep their unit.
        """
        scale = work.mean(axis=0)
        scale[list(unscaled)] = 1.0
        spread = context.std(axis=0)
        varies = spread > _CONSTANT
        return cls(
            work_scale=np.where(scale > 0, scale, 1.0),
            low=context.min(axis=0),
            high=context.max(axis=0),
            mean=context.mean(axis=0),
            inverse_scale=np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0),
        )

    def work(self, work: FloatArray) -> FloatArray:
        """Scaled work, any leading shape."""
        return work / self.work_scale

    def context(self, context: FloatArray) -> FloatArray:
        """Clipped and standardised context, any leading shape."""
        return (np.minimum(np.maximum(context, self.low), self.high) - self.mean) * self.inverse_scale


@dataclass(frozen=True)
class Network:
    """A trained ensemble: float64 arrays by name, whose first dimension is the members, and the features' scaling.

    The calibration of the prediction intervals is None until training has calibrated the network.
    """

    weights: dict[str, FloatArray]
    normalisation: Normalisation
    calibration: Calibration | None = None

    @property
    def members(self) -> int:
        """Number of networks in the ensemble."""
        return self.weights["log_price"].shape[0]

    @property
    def calibrated(self) -> Calibration:
        """The calibration.

        Raises:
            CostModelError: the network was not calibrated.
        """
        if self.calibration is None:
            raise CostModelError(f"this cost model has no calibrated intervals; {REMEDY}")
        return self.calibration

    def arrays(self, prefix: str = "") -> dict[str, FloatArray]:
        """All arrays for a checkpoint, with `prefix` before their names.

        Raises:
            CostModelError: the network was not calibrated.
        """
        weights = {f"{prefix}{name}": value for name, value in self.weights.items()}
        scaling = self.normalisation.arrays(f"{prefix}normalisation.")
        return {**weights, **scaling, **self.calibrated.arrays(f"{prefix}calibration.")}

    @classmethod
    def from_checkpoint(cls, stored: Checkpoint, weight_names: Set[str], prefix: str = "") -> Self:
        """Inverse of `arrays`.

        Raises:
            CostModelError: arrays are missing; the message names them.
        """
        scaling = Normalisation.names("normalisation.") | Calibration.names("calibration.")
        arrays = stored.take(weight_names | scaling, prefix)
        return cls(
            {name: arrays[name] for name in weight_names},
            Normalisation.from_arrays(arrays, "normalisation."),
            Calibration.from_arrays(arrays, "calibration."),
        )


def correction(xp: Xp, weights: Weights, context: Array) -> Array:
    """Positive factors by which prices are multiplied, from a network with two hidden layers.

    Args:
        xp: array module.
        weights: `CORRECTION_WEIGHTS`.
        context: (R, F), standardised.

    Returns:
        (E, R, outputs), each between exp(-`MAX_LOG_CORRECTION`) and exp(`MAX_LOG_CORRECTION`).
    """
    hidden = _silu(xp, context @ weights["in.weight"] + weights["in.bias"])  # (E, R, H)
    hidden = _silu(xp, hidden @ weights["mid.weight"] + weights["mid.bias"])
    log_factor = hidden @ weights["out.weight"] + weights["out.bias"]
    return xp.exp(MAX_LOG_CORRECTION * xp.tanh(log_factor / MAX_LOG_CORRECTION))


def sigmoid(xp: Xp, value: Array) -> Array:
    """Logistic function; that for NumPy does not overflow at e**710, and takes half the time of a tanh."""
    return 1.0 / (1.0 + np.exp(np.minimum(-value, 700.0))) if xp is np else xp.sigmoid(value)


def _silu(xp: Xp, value: Array) -> Array:
    return value * sigmoid(xp, value)
