"""The predicted cost of a step under a plan: its formulas, and the functions that price plans and placements.

Shape: W ranks. A rank's *dimension sum* is the number of 4-byte words that it sends per sample in an all-to-all.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.search.column_costs import start_skew_ms
from neuroshard_pipeline.search.models import Models, device_of
from neuroshard_pipeline.search.parts import Parts, parts_of_steps, step_parts
from neuroshard_pipeline.search.plan import Placement, Plan, PlanCost, RejectedChange
from neuroshard_pipeline.search.problem import Problem


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
