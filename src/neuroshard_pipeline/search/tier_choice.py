"""Chooses the tiers of sequence tables: popular rows are replicated on every rank (hot) or on every host (host).

Each choice gives a variant of the task. `tier_prices` reduces the choice to two numbers: multiples of the price of a
hot row and of the price of a host row. The higher a price, the fewer rows get into the tier. First, only hot tiers are
considered. The cost of a step is estimated for a coarse grid of multiples, for the multiple at which the tiers fill the
memory, and then for multiples around the best one. The same is done for hot and host tiers together. Every estimate
covers the whole step, and includes a choice of the sharding types of all other tables (`SpreadChoice`). The result is
at most two variants, the best cuts without and with a host tier; no variant is returned whose ranks surely lack memory.

Pooled tables get no tiers. Their cold part would still send an output per bag, so that only ids would be saved.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.models import ComputeModel, ModelsWith
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread_choice import SpreadChoice, Usable
from neuroshard_pipeline.search.tier_prices import CutFamily, cuttable_tables, tier_prices
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts

#: Multiples of the price of a row: a coarse grid, and the factors by which the best one is then changed.
_MULTIPLES = tuple(4.0**power for power in range(-2, 3))
_STEPS = (4.0, 2.0, 2.0**0.5, 1.1)

#: The lowest multiple that fits the memory is sought by halving the range of multiples this often.
_HALVINGS = 6

#: The search without host rows finds a price of hot rows. That with host rows tries it, and these multiples of it.
_FEWER_HOT = (4.0, 16.0)

#: More than the estimate of any step: the estimate if no sharding types are found with which the tables fit. Such a
#: variant is returned only if no other one, nor the task without tiers, has a lower estimate.
_FORBIDDEN_MS = 1e12

#: Limits of a variant's estimate: multiples of the estimate without tiers, and of the best estimate with tiers.
_MOST_OF_NO_TIERS, _MOST_OF_BEST = 1.02, 1.02


@dataclass(frozen=True)
class _Trial:
    """Multiples of the prices of hot and of host rows, and the estimated cost of a step with the cuts they give."""

    hot_price: float
    host_price: float | None
    estimate_ms: float


def tier_variants(problem: Problem, usable: Usable) -> list[ShardingTask]:
    """The most promising variants of a task with tiers, the one with the lowest estimated cost first.

    There are none if the task does not allow tiers or has a single rank, or if there is no step cost model.
    """
    tables = cuttable_tables(problem.task)
    if problem.models.step is None or not tables or problem.task.world_size == 1:
        return []
    search = _TierSearch(problem, usable, CutFamily(problem.task, tables, tier_prices(problem)))
    trials = sorted(search.best(), key=lambda trial: trial.estimate_ms)
    limit_ms = min(_MOST_OF_NO_TIERS * search.estimate_ms({}), _MOST_OF_BEST * trials[0].estimate_ms)
    found: list[ShardingTask] = []
    for trial in trials:
        cuts = search.family.cuts(trial.hot_price, trial.host_price)
        variant = search.family.variant(cuts)
        if cuts and trial.estimate_ms <= min(limit_ms, _FORBIDDEN_MS) and variant not in found:
            found.append(variant)
    return found


class _TierSearch:
    """Estimates of the cost of a step with tiers, for the cuts of a family."""

    def __init__(self, problem: Problem, usable: Usable, family: CutFamily) -> None:
        self.family = family
        self._problem, self._usable = problem, usable
        self._models = ModelsWith(_RememberingCompute(problem.models.compute), problem.models)
        self._known: dict[tuple[tuple[str, Cuts], ...], float] = {}

    def best(self) -> list[_Trial]:
        """The best trial without host rows and, if there are several hosts, the best one with host rows."""
        hot = self._descended(self._cheapest((multiple, None) for multiple in (*_MULTIPLES, self._filling(None))))
        if not any("host" in table.kinds for table in self.family.tables):
            return [hot]
        # Beside host rows, fewer hot rows pay, and less memory is left for them.
        hot_prices = [hot.hot_price * factor for factor in (1.0, *_FEWER_HOT, np.inf)]
        host = self._cheapest(
            (price, multiple) for price in hot_prices for multiple in (*_MULTIPLES, self._filling(price))
        )
        return [hot, self._descended(host)]

    def _filling(self, hot_price: float | None) -> float:
        """About the lowest multiple whose cuts fit the memory, between the ends of `_MULTIPLES`.

        If `hot_price` is given, this is a multiple of the price of host rows, beside hot rows of that price. If it is
        None, this is a multiple of the price of hot rows, without host rows. The grid may miss good cuts: one of its
        multiples may give so few popular rows that they cost more than none, and the next lower multiple may give more
        rows than fit the memory.
        """
        low, high = _MULTIPLES[0], _MULTIPLES[-1]
        for _ in range(_HALVINGS):
            middle = (low * high) ** 0.5
            cuts = self.family.cuts(middle, None) if hot_price is None else self.family.cuts(hot_price, middle)
            if self._used(self.family.variant(cuts)) <= 1.0:
                high = middle
            else:
                low = middle
        return high

    def _used(self, task: ShardingTask) -> float:
        """Memory that a rank needs at least, as a share of the smallest limit."""
        problem = Problem(task, self._models, self._problem.memory)
        return _least_bytes(problem) / float(problem.limits.min())

    def _descended(self, trial: _Trial) -> _Trial:
        """The cheapest trial that is reached from `trial` by changing prices as long as the estimate falls.

        The factors of the changes become ever smaller. A change concerns one price, or both in opposite directions, as
        if hot and host rows exchanged memory.
        """
        for step in _STEPS:
            while True:
                near: list[tuple[float, float | None]] = []
                for factor in (step, 1.0 / step):
                    near.append((trial.hot_price * factor, trial.host_price))
                    if trial.host_price is not None:
                        near.append((trial.hot_price, trial.host_price * factor))
                        near.append((trial.hot_price * factor, trial.host_price / factor))
                found = self._cheapest(near)
                if found.estimate_ms >= trial.estimate_ms:
                    break
                trial = found
        return trial

    def _cheapest(self, prices: Iterable[tuple[float, float | None]]) -> _Trial:
        trials = [_Trial(hot, host, self.estimate_ms(self.family.cuts(hot, host))) for hot, host in prices]
        return min(trials, key=lambda trial: trial.estimate_ms)

    def estimate_ms(self, cuts: Mapping[str, Cuts]) -> float:
        """Estimated cost of a step with these cuts.

        If the ranks lack memory, the estimate is larger than any real cost, and grows with the memory that they lack.
        """
        key = tuple(cuts.items())
        if key not in self._known:
            self._known[key] = self._estimated_ms(self.family.variant(cuts))
        return self._known[key]

    def _estimated_ms(self, task: ShardingTask) -> float:
        if (used := self._used(task)) > 1.0:
            return _FORBIDDEN_MS * used
        problem = Problem(task, self._models, self._problem.memory)
        try:
            return SpreadChoice(problem, self._usable).estimate_ms()
        except DoesNotFitError:
            return _FORBIDDEN_MS


def _least_bytes(problem: Problem) -> float:
    """Bytes on a rank that holds its shards of the popular tiers and an even share of all other tables."""
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


class _RememberingCompute:
    """A compute cost model that remembers the embeddings of shards; variants of a task have many shards in common."""

    def __init__(self, model: ComputeModel) -> None:
        self._model = model
        self._known: dict[tuple[Shard, int, str], FloatArray] = {}
        self.costs_from_sums = model.costs_from_sums
        self.interval_from_sums = model.interval_from_sums

    def shard_embeddings(self, shards: Sequence[Shard], batch_size: int, optimizer: str = "sgd") -> FloatArray:
        """Embeddings (S, H) of the model."""
        keys = [(shard, batch_size, optimizer) for shard in shards]
        missing = [shard for key, shard in zip(keys, shards, strict=True) if key not in self._known]
        if missing:
            found = self._model.shard_embeddings(missing, batch_size, optimizer)
            self._known.update({(shard, batch_size, optimizer): row for shard, row in zip(missing, found, strict=True)})
        return np.array([self._known[key] for key in keys])
