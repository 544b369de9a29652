"""Initial weights of the cost models: costs per launch and per unit of work are fitted; most other weights are random.

Shapes: E members, N samples with R ranks in total, P work terms, L launch terms, F context features, D = 2 directions.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.compute import DIRECTIONS
from neuroshard_pipeline.cost_models.compute_features import ONCE_TERMS, WORK_TERMS
from neuroshard_pipeline.cost_models.params import ComputeTrainParams, FitParams

#: Share of each fitted price that all gated channels of `compute.price` initially get together. The base gets the rest.
_GATED_SHARE = 0.5

#: Lower limit of initial prices as a share of the mean price, so that training can still raise every price.
_SMALLEST_PRICE_SHARE = 0.02

#: Lower limit of the initial costs of a launch and of launch terms, as a share of the cost of the cheapest sample.
_SMALLEST_LAUNCH_SHARE = 0.05

#: Number of average shards whose pressure opens a gate halfway initially (see `compute.price`); a training sample has
#: far fewer. A gate that opens halfway within the training range has little left to open for sets larger than every
#: training sample, and their costs are predicted too low. A model trained on sets of 1 to 15 tables (FBGEMM on a CPU)
#: has a bias of -4.9 % for sets of 15 to 30 tables if this value is 8 and `_GATED_SHARE` is 0.15. With 100 and 0.5, the
#: bias is -1.6 %. Both settings have the same held-out error.
_HALF_OPEN_SHARDS = 100.0

#: Initial scale of the last layer; it is small so that corrections start close to 1.
_SMALL = 0.1


def relative_nnls(work: FloatArray, costs: FloatArray) -> FloatArray:
    """Non-negative prices (P,), in ms per unit of work, that minimise the squared *relative* error of `work @ prices`.

    Work is (N, P), and costs (N,) are in ms and above 0.
    """
    prices, _ = nnls(work / costs[:, None], np.ones(len(costs)))
    return prices


def compute_weights(
    work: FloatArray, costs: FloatArray, num_context: int, params: ComputeTrainParams, generator: torch.Generator
) -> dict[str, Tensor]:
    """Initial weights of the compute network, by name; `generator` draws their random part.

    Work (N, P) is scaled, and summed over the shards of every training sample; costs (N, D) are measured ms.
    """
    once_terms = np.array([[name == once for once in ONCE_TERMS] for name in WORK_TERMS], dtype=np.float64)  # (P, L)
    launch, once, prices = _linear_prices(work, work @ once_terms > 0, costs)  # (D,), (L, D), (P, D)
    members, gates, pressures = params.members, params.gates, params.pressures
    channels = [np.log(prices * (1 - _GATED_SHARE))] + [np.log(prices * _GATED_SHARE / gates)] * gates
    priced = _repeated(np.concatenate(channels, axis=1), members)  # (E, P, D * (1 + G))
    pressing = _normal(generator, members, work.shape[1], pressures) * 0.5 - math.log(work.shape[1])
    outputs = DIRECTIONS * (1 + gates) + pressures
    return {
        "log_price": torch.cat([priced + 0.05 * _normal(generator, *priced.shape), pressing], dim=2),
        "log_launch": _repeated(np.log(launch)[None, :], members),
        "once.terms": _repeated(once_terms, members),
        "once.log_cost": _repeated(np.log(once), members),
        "gate.log_weight": 0.3 * _normal(generator, members, pressures, DIRECTIONS * gates) - math.log(pressures),
        "gate.bias": 0.7 * _normal(generator, members, 1, DIRECTIONS * gates) - math.log(_HALF_OPEN_SHARDS),
        **_correction_weights(params, num_context, outputs, generator),
    }


def comm_weights(
    work: FloatArray, costs: FloatArray, num_context: int, params: FitParams, generator: torch.Generator
) -> dict[str, Tensor]:
    """Initial weights of one direction of the communication network, by name; `generator` draws their random part.

    Work (R, P) of the ranks of all training samples is scaled; column 0 is the wait. Costs (R,) are measured ms.
    """
    prices = relative_nnls(work, costs)[1:]
    scale = costs.mean() / work[:, 1:].sum(axis=1).mean()
    prices = np.maximum(prices, _SMALLEST_PRICE_SHARE * scale)
    return {
        "log_price": _repeated(np.log(prices)[:, None], params.members),
        **_correction_weights(params, num_context, 2, generator),
    }


def _correction_weights(params: FitParams, inputs: int, outputs: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights of the correction network: two random hidden layers and an output layer with weights close to 0."""
    members, hidden = params.members, params.hidden
    return {
        "in.weight": _normal(generator, members, inputs, hidden) / math.sqrt(inputs),
        "in.bias": 0.1 * _normal(generator, members, 1, hidden),
        "mid.weight": _normal(generator, members, hidden, hidden) / math.sqrt(hidden),
        "mid.bias": torch.zeros(members, 1, hidden),
        "out.weight": _SMALL * _normal(generator, members, hidden, outputs) / math.sqrt(hidden),
        "out.bias": torch.zeros(members, 1, outputs),
    }


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def _linear_prices(
    work: FloatArray, launch_terms: NDArray[np.bool_], costs: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fit costs per launch (D,), costs of launch terms (L, D) and prices (P, D); raise small ones to limits above 0.

    `launch_terms` (N, L) is True where a sample has work of the launch term (see `compute.embed`).
    """
    first_price = 1 + launch_terms.shape[1]
    columns = []
    for cost in costs.T:
        fitted = relative_nnls(np.column_stack([np.ones(len(cost)), launch_terms, work]), cost)
        smallest_price = _SMALLEST_PRICE_SHARE * (cost.mean() / work.sum(axis=1).mean())
        launches = np.maximum(fitted[:first_price], _SMALLEST_LAUNCH_SHARE * cost.min())
        columns.append(np.concatenate([launches, np.maximum(fitted[first_price:], smallest_price)]))
    launch, once, prices = np.split(np.column_stack(columns), [1, first_price])
    return launch[0], once, prices


def _repeated(values: FloatArray, members: int) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[None].repeat(members, 1, 1)
