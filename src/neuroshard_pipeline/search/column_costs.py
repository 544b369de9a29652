"""Predicted costs of many column-wise plans at once, from the compute costs and dimension sums of their ranks.

Shapes: P plans, W ranks, H numbers that describe a shard's cost (shard embedding).
A rank's *dimension sum* is the number of 4-byte words that it sends per sample in an all-to-all.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.search.models import Models, quantised

#: Largest number of ranks, summed over plans, in one call of the communication model: its features take up to 300 MB.
_RANKS_AT_ONCE = 2**18

#: Plans that `cheapest_plans` prices in one call, at least one per group: a call costs more than a further plan.
_PLANS_AT_ONCE = 8


def start_skew_ms(compute_ms: ArrayLike, backward_comm_ms: ArrayLike) -> FloatArray:
    """Delay (..., W) of each rank behind the first rank that enters the forward collective [Zha2023] §3.3.

    All ranks enter the backward collective together, because all of them have waited for the forward collective and
    have then run the dense model. A rank enters the next iteration's forward collective when its own backward
    communication and compute are done. The start skew is the sum of the two, minus the smallest sum of any rank.

    Args:
        compute_ms: (..., W) compute, or all costs of a rank except all-to-alls; predicted or measured.
        backward_comm_ms: (..., W) backward communication.
    """
    ready_ms = np.add(compute_ms, backward_comm_ms)
    return ready_ms - ready_ms.min(axis=-1, keepdims=True)


def communication_ms(
    models: Models, compute_ms: FloatArray, dim_sums: NDArray, batch_size: int
) -> tuple[FloatArray, FloatArray]:
    """Forward and backward communication cost, (..., W) each, of ranks with these compute costs and dimension sums."""
    backward_ms = models.comm.backward_ms(dim_sums, batch_size)
    return models.comm.forward_ms(dim_sums, start_skew_ms(compute_ms, backward_ms), batch_size), backward_ms


def embedding_cost_ms(models: Models, compute_ms: FloatArray, dim_sums: NDArray, batch_size: int) -> FloatArray:
    """Embedding cost (P,) of plans with compute costs (P, W) and dimension sums (P, W)."""
    step = max(1, _RANKS_AT_ONCE // compute_ms.shape[-1])
    costs = []
    for start in range(0, len(compute_ms), step):
        compute, dims = compute_ms[start : start + step], dim_sums[start : start + step]
        forward_ms, backward_ms = communication_ms(models, compute, dims, batch_size)
        costs.append((compute + forward_ms + backward_ms).max(axis=-1))
    return np.concatenate(costs)


def cheapest_plans(
    models: Models,
    compute_ms: FloatArray,
    dim_sums: NDArray,
    added_ms: FloatArray,
    batch_size: int,
    group: IntArray,
    limits: FloatArray,
) -> tuple[IntArray, FloatArray]:
    """The cheapest plan of each of G groups of plans (ties: the first one), and its cost in units of 1e-9 ms.

    A plan costs at least as much as any of its ranks. The cost of the rank that is ready last, which is mostly the most
    expensive one, therefore rules out most plans. All ranks of the remaining plans are priced, the cheapest by this
    bound first, until no plan of a group can be cheaper than the best one. The result is exact.

    Args:
        models: cost models.
        compute_ms: (P, W) compute costs.
        dim_sums: (P, W) dimension sums.
        added_ms: (P,) ms that are added to the cost of every rank of a plan.
        batch_size: global batch size.
        group: (P,) group of every plan.
        limits: (G,) only plans that cost less than this are looked for, in units of 1e-9 ms.

    Returns:
        (G,) indices of plans, -1 if no plan costs less than the limit; and (G,) costs, then the limit.
    """
    added, some = quantised(added_ms), max(1, _RANKS_AT_ONCE // compute_ms.shape[-1])
    own_ms, skew_ms, floor_ms = _floors(models, compute_ms, dim_sums, batch_size, some)
    least = quantised(floor_ms) + added - 1.0  # one unit, because rounding differs with the number of rows
    best, costs, open_plans = np.full(len(limits), -1), limits.astype(np.float64), np.argsort(least, kind="stable")
    at_once = min(max(_PLANS_AT_ONCE, len(limits)), some)
    while len(open_plans := open_plans[least[open_plans] <= costs[group[open_plans]]]):
        tried, open_plans = open_plans[:at_once], open_plans[at_once:]
        forward_ms = models.comm.forward_ms(dim_sums[tried], skew_ms[tried], batch_size)
        found, of = quantised((own_ms[tried] + forward_ms).max(axis=-1)) + added[tried], group[tried]
        better = (found < costs[of]) | ((found == costs[of]) & (tried < best[of]))
        better = (order := np.lexsort((-tried, -found)))[better[order]]  # the cheapest last, which stays
        best[of[better]], costs[of[better]] = tried[better], found[better]
    return best, costs


def _floors(
    models: Models, compute_ms: FloatArray, dim_sums: NDArray, batch_size: int, some: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(P, W) costs before the forward all-to-all and start skews, and (P,) costs of the rank that is ready last."""
    own_ms, skew_ms, floor = np.empty(compute_ms.shape), np.empty(compute_ms.shape), [np.empty(0)]
    for start in range(0, len(compute_ms), some):
        part = slice(start, start + some)
        backward_ms = models.comm.backward_ms(dim_sums[part], batch_size)
        own_ms[part], skew_ms[part] = compute_ms[part] + backward_ms, start_skew_ms(compute_ms[part], backward_ms)
        floor.append(_last_rank_ms(models, own_ms[part], dim_sums[part], skew_ms[part], batch_size))
    return own_ms, skew_ms, np.concatenate(floor)


def _last_rank_ms(
    models: Models, own_ms: FloatArray, dim_sums: NDArray, skew_ms: FloatArray, batch_size: int
) -> FloatArray:
    """(P,) cost of the rank of each plan that is ready last; for other models, without its forward all-to-all."""
    last = own_ms.argmax(axis=-1)[:, None]
    cost_ms = np.take_along_axis(own_ms, last, axis=-1)[:, 0]
    if not isinstance(models.comm, CommCostModel):
        return cost_ms
    return np.asarray(cost_ms + models.comm.forward_ms(dim_sums, skew_ms, batch_size, last)[:, 0])


def compute_ms_of_sums(models: Models, sums: FloatArray, dim_sums: NDArray, batch_size: int) -> FloatArray:
    """Forward and backward compute cost (..., W, 2) from summed embeddings (..., W, H); an empty rank costs 0."""
    costs = models.compute.costs_from_sums(sums, batch_size)
    return np.where((dim_sums > 0)[..., None], costs, 0.0)
