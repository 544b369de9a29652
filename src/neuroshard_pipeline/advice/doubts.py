"""Which assumption decides the plan, and which measurement would settle it.

Predicted costs rest on numbers that may be wrong: the cost of a part of the step lies anywhere in its 90 % interval,
and the popularity of a table's rows is a guess if its profile is assumed. Such a number is a *doubt* if, somewhere in
its range, another known plan is cheaper than today's. Known are the plans of what-ifs that are plans of today's task.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from neuroshard_pipeline.advice.frontiers import mean_ms, plan_cost
from neuroshard_pipeline.advice.what_ifs import with_faster_links
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.search.gains import SlowestParts
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.profile import DEFAULT_POPULARITY_EXPONENT as _ASSUMED
from neuroshard_pipeline.tables.profile import batch_indices, expected_rows, is_assumed, zipf_buckets
from neuroshard_pipeline.tables.table import Table

#: Range of the exponent of the popularity of rows; with the first one, rows are looked up nearly equally often.
_EXPONENTS = (0.3, 1.6)
#: Number of tables whose assumed profiles are doubted, those on whose profile the step depends most.
_DOUBTED = 3
#: Another plan matters if it saves this share of a step.
_LEAST_SAVING = 0.005
_BISECTIONS = 10

#: The cost of a plan if a number has some value.
_Price = Callable[[Plan, float], float]


@dataclass(frozen=True)
class Doubt:
    """A number that decides the plan, and the value from which on another plan is cheaper, in words.

    That plan saves `saved_ms` at the end of the number's range. The measurement `settled_by` would settle it.
    """

    text: str
    saved_ms: float
    settled_by: str


def doubts(today: Plan, others: Sequence[Plan], models: CostModels, parts_ms: SlowestParts) -> Iterator[Doubt]:
    """The doubts about the plan of today, whose rivals are other plans of its task."""
    links = max(share for part, (_, share) in parts_ms.items() if part not in ("compute", "input_dist", "module"))
    own = max(parts_ms.get(part, (0.0, 0.0))[1] for part in ("input_dist", "module"))
    nccl = "a log of nccl-tests on the cluster (make fit-network), or measured collectives"
    dearer: list[tuple[str, float, Callable[[float], CostModels], str]] = [
        ("all-to-alls and reductions", links, lambda times: with_faster_links(models, 1 / times), nccl),
        ("input dist and TorchRec's module", own, partial(_dearer_step, models), "measured steps (measure.step_plans)"),
    ]
    for name, share, changed, settled_by in dearer:
        for end in (1 + share, 1 / (1 + share)) if share else ():
            for at, saved_ms in _turns(today, others, partial(_with_costs, changed), 1.0, end):
                yield Doubt(f"{name}: if they cost {at:.2f} times what is predicted", saved_ms, settled_by)
    for table in _assumed(today, models):
        for end in _EXPONENTS:
            for at, saved_ms in _turns(today, others, partial(_with_ids, models, table), _ASSUMED, end):
                known, ids = _profile(table, today.task.batch_size, at), today.task.batch_size * table.pooling_factor
                than = f"{'more' if end < at else 'fewer'} than {(known.unique_rows or 0.0) / ids:.0%}"
                text = f"profile of table {table.name!r}: if {than} of a batch's ids are unique"
                yield Doubt(text, saved_ms, "its ids, counted (plan.task.ids)")


def _with_costs(changed: Callable[[float], CostModels], plan: Plan, at: float) -> float:
    return plan_cost(plan, changed(at)).embedding_cost_ms


def _with_ids(models: CostModels, table: Table, plan: Plan, at: float) -> float:
    return plan_cost(plan, models, _profile(table, plan.task.batch_size, at)).embedding_cost_ms


def _turns(today: Plan, others: Sequence[Plan], price: _Price, now: float, end: float) -> Iterator[tuple[float, float]]:
    """The value nearest to `now` at which the plan that is cheapest at `end` beats today's, and what it saves there."""
    before, best = price(today, end), min(others, key=lambda plan: price(plan, end), default=today)
    saved, keeps, changes = before - price(best, end), now, end
    if saved < _LEAST_SAVING * before:
        return
    for _ in range(_BISECTIONS):
        middle = (keeps + changes) / 2
        keeps, changes = (keeps, middle) if price(best, middle) < price(today, middle) else (middle, changes)
    yield changes, saved


def _dearer_step(models: CostModels, times: float) -> CostModels:
    """Cost models whose prices of the input dist and of TorchRec's module are `times` as high."""
    assert models.step is not None, "whole steps are priced"
    prices = {
        world: {part: {name: times * price for name, price in of.items()} for part, of in parts.items()}
        for world, parts in models.step.prices.items()
    }
    return replace(models, step=replace(models.step, prices=prices))


def _assumed(plan: Plan, models: CostModels) -> list[Table]:
    """The tables with assumed profiles on which the mean cost of a rank depends most."""

    def spread(table: Table) -> float:
        low, high = (mean_ms(plan, models, _profile(table, plan.task.batch_size, end)) for end in _EXPONENTS)
        return abs(high - low)

    return sorted(filter(is_assumed, plan.task.tables), key=spread, reverse=True)[:_DOUBTED]


def _profile(table: Table, batch_size: int, exponent: float) -> Table:
    """The table with the profile of ids whose k-th most popular row has a popularity proportional to k**-exponent."""
    ids = max(batch_indices(table.pooling_factor, batch_size), 1)
    rows = expected_rows(*zipf_buckets(table.num_embeddings, exponent), ids)
    unique_rows = float(min(rows.sum(), table.num_embeddings, ids))
    return replace(table, unique_rows=unique_rows, reuse=tuple((rows / rows.sum()).tolist()))
