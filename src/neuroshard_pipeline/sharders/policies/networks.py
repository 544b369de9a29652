"""The networks of AutoShard and DreamShard, written once for NumPy (placing tables) and PyTorch (training).

Both networks compute a representation (D numbers) of every table. At each step they compute a score for every rank from
the representation of the table to place, the sum of the representations of the tables on the rank, and the features of
the rank. All ranks share the weights, and the representations of a rank's tables are summed. A network therefore works
for any number of ranks and tables.

Shapes: U units (tables), W ranks, F table features, K rank features, D numbers of a representation, N hidden neurons.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: NumPy arrays or PyTorch tensors.
Array = Any
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Network:
    """One kind of policy network.

    Attributes:
        represent: `(xp, weights, tables (U, F)) -> (U, D)`, the representations; `xp` is `numpy` or `torch`.
        scores: `(weights, own (..., 1, D), carried (..., W, D), ranks (..., W, K)) -> (..., W)`; `own` represents the
            table to place, `carried` is the sum of the representations of the tables on a rank, divided by the mean
            number of tables per rank, and `ranks` are the features of the ranks.
        shapes: `(F, K, N) -> {weight: shape}`; weights whose names end in `bias` are initialised with 0.
    """

    represent: Callable[[Any, Weights, Array], Array]
    scores: Callable[[Weights, Array, Array, Array], Array]
    shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]]


def _rectified(x: Array) -> Array:
    return x * (x > 0)


def _sigmoid(xp: Any, x: Array) -> Array:
    return 0.5 * (1.0 + xp.tanh(0.5 * x))


def _dreamshard_tables(xp: Any, weights: Weights, tables: Array) -> Array:  # noqa: ARG001
    hidden = _rectified(tables @ weights["table.in"] + weights["table.in.bias"])
    return hidden @ weights["table.out"] + weights["table.out.bias"]


def _dreamshard_scores(weights: Weights, own: Array, carried: Array, ranks: Array) -> Array:
    """Scores: a linear layer over a rank's summed representations and hidden features of its costs [Zha2022b] §3.3.

    `own` adds the same number to the scores of all ranks. The table to place therefore influences the choice only
    through the features in `ranks` that include this table, for example the predicted cost of a rank with it.
    """
    costs = _rectified(ranks @ weights["cost.in"] + weights["cost.in.bias"])
    costs = _rectified(costs @ weights["cost.out"] + weights["cost.out.bias"])
    return ((carried + own) @ weights["score.tables"] + costs @ weights["score.costs"])[..., 0]


def _dreamshard_shapes(num_table: int, num_rank: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        "table.in": (num_table, hidden),
        "table.in.bias": (hidden,),
        "table.out": (hidden, hidden),
        "table.out.bias": (hidden,),
        "cost.in": (num_rank, hidden),
        "cost.in.bias": (hidden,),
        "cost.out": (hidden, hidden),
        "cost.out.bias": (hidden,),
        "score.tables": (hidden, 1),
        "score.costs": (hidden, 1),
    }


def _autoshard_tables(xp: Any, weights: Weights, tables: Array) -> Array:
    """States (U, N) of a gated recurrent unit after each table. A state depends on its table and all tables before."""
    inputs = tables @ weights["gru.in"] + weights["gru.bias"]  # (U, 3 N)
    width = inputs.shape[-1] // 3
    state = inputs[0, :width] * 0.0
    states = []
    for row in inputs:
        memory = state @ weights["gru.state"]
        update = _sigmoid(xp, row[:width] + memory[:width])
        reset = _sigmoid(xp, row[width : 2 * width] + memory[width : 2 * width])
        candidate = xp.tanh(row[2 * width :] + reset * memory[2 * width :])
        state = update * state + (1.0 - update) * candidate
        states.append(state)
    return xp.stack(states)


def _autoshard_scores(weights: Weights, own: Array, carried: Array, ranks: Array) -> Array:
    """Scores of a network with one hidden layer, whose inputs are `own`, `carried` and `ranks` [Zha2022a] §4."""
    state = ranks @ weights["rank.in"] + carried @ weights["rank.carried"]
    hidden = _rectified(state + own @ weights["rank.own"] + weights["rank.bias"])
    return (hidden @ weights["score"])[..., 0]


def _autoshard_shapes(num_table: int, num_rank: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        "gru.in": (num_table, 3 * hidden),
        "gru.state": (hidden, 3 * hidden),
        "gru.bias": (3 * hidden,),
        "rank.in": (num_rank, hidden),
        "rank.carried": (hidden, hidden),
        "rank.own": (hidden, hidden),
        "rank.bias": (hidden,),
        "score": (hidden, 1),
    }


NETWORKS: dict[str, Network] = {
    "autoshard": Network(_autoshard_tables, _autoshard_scores, _autoshard_shapes),
    "dreamshard": Network(_dreamshard_tables, _dreamshard_scores, _dreamshard_shapes),
}
