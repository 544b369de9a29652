"""Formulas of the cost models, written once for NumPy (inference) and torch (training).

Every function takes `xp`, the array module (`numpy` or `torch`), and a dict of weights of that module; all
weights have the ensemble members first. No weight constrained to be positive is stored as such: its logarithm is.

Shapes: E ensemble members, S shards, N shard sets, R ranks of all samples, W ranks of one sample, P work terms,
F context features, H hidden units, G gates, K pressures, L things paid once per launch, D = 2 directions (forward,
backward), C = D * (1 + G) + K + L channels.
"""

from __future__ import annotations

from typing import Any

#: Of the array modules and their arrays nothing is asked but arithmetic, matmul, exp, log, tanh, maximum, concatenate.
Xp = Any
Array = Any
Weights = dict[str, Any]

DIRECTIONS = 2

#: No learned correction exceeds a factor of e**1.5 = 4.5 either way, so that a shard far outside the training
#: range still costs about what its work says.
MAX_LOG_CORRECTION = 1.5

#: Added to summed pressures before their logarithm; a mean shard has about 1.
_PRESSURE_FLOOR = 1e-6

#: Far less than any scaled work, so that a share of 1 remains of what there is, and 0 of nothing.
_NO_WORK = 1e-9


def universal_embeddings(xp: Xp, weights: Weights, work: Array, context: Array) -> Array:
    """Non-negative embeddings of shards: what they add to the channels of the rank that holds them.

    `embedding = (work @ price) * exp(bounded network(context))`: a physical first guess with a learned correction
    of its price. The last L channels count the shards that have a work term which makes every launch dearer.

    Args:
        xp: array module.
        weights: `log_price` (E, P, C - L), the hidden layers and `out.*` of `_network`, with C - L outputs, and
            `once.terms` (E, P, L), 1 for those work terms.
        work: (S, P), non-negative.
        context: (S, F), standardised.

    Returns:
        (E, S, C), all non-negative.
    """
    correction = _bounded(xp, _network(xp, weights, context))
    priced = (work @ xp.exp(weights["log_price"])) * xp.exp(correction)
    marked = work @ weights["once.terms"]
    return xp.concatenate([priced, marked / (marked + _NO_WORK)], axis=-1)


def universal_costs(xp: Xp, weights: Weights, sums: Array) -> Array:
    """Costs of shard sets from their summed embeddings; a growing sum never lowers a cost.

    `cost = launch + once + base + sum over gates of gated * sigmoid(gate)`: the launch and what makes it dearer (say,
    an optimizer with state, whose tensors are passed along) are paid once however many shards there are, the base of
    every shard always, the gated part only as far as the pressure of the whole set (say, on the caches) has opened
    the gate. With all gates open the cost is additive, which keeps sets far larger than any trained on in proportion.

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
    opened = _sigmoid(xp, pressure @ xp.exp(weights["gate.log_weight"]) + weights["gate.bias"])  # (E, N, D * G)
    gated = sums[..., DIRECTIONS : DIRECTIONS * (1 + gates)] * opened
    present = 1.0 - _relu(xp, 1.0 - sums[..., -once:])  # 1 from the first such shard on
    total = sums[..., :DIRECTIONS] + xp.exp(weights["log_launch"]) + present @ xp.exp(weights["once.log_cost"])
    for gate in range(gates):
        total = total + gated[..., gate * DIRECTIONS : (gate + 1) * DIRECTIONS]
    return total


def paper_embeddings(xp: Xp, weights: Weights, work: Array, context: Array) -> Array:  # noqa: ARG001
    """Per-table network 128-32 of [Zha2023] §3.2 on standardised raw features (S, F), without `work`: (E, S, 32)."""
    hidden = _relu(xp, context @ weights["table.in.weight"] + weights["table.in.bias"])
    return _relu(xp, hidden @ weights["table.out.weight"] + weights["table.out.bias"])


def paper_costs(xp: Xp, weights: Weights, sums: Array) -> Array:
    """Head 32-64-2 of [Zha2023] §3.2 on summed embeddings (E, N, 32): forward and backward (E, N, D) in ms.

    The paper's head has one output, their sum; two cost the same and let both models answer the same questions.
    """
    hidden = _relu(xp, sums @ weights["head.in.weight"] + weights["head.in.bias"])
    scaled = hidden @ weights["head.out.weight"] + weights["head.out.bias"]
    return scaled * weights["cost_scale"] + weights["cost_mean"]


def comm_costs(xp: Xp, weights: Weights, work: Array, context: Array) -> Array:
    """Cost of one direction of an all-to-all for every rank, whatever the world size.

    `cost = wait * exp(bounded) + (transfer work @ price) * exp(bounded)`: a rank waits for the last one to enter,
    as far as its own transfers do not overlap with that, and then for its share of the volume.

    Args:
        xp: array module.
        weights: `log_price` (E, P - 1, 1), and hidden layers and `out.*` with 2 outputs.
        work: (R, P), the wait in ms first, then the transfer work.
        context: (R, F), standardised.

    Returns:
        (E, R) in ms.
    """
    correction = xp.exp(_bounded(xp, _network(xp, weights, context)))  # (E, R, 2)
    transfer = (work[..., 1:] @ xp.exp(weights["log_price"]))[..., 0]
    return work[..., 0] * correction[..., 0] + transfer * correction[..., 1]


def paper_comm_costs(xp: Xp, weights: Weights, features: Array) -> Array:
    """Fixed-size network 128-64-32-16 of [Zha2023] §3.2: (N, F) standardised features to (E, N, W) costs in ms."""
    hidden = features
    for layer in range(4):
        hidden = _relu(xp, hidden @ weights[f"{layer}.weight"] + weights[f"{layer}.bias"])
    scaled = hidden @ weights["4.weight"] + weights["4.bias"]
    return scaled * weights["cost_scale"] + weights["cost_mean"]


def _network(xp: Xp, weights: Weights, context: Array) -> Array:
    """Two hidden layers: (S, F) to (E, S, outputs)."""
    hidden = _silu(xp, context @ weights["in.weight"] + weights["in.bias"])  # (E, S, H)
    hidden = _silu(xp, hidden @ weights["mid.weight"] + weights["mid.bias"])
    return hidden @ weights["out.weight"] + weights["out.bias"]


def _bounded(xp: Xp, value: Array) -> Array:
    return MAX_LOG_CORRECTION * xp.tanh(value / MAX_LOG_CORRECTION)


def _sigmoid(xp: Xp, value: Array) -> Array:
    return 0.5 * (1.0 + xp.tanh(0.5 * value))  # never overflows, unlike 1 / (1 + exp(-value))


def _silu(xp: Xp, value: Array) -> Array:
    return value * _sigmoid(xp, value)


def _relu(xp: Xp, value: Array) -> Array:
    return xp.maximum(value, xp.zeros_like(value))
