"""Sharders by name, and the two ways to run them: one task, or all sharders on all tasks."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from neuroshard_pipeline.errors import DoesNotFitError, NeuroShardError, did_you_mean
from neuroshard_pipeline.search.changes import with_rejected_changes
from neuroshard_pipeline.search.placement import prepare
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.rank_order import ms_per_byte_of, order_ranks
from neuroshard_pipeline.search.simulator import Models, with_intervals, with_predicted_cost
from neuroshard_pipeline.sharders.base import Sharder, SharderSettings, ShortlistingSharder
from neuroshard_pipeline.sharders.embark import EmbarkSharder
from neuroshard_pipeline.sharders.greedy import GREEDY_WEIGHTS, GreedySharder
from neuroshard_pipeline.sharders.milp import MilpSharder
from neuroshard_pipeline.sharders.neuroshard import NeuroShard
from neuroshard_pipeline.sharders.neuroshard_plus import NeuroShardPlus
from neuroshard_pipeline.sharders.policies.networks import NETWORKS
from neuroshard_pipeline.sharders.policies.policy import NO_POLICIES, Policies
from neuroshard_pipeline.sharders.policies.sharder import PolicySharder
from neuroshard_pipeline.sharders.random import RandomSharder
from neuroshard_pipeline.sharders.torchrec import TorchRecSharder
from neuroshard_pipeline.tables.task import ShardingTask


def _greedy(name: str, settings: SharderSettings) -> Sharder:
    return GreedySharder(name, GREEDY_WEIGHTS[name], settings.memory)


_SHORTLISTING: dict[str, Callable[[SharderSettings], ShortlistingSharder]] = {
    "neuroshard": lambda settings: NeuroShard(settings.search, settings.memory),
    "neuroshard_plus": lambda settings: NeuroShardPlus(settings.search, settings.plus, settings.memory),
}

_MAKERS: dict[str, Callable[[SharderSettings], Sharder]] = {
    "random": lambda settings: RandomSharder(settings.memory),
    **{name: partial(_greedy, name) for name in GREEDY_WEIGHTS},
    "torchrec": lambda settings: TorchRecSharder(settings.memory),
    "embark": lambda settings: EmbarkSharder(settings.memory, settings.rivals.embark_network_slowdown),
    "milp": lambda settings: MilpSharder(
        settings.memory, settings.rivals.milp_time_limit_seconds, settings.rivals.milp_gap
    ),
    **_SHORTLISTING,
}

#: Names of the sharders that need a trained policy.
LEARNED: tuple[str, ...] = tuple(NETWORKS)

#: Names of all sharders.
SHARDERS: tuple[str, ...] = (*_MAKERS, *LEARNED)

#: Names of the sharders that can name runners-up.
SHORTLISTING: tuple[str, ...] = tuple(_SHORTLISTING)


def make_sharder(name: str, settings: SharderSettings | None = None, policies: Policies = NO_POLICIES) -> Sharder:
    """The sharder called `name`; without settings, with the paper's.

    Raises:
        NeuroShardError: no sharder has this name, or it needs a policy that is not there; the message lists the
            names, or says how the policy is trained.
    """
    if name not in SHARDERS:
        known = ", ".join(SHARDERS)
        raise NeuroShardError(f"sharder {name!r} is unknown; use one of {known}{did_you_mean(name, SHARDERS)}")
    settings = settings or SharderSettings()
    if name in LEARNED:
        return PolicySharder(policies.of(name), settings.rivals.policy_rollouts, settings.memory)
    return _MAKERS[name](settings)


def shard(
    task: ShardingTask,
    models: Models,
    sharder: str = "neuroshard",
    params: SharderSettings | None = None,
    seed: int = 0,
    policies: Policies = NO_POLICIES,
) -> Plan:
    """Plan a sharding task.

    Args:
        task: tables, ranks, batch size and memory.
        models: cost models, as `load_cost_models` returns them.
        sharder: one of `SHARDERS`.
        params: settings of the searches and of the memory model; the paper's where None.
        seed: of sharders that draw random numbers.
        policies: trained ones, as `load_policies` returns them, for the sharders that need one.

    Returns:
        A plan with its predicted cost, how sure that is, and the best single changes that it does not make.

    Raises:
        DoesNotFitError: the sharder found no plan within the memory limits.
        NeuroShardError: the sharder's name is unknown, or its policy is missing.
    """
    found = make_sharder(sharder, params, policies).shard(task, models, _generator(seed, task.task_id, sharder))
    return _priced(found, models)


def ordered_by_links(plan: Plan, gb_per_s: ArrayLike, models: Models) -> Plan:
    """The same shards together, on the ranks where the links between them make the plan's collectives cheapest.

    For clusters whose links differ in a way that the cost models do not know. Every rank sends and receives one
    message after the other; `search.rank_order` says more. Memory limits and constraints are kept.

    Args:
        plan: any plan.
        gb_per_s: (W, W) bandwidth from row to column, measured; the diagonal is passed over.
        models: that predict the cost of the new order.

    Returns:
        A plan with all that `shard` tells of it.

    Raises:
        PlanError: the matrix has another shape, or a bandwidth is not above 0.
    """
    return _priced(order_ranks(plan, ms_per_byte_of(gb_per_s)), models)


def _priced(plan: Plan, models: Models) -> Plan:
    priced = with_intervals(with_predicted_cost(plan, models), models)
    return with_rejected_changes(priced, models)


def shortlist(
    task: ShardingTask, models: Models, sharder: str, settings: SharderSettings, seed: int, count: int
) -> list[Plan]:
    """The plan of a sharder and the plans that came next in its search.

    Args:
        task: tables, ranks, batch size and memory.
        models: cost models.
        sharder: one of `SHORTLISTING`.
        settings: settings of the searches and of the memory model.
        seed: as in `shard`.
        count: plans at most.

    Returns:
        Plans with their predicted cost, the first of which is `shard`'s.

    Raises:
        DoesNotFitError: the sharder found no plan within the memory limits.
        NeuroShardError: the sharder knows no runners-up.
    """
    if sharder not in _SHORTLISTING:
        raise NeuroShardError(f"sharder {sharder!r} names no runners-up; use one of {', '.join(SHORTLISTING)}")
    found = _SHORTLISTING[sharder](settings).shortlist(task, models, _generator(seed, task.task_id, sharder), count)
    return [with_predicted_cost(plan, models) for plan in found]


@dataclass(frozen=True)
class Solutions:
    """What sharders made of sharding tasks.

    Attributes:
        plans: every plan found, with its predicted cost.
        attempts: one row per task and sharder, `task_id, sharder, seconds, error`; `error` is None for a plan and
            the message of the `DoesNotFitError` otherwise.
    """

    plans: tuple[Plan, ...]
    attempts: pd.DataFrame

    @property
    def failures(self) -> pd.DataFrame:
        """The attempts without a plan."""
        return self.attempts[self.attempts["error"].notna()]


def solve_all(
    tasks: Sequence[ShardingTask],
    sharder_names: Iterable[str],
    models: Models,
    settings: SharderSettings | None = None,
    seed: int = 0,
    progress: Callable[[Iterable[ShardingTask]], Iterable[ShardingTask]] = iter,
    policies: Policies = NO_POLICIES,
) -> Solutions:
    """Let every sharder plan every task.

    Args:
        tasks: sharding tasks with distinct `task_id`.
        sharder_names: names out of `SHARDERS`.
        models: cost models.
        settings: as in `shard`.
        seed: as in `shard`; every task and sharder has its own random numbers, whatever else runs.
        progress: wraps the iteration over tasks, for example in a progress bar.
        policies: as in `shard`.

    Raises:
        NeuroShardError: an unknown sharder or a missing policy, before any work is done.
    """
    sharders = [make_sharder(name, settings, policies) for name in sharder_names]
    prepare()  # no sharder's seconds
    plans, attempts = [], []
    for task in progress(tasks):
        for sharder in sharders:
            start = time.perf_counter()
            error = None
            try:
                found = sharder.shard(task, models, _generator(seed, task.task_id, sharder.name))
            except DoesNotFitError as refusal:
                error = str(refusal)
            seconds = time.perf_counter() - start
            attempts.append((task.task_id, sharder.name, seconds, error))
            if error is None:
                plans.append(with_predicted_cost(found, models))
    return Solutions(tuple(plans), pd.DataFrame(attempts, columns=["task_id", "sharder", "seconds", "error"]))


def _generator(seed: int, task_id: str, sharder: str) -> np.random.Generator:
    """Random numbers of one task and sharder."""
    return np.random.default_rng([seed, zlib.crc32(task_id.encode()), zlib.crc32(sharder.encode())])
