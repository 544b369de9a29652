"""First weights of the networks: the physical part from a non-negative linear fit, the rest at random.

Shapes: E ensemble members, N samples, P work terms, L of them paid once per launch, too, F context features,
D = 2 directions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from neuroshard_pipeline.cost_models.architectures import DIRECTIONS
from neuroshard_pipeline.cost_models.features import ONCE_TERMS, WORK_TERMS
from neuroshard_pipeline.cost_models.params import ComputeTrainParams, FitParams

FloatArray = NDArray[np.float64]

#: Share of the linear fit's cost that starts out in the gated channels.
_GATED_SHARE = 0.5

#: No price starts below this share of the mean price, so that every term can still be taken up.
_SMALLEST_PRICE_SHARE = 0.02

#: No launch starts below this share of the cheapest sample.
_SMALLEST_LAUNCH_SHARE = 0.05

#: Pressure at which gates start half open, in mean shards: far more than a training sample has. A gate that starts in
#: the middle of the training range closes its account there, and larger sets come out too cheap (FBGEMM on a CPU,
#: sets of 15 to 30 tables after training on 1 to 15: bias -4.9 % from 8 shards and a share of 0.15, -1.6 % from 100
#: and 0.5; held-out error the same).
_HALF_OPEN_SHARDS = 100.0

#: Scale of the last layer: corrections start at almost no correction.
_SMALL = 0.1


def relative_nnls(work: FloatArray, costs: FloatArray) -> FloatArray:
    """Non-negative prices that minimise the squared *relative* error of `work @ prices`.

    Args:
        work: (N, P).
        costs: (N,) in ms, all above 0.

    Returns:
        (P,) ms per unit of work.
    """
    prices, _ = nnls(work / costs[:, None], np.ones(len(costs)))
    return prices


def universal_weights(
    work: FloatArray, costs: FloatArray, num_context: int, params: ComputeTrainParams, generator: torch.Generator
) -> dict[str, Tensor]:
    """Weights of the `universal` compute network.

    Args:
        work: (N, P) scaled work, summed over the shards of every training sample.
        costs: (N, D) in ms.
        num_context: F.
        params: sizes.
        generator: of the random part.
    """
    once_terms = np.array([[name == once for once in ONCE_TERMS] for name in WORK_TERMS], dtype=np.float64)  # (P, L)
    launch, once, prices = _linear_prices(work, work @ once_terms > 0, costs)  # (D,), (L, D), (P, D)
    members, gates, pressures = params.members, params.gates, params.pressures
    noise = _Noise(generator)
    channels = [np.log(prices * (1 - _GATED_SHARE))] + [np.log(prices * _GATED_SHARE / gates)] * gates
    priced = _repeated(np.concatenate(channels, axis=1), members)  # (E, P, D * (1 + G))
    pressing = noise(members, work.shape[1], pressures) * 0.5 - math.log(work.shape[1])
    outputs = DIRECTIONS * (1 + gates) + pressures
    return {
        "log_price": torch.cat([priced + 0.05 * noise(*priced.shape), pressing], dim=2),
        "log_launch": _repeated(np.log(launch)[None, :], members),
        "once.terms": _repeated(once_terms, members),
        "once.log_cost": _repeated(np.log(once), members),
        "gate.log_weight": 0.3 * noise(members, pressures, DIRECTIONS * gates) - math.log(pressures),
        "gate.bias": 0.7 * noise(members, 1, DIRECTIONS * gates) - math.log(_HALF_OPEN_SHARDS),
        **network_weights(members, num_context, params.hidden, outputs, noise),
    }


def comm_weights(
    work: FloatArray, costs: FloatArray, num_context: int, params: FitParams, generator: torch.Generator
) -> dict[str, Tensor]:
    """Weights of one direction of the communication network: `work` (R, P) with the wait first, `costs` (R,)."""
    prices = relative_nnls(work, costs)[1:]
    scale = costs.mean() / work[:, 1:].sum(axis=1).mean()
    prices = np.maximum(prices, _SMALLEST_PRICE_SHARE * scale)
    return {
        "log_price": _repeated(np.log(prices)[:, None], params.members),
        **network_weights(params.members, num_context, params.hidden, 2, _Noise(generator)),
    }


def dense_weights(sizes: dict[str, tuple[int, int]], members: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Layers of a plain ReLU network, `name: (inputs, outputs)`, with He initialisation."""
    noise = _Noise(generator)
    weights = {}
    for name, (inputs, outputs) in sizes.items():
        weights[f"{name}.weight"] = noise(members, inputs, outputs) * math.sqrt(2 / inputs)
        weights[f"{name}.bias"] = torch.zeros(members, 1, outputs)
    return weights


def network_weights(members: int, inputs: int, hidden: int, outputs: int, noise: _Noise) -> dict[str, Tensor]:
    """Two hidden layers and an output layer that starts near zero."""
    return {
        "in.weight": noise(members, inputs, hidden) / math.sqrt(inputs),
        "in.bias": 0.1 * noise(members, 1, hidden),
        "mid.weight": noise(members, hidden, hidden) / math.sqrt(hidden),
        "mid.bias": torch.zeros(members, 1, hidden),
        "out.weight": _SMALL * noise(members, hidden, outputs) / math.sqrt(hidden),
        "out.bias": torch.zeros(members, 1, outputs),
    }


class _Noise:
    """Standard normal tensors from one explicit generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)


def _linear_prices(
    work: FloatArray, dearer: NDArray[np.bool_], costs: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Launch (D,), what makes it dearer (L, D), and prices (P, D) of the non-negative linear model, none of them zero.

    Args:
        work: (N, P).
        dearer: (N, L), whether a sample has the work that makes launches dearer.
        costs: (N, D) in ms.
    """
    many = dearer.shape[1]
    launch, once, prices = (np.empty((rows, DIRECTIONS)) for rows in (1, many, work.shape[1]))
    for direction in range(DIRECTIONS):
        cost = costs[:, direction]
        fitted = relative_nnls(np.column_stack([np.ones(len(cost)), dearer, work]), cost)
        scale = cost.mean() / work.sum(axis=1).mean()
        launch[:, direction], once[:, direction] = np.split(
            np.maximum(fitted[: 1 + many], _SMALLEST_LAUNCH_SHARE * cost.min()), [1]
        )
        prices[:, direction] = np.maximum(fitted[1 + many :], _SMALLEST_PRICE_SHARE * scale)
    return launch[0], once, prices


def _repeated(values: FloatArray, members: int) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[None].repeat(members, 1, 1)


def cost_scaling(costs: FloatArray, members: int) -> dict[str, Tensor]:
    """Mean and spread of costs (N, outputs), for networks that predict standardised ones."""
    spread = np.maximum(costs.std(axis=0, keepdims=True), 1e-9)
    return {
        "cost_mean": _repeated(costs.mean(axis=0, keepdims=True), members),
        "cost_scale": _repeated(spread, members),
    }
