"""The predicted embedding cost of plans: its formulas, and the functions that price plans and placements.

Shapes: P plans, W ranks, H numbers that describe a shard's cost (shard embedding).
A rank's *dimension sum* is the number of 4-byte words that it sends per sample in an all-to-all.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.search.models import Models, device_of, quantised
from neuroshard_pipeline.search.parts import Parts, parts_of_steps, step_parts
from neuroshard_pipeline.search.plan import Placement, Plan, PlanCost, RejectedChange
from neuroshard_pipeline.search.problem import Problem

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


def price_plan(problem: Problem, placement: Placement, sharder: str, rejected: tuple[RejectedChange, ...] = ()) -> Plan:
    """The plan of a placement: its predicted cost, prediction intervals and caveats.

    Args:
        problem: the task, the models and the memory model; it also caches the embeddings of shards.
        placement: shards and ranks, of any sharder. If it names a variant of the task, the plan is for the variant.
        sharder: the name that the plan carries.
        rejected: changes that the plan does not make (`changes.rejected_changes`), for its explanation.

    Raises:
        PlanError: the placement is not a valid plan of the task.
        CostModelError: a shard is not column-wise, and the models have no step cost model.
    """
    problem = problem.of(placement)
    task, models = problem.task, problem.models
    parts = step_parts(task, placement.shards, placement.ranks, models, problem.known, bounded=True)
    predicted = predicted_cost(parts, models, task.batch_size)
    alone = problem.known.embeddings(placement.shards)
    return Plan(
        task,
        placement.shards,
        placement.ranks,
        sharder,
        predicted,
        problem.memory,
        _intervals_ms(parts, predicted, models, task.batch_size),
        rejected,
        models.caveats(task),
        device_of(models.compute),
        tuple(models.compute.costs_from_sums(alone, task.batch_size).sum(axis=-1).tolist()),
    )


def placement_cost_ms(problem: Problem, placement: Placement) -> float:
    """The predicted cost of a placement for the task of `problem`, as in `price_plan`, but without validation."""
    return placement_costs(problem, [placement])[0][0]


def placement_costs(problem: Problem, placements: Sequence[Placement]) -> list[tuple[float, Parts]]:
    """`placement_cost_ms` of several placements, and the parts of their steps; they share calls of the models."""
    plans = [problem.known.placed(each.shards, each.ranks) for each in placements]
    steps = parts_of_steps(problem.task, plans, problem.models, problem.known)
    costs = predicted_costs(steps, problem.models, problem.task.batch_size)
    return [(cost.embedding_cost_ms, parts) for cost, parts in zip(costs, steps, strict=True)]


def priced(plan: Plan, models: Models) -> Plan:
    """A new plan with the same shards and ranks, and with the costs that `models` predict."""
    return price_plan(Problem(plan.task, models, plan.memory), Placement(plan.shards, plan.ranks), plan.sharder)


def halves_ms(parts: Parts, models: Models, batch_size: int) -> FloatArray:
    """(W, 2) time of every rank in both halves of a step, without the forward all-to-all.

    The first half is the input dist, the forward lookups and all of the module's work. The second half is the backward
    all-to-all, the backward lookups and the reductions.
    """
    return _halves(parts, _backward_comm_ms([parts], models, batch_size)[0])


def predicted_cost(parts: Parts, models: Models, batch_size: int) -> PlanCost:
    """The cost of a plan from its parts (`predicted_costs`)."""
    return predicted_costs([parts], models, batch_size)[0]


def predicted_costs(steps: Sequence[Parts], models: Models, batch_size: int) -> list[PlanCost]:
    """The costs of plans from their parts, with few calls of the communication cost model.

    In the first forward all-to-all, the ranks wait for the rank with the largest sum of both halves (`halves_ms`). If
    they exchange ids, they also wait between the second half of a step and the first half of the next one. The time
    that this adds to the step is part of the input dist of all ranks.
    """
    backward = _backward_comm_ms(steps, models, batch_size)
    exchanges = [
        (number, *each)
        for number, (parts, own_ms) in enumerate(zip(steps, backward, strict=True))
        for each in _forward_exchanges(parts, own_ms)
    ]
    forward = _sum_of_exchanges(steps, exchanges, models.comm.forward_ms, batch_size)
    return [_plan_cost(*of_plan) for of_plan in zip(steps, forward, backward, strict=True)]


def _plan_cost(parts: Parts, forward_ms: FloatArray, backward_ms: FloatArray) -> PlanCost:
    halves = _halves(parts, backward_ms)
    second_wait_ms = max(halves.max(axis=0).sum() - halves.sum(axis=1).max(), 0.0) if parts.exchanges_ids else 0.0
    return PlanCost(
        forward_compute_ms=tuple(parts.compute_ms[:, 0].tolist()),
        backward_compute_ms=tuple(parts.compute_ms[:, 1].tolist()),
        forward_comm_ms=tuple(forward_ms.tolist()),
        backward_comm_ms=tuple(backward_ms.tolist()),
        input_dist_ms=_as_tuple(None if parts.input_dist_ms is None else parts.input_dist_ms + second_wait_ms),
        reduction_ms=_as_tuple(parts.reduction_ms),
        module_ms=_as_tuple(parts.module_ms),
    )


def _backward_comm_ms(steps: Sequence[Parts], models: Models, batch_size: int) -> list[FloatArray]:
    """(W,) cost of all backward all-to-alls of each step."""
    exchanges = [(number, dims) for number, parts in enumerate(steps) for dims in parts.dim_sums.values()]
    return _sum_of_exchanges(steps, exchanges, models.comm.backward_ms, batch_size)


def _sum_of_exchanges(
    steps: Sequence[Parts], exchanges: Sequence[tuple[Any, ...]], price: Callable[..., FloatArray], batch_size: int
) -> list[FloatArray]:
    """(W,) cost of all exchanges of each step; one call of `price` for all of one shape.

    An exchange is the number of its step, its dimension sums and, if it is forward, its start skews.
    """
    found = [np.zeros(len(parts.compute_ms)) for parts in steps]
    costs: dict[int, FloatArray] = {}
    for shape in dict.fromkeys(dims.shape for _, dims, *_ in exchanges):
        same = [place for place, (_, dims, *_) in enumerate(exchanges) if dims.shape == shape]
        arrays = [np.stack(values) for values in zip(*(exchanges[place][1:] for place in same), strict=True)]
        costs |= zip(same, price(*arrays, _samples(arrays[0][0], batch_size)), strict=True)
    for place, (number, *_) in enumerate(exchanges):
        found[number] = found[number] + costs[place].ravel()
    return found


def _halves(parts: Parts, backward_ms: FloatArray) -> FloatArray:
    reduction_ms = 0.0 if parts.reduction_ms is None else parts.reduction_ms
    backward_half_ms = parts.compute_ms[:, 1] + backward_ms + reduction_ms
    return np.stack([parts.own_ms + backward_ms - backward_half_ms, backward_half_ms], axis=1)


def _samples(dims: FloatArray, batch_size: int) -> int:
    """Samples of all ranks of one all-to-all; `dims` are (W,), or (hosts, ranks per host) for one in every host."""
    return batch_size * dims.shape[-1] // dims.size


def _forward_exchanges(parts: Parts, backward_ms: ArrayLike) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Dimension sums and start skews of every forward all-to-all.

    Only the first all-to-all among all ranks has skews. If every all-to-all is inside hosts, the first one has them.
    """
    groups = list(parts.dim_sums.values())
    first = next((number for number, dims in enumerate(groups) if dims.ndim == 1), 0)
    for number, dims in enumerate(groups):
        skew_ms = start_skew_ms(parts.own_ms, backward_ms).reshape(dims.shape)
        skew_ms = skew_ms - skew_ms.min(axis=-1, keepdims=True)
        yield dims, skew_ms if number == first else np.zeros_like(skew_ms)


def _as_tuple(part_ms: FloatArray | None) -> tuple[float, ...]:
    return () if part_ms is None else tuple(part_ms.tolist())


def _intervals_ms(parts: Parts, cost: PlanCost, models: Models, batch_size: int) -> tuple[tuple[float, float], ...]:
    """Lower and upper bound of the prediction interval of every rank's cost, in ms.

    The half widths of the parts add in quadrature, as if the errors of their models were independent. The uncertainty
    of the predicted start skews is ignored.
    """
    offsets = list(part_offsets_ms(parts, cost, models, batch_size).values())
    bounds_ms = np.array(cost.rank_ms)[:, None] + np.sqrt(np.sum(np.square(offsets), axis=0)) * (-1.0, 1.0)
    return tuple((low, high) for low, high in bounds_ms.tolist())


def part_offsets_ms(parts: Parts, cost: PlanCost, models: Models, batch_size: int) -> dict[str, FloatArray]:
    """How far the ends of the 90 % prediction interval of each part lie from the predicted cost, (W, 2) by part."""
    bounded: dict[str, list[tuple[FloatArray, FloatArray]]] = {"compute": list(parts.compute_bounds_ms)}
    bounded |= {"forward_comm": [], "backward_comm": []}
    if parts.reduction_ms is not None and parts.reduction_bounds_ms is not None:
        bounded["reduction"] = [(parts.reduction_ms, parts.reduction_bounds_ms)]
    for dims, skews in _forward_exchanges(parts, cost.backward_comm_ms):
        samples = _samples(dims, batch_size)
        backward = models.comm.backward_ms(dims, samples), models.comm.backward_interval_ms(dims, samples)
        forward = models.comm.forward_ms(dims, skews, samples), models.comm.forward_interval_ms(dims, skews, samples)
        for part, (costs, ends) in (("backward_comm", backward), ("forward_comm", forward)):
            bounded[part].append((costs.ravel(), ends.reshape(-1, 2)))
    none = np.zeros((len(parts.compute_ms), 2))
    offsets = {
        part: np.sqrt(sum((np.square(ends - ms[:, None]) for ms, ends in of), none)) for part, of in bounded.items()
    }
    further = {"input_dist": parts.input_dist_ms, "module": parts.module_ms}
    for part, ms in further.items():
        if ms is not None and models.step is not None:
            offsets[part] = np.repeat((ms * models.step.relative_bound(part))[:, None], 2, axis=1)
    return offsets
