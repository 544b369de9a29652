"""Chooses the tiers of sequence tables: variants of a task whose popular rows are replicated on ranks or on hosts.

`tier_prices` reduces the choice to two numbers, the multiples of the prices of a hot row and of a host row. The cost of
a step is estimated for a coarse grid of hot rows alone, then for host rows beside the best hot rows, and then for
multiples around the best. Every estimate prices the whole step and all types of the other tables (`SpreadChoice`).
The best cuts without and with a host tier are the variants. Each must fit the memory that the task has anyway.

Tables with pooling have no tiers. Their cold part would still send an output per bag, so that only ids would be saved.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread_choice import SpreadChoice, Usable
from neuroshard_pipeline.search.tier_prices import CutFamily, cuttable_tables, tier_prices
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts

#: Multiples of the price of a row: a coarse grid, and factors up and down from the best multiple.
_MULTIPLES = tuple(4.0**power for power in range(-3, 4))
_AROUND = (2.0, 2.0**0.5)

#: A variant is returned if its estimated cost is at most this multiple of the estimate without tiers.
_MOST_OF_NO_TIERS = 1.02


@dataclass(frozen=True)
class _Trial:
    """Multiples of the prices of hot and of host rows, and the estimated cost of a step with the cuts they give."""

    hot_price: float
    host_price: float | None
    estimate_ms: float


def tier_variants(problem: Problem, usable: Usable) -> list[ShardingTask]:
    """The most promising variants of a task with tiers, the one with the lowest estimated cost first.

    Args:
        problem: the problem of a task that allows tiers; any other has no such variants.
        usable: the sharding types of a table.
    """
    step, tables = problem.models.step, cuttable_tables(problem.task)
    if step is None or not tables or problem.task.world_size == 1:
        return []
    search = _TierSearch(problem, step, usable, CutFamily(problem.task, tables, tier_prices(problem, step)))
    limit_ms = _MOST_OF_NO_TIERS * search.estimate_ms({})
    found: list[ShardingTask] = []
    for trial in sorted(search.best(), key=lambda trial: trial.estimate_ms):
        cuts = search.family.cuts(trial.hot_price, trial.host_price)
        variant = search.family.variant(cuts)
        if cuts and trial.estimate_ms <= limit_ms and variant not in found:
            found.append(variant)
    return found


class _TierSearch:
    """Estimates of the cost of a step with tiers.

    Attributes:
        family: the cuts that are considered.
    """

    def __init__(self, problem: Problem, step: StepCostModel, usable: Usable, family: CutFamily) -> None:
        self.family = family
        self._problem, self._step, self._usable = problem, step, usable
        self._known: dict[tuple[tuple[str, Cuts], ...], float] = {}

    def best(self) -> list[_Trial]:
        """The best trial without host rows and, if there are several hosts, the best one with host rows."""
        hot = self._around(self._cheapest((multiple, None) for multiple in _MULTIPLES))
        if self._problem.task.num_hosts == 1:
            return [hot]
        host = self._cheapest((hot.hot_price, multiple) for multiple in _MULTIPLES)
        host = self._cheapest((multiple, host.host_price) for multiple in (*_MULTIPLES, np.inf))
        return [hot, self._around(host)]

    def _around(self, trial: _Trial) -> _Trial:
        """The cheapest trial near another one."""
        for factor in _AROUND:
            multiples = (1.0, factor, 1.0 / factor)
            trial = self._cheapest((trial.hot_price * multiple, trial.host_price) for multiple in multiples)
            if trial.host_price is not None:
                trial = self._cheapest((trial.hot_price, trial.host_price * multiple) for multiple in multiples)
        return trial

    def _cheapest(self, prices: Iterable[tuple[float, float | None]]) -> _Trial:
        trials = [_Trial(hot, host, self.estimate_ms(self.family.cuts(hot, host))) for hot, host in prices]
        return min(trials, key=lambda trial: trial.estimate_ms)

    def estimate_ms(self, cuts: Mapping[str, Cuts]) -> float:
        """Estimated cost of a step with these cuts; infinite if the ranks lack memory for them."""
        key = tuple(cuts.items())
        if key not in self._known:
            self._known[key] = self._estimated_ms(self.family.variant(cuts))
        return self._known[key]

    def _estimated_ms(self, task: ShardingTask) -> float:
        problem = Problem(task, self._problem.models, self._problem.memory)
        if _least_bytes(problem) > problem.limits.min():
            return np.inf
        try:
            return SpreadChoice(problem, self._step, self._usable).estimate_ms()
        except DoesNotFitError:
            return np.inf


def _least_bytes(problem: Problem) -> float:
    """Bytes of the popular tiers on a rank, and its even share of all other tables."""
    task, memory = problem.task, problem.memory
    total = 0.0
    for table in task.tables:
        if table.tier is None or table.tier.kind == "cold":
            total += memory.table_bytes(table, table.embedding_dim, task) / task.world_size
        elif table.tier.kind == "hot":
            total += memory.shard_bytes(whole(table, "data_parallel"), task)
        else:
            total += memory.shard_bytes(row_shards(table, "host_row_wise", task.ranks_per_host)[0], task)
    return total
