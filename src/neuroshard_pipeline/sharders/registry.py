"""Sharders by name, and functions that run one sharder on one task or several sharders on several tasks."""

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pydantic import AfterValidator

from neuroshard_pipeline.cost_models.comm import ranks_per_host_of
from neuroshard_pipeline.errors import (
    ConstraintError,
    CostModelError,
    DoesNotFitError,
    NeuroShardError,
    PlanError,
    TaskError,
    did_you_mean,
)
from neuroshard_pipeline.parameters import one_of
from neuroshard_pipeline.search.changes import rejected_changes
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.rank_order import ms_per_byte_of, order_ranks
from neuroshard_pipeline.sharders.base import Sharder, SharderSettings
from neuroshard_pipeline.sharders.embark import EmbarkSharder
from neuroshard_pipeline.sharders.greedy import GREEDY_WEIGHTS, GreedySharder
from neuroshard_pipeline.sharders.milp import MilpSharder
from neuroshard_pipeline.sharders.neuroshard import NeuroShard
from neuroshard_pipeline.sharders.policies.networks import NETWORKS
from neuroshard_pipeline.sharders.policies.policy import NO_POLICIES, Policies
from neuroshard_pipeline.sharders.policies.sharder import PolicySharder
from neuroshard_pipeline.sharders.random import RandomSharder
from neuroshard_pipeline.sharders.torchrec import TorchRecSharder
from neuroshard_pipeline.tables.task import ShardingTask, on_hosts

#: Names of the sharders that need a trained policy.
LEARNED: tuple[str, ...] = tuple(NETWORKS)

#: Names of the sharders that need the extra `torchrec`.
TORCHREC: tuple[str, ...] = ("torchrec", "torchrec_fitted")

_SEARCHES = ("neuroshard", "neuroshard_plus")

#: Names of all sharders.
SHARDERS: tuple[str, ...] = ("random", *GREEDY_WEIGHTS, *TORCHREC, "embark", "milp", *_SEARCHES, *LEARNED)


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("name every sharder once")
    return names


#: Parameter types: the name of one sharder, and the names of several different sharders.
SharderName = Annotated[str, one_of(SHARDERS)]
SharderNames = Annotated[tuple[SharderName, ...], AfterValidator(_distinct)]


def make_sharder(name: str, settings: SharderSettings | None = None, policies: Policies = NO_POLICIES) -> Sharder:
    """The sharder called `name`; its settings are the defaults if `settings` is None.

    Raises:
        NeuroShardError: no sharder has this name, or it needs a policy that is missing; the message lists the names,
            or states the command that trains the policy.
    """
    if name not in SHARDERS:
        known = ", ".join(SHARDERS)
        raise NeuroShardError(f"sharder {name!r} is unknown; use one of {known}{did_you_mean(str(name), SHARDERS)}")
    settings = SharderSettings() if settings is None else settings
    if not isinstance(settings, SharderSettings):
        raise NeuroShardError(f"params {settings!r:.60} must be SharderSettings(...)")
    if not isinstance(policies, Policies):
        raise NeuroShardError(f"policies {policies!r:.60} must be trained policies, as load_policies returns them")
    rivals = settings.rivals
    if name in LEARNED:
        return PolicySharder(policies.of(name), rivals.policy_rollouts)
    if name in GREEDY_WEIGHTS:
        return GreedySharder(name)
    embark = EmbarkSharder(rivals.embark_network_slowdown, rivals.embark_replica_rows_per_sample)
    published = NeuroShard(settings.search)
    cheap: tuple[Sharder, ...] = (*map(GreedySharder, GREEDY_WEIGHTS), embark, published)
    makers: dict[str, Callable[[], Sharder]] = {
        "random": RandomSharder,
        "torchrec": TorchRecSharder,
        "torchrec_fitted": lambda: TorchRecSharder("torchrec_fitted", is_fitted=True),
        "embark": lambda: embark,
        "milp": lambda: MilpSharder(rivals.milp_time_limit_seconds, rivals.milp_gap),
        "neuroshard": lambda: published,
        "neuroshard_plus": lambda: NeuroShard(settings.search, settings.local_search, cheap),
    }
    return makers[name]()


def shard(
    task: ShardingTask,
    models: Models,
    sharder: str = "neuroshard_plus",
    params: SharderSettings | None = None,
    seed: int = 0,
    policies: Policies = NO_POLICIES,
) -> Plan:
    """Plan a sharding task.

    Args:
        task: tables, ranks, batch size and memory. If it has no `local_world_size`, and the models are those of a
            modelled cluster, the plan's task gets the ranks per host of that cluster (`task.on_hosts`).
        models: cost models, as `load_cost_models` returns them.
        sharder: one of `SHARDERS`.
        params: settings of the sharders and of the memory model. None means those of conf/base/parameters_search.yml.
        seed: seed of sharders that draw random numbers, a whole number of at least 0.
        policies: trained policies, as `load_policies` returns them, for the sharders that need one.

    Returns:
        A plan with its predicted cost, prediction intervals, and the best single changes that were rejected.

    Raises:
        DoesNotFitError: the sharder found no plan within the memory limits.
        ConstraintError: the sharder cannot respect a constraint of the task.
        NeuroShardError: the sharder is unknown, or lacks its policy or extra; or another argument is of a wrong type.
    """
    settings = SharderSettings() if params is None else params
    made = make_sharder(sharder, settings, policies)
    problem = _problem(task, models, settings.memory)
    return _explained_plan(problem, made.shard(problem, _generator(seed, task.task_id, sharder)), sharder)


def ordered_by_links(plan: Plan, gb_per_s: ArrayLike, models: Models) -> Plan:
    """Reorder the ranks of a plan so that its collectives cost less on the given links between ranks.

    Use it if the links of a cluster differ in ways that the cost models do not represent. Column-wise
    shards of one rank stay together, and all other shards stay where they are. Every rank is assumed to send its
    messages one after the other, and to receive them one after the other (see `search.rank_order`). Memory limits and
    constraints are kept.

    Args:
        plan: any plan.
        gb_per_s: (W, W) measured bandwidth in GB/s, from the rank of the row to the rank of the column. The diagonal
            has no effect.
        models: cost models that predict the cost of the new order.

    Returns:
        A plan with its predicted cost, prediction intervals and rejected changes, as `shard` returns it.

    Raises:
        PlanError: the matrix has another shape, or a bandwidth is not positive.
        NeuroShardError: `plan` or `models` is something else.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"plan {plan!r:.60} must be a plan, as shard returns it")
    _check_models(models)
    ordered = order_ranks(plan, ms_per_byte_of(gb_per_s, plan.task.world_size))
    problem = Problem(plan.task, models, plan.memory)
    return _explained_plan(problem, Placement(ordered.shards, ordered.ranks), plan.sharder)


def on_hosts_of(models: Models, task: ShardingTask) -> ShardingTask:
    """The task on hosts of the modelled cluster that the models belong to; see `task.on_hosts`."""
    return on_hosts(task, ranks_per_host_of(getattr(models.comm, "provenance", {})))


def _problem(task: ShardingTask, models: Models, memory: MemoryModel) -> Problem:
    if not isinstance(task, ShardingTask):
        raise TaskError(f"task {task!r:.60} must be made with ShardingTask(...)")
    _check_models(models)
    return Problem(on_hosts_of(models, task), models, memory)


def _check_models(models: Models) -> None:
    if not hasattr(models, "comm"):
        raise CostModelError(f"models {models!r:.60} must be cost models, as load_cost_models returns them")


def _explained_plan(problem: Problem, placement: Placement, sharder: str) -> Plan:
    problem = problem.of(placement)
    return price_plan(problem, placement, sharder, rejected_changes(problem, placement))


@dataclass(frozen=True)
class Solutions:
    """Results of sharders on sharding tasks.

    Attributes:
        plans: every plan found, with its predicted cost.
        attempts: one row per task and sharder, `task_id, sharder, seconds, error`; `error` is None if a plan was
            found, and the message of the `DoesNotFitError` or `ConstraintError` otherwise.
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
    policies: Policies = NO_POLICIES,
) -> Solutions:
    """Run every sharder on every task and return all plans and attempts.

    The seconds of an attempt are those of the sharder, without the final prediction of the plan's cost.

    Args:
        tasks: sharding tasks with distinct `task_id`; ranks per host as in `shard`.
        sharder_names: names from `SHARDERS`.
        models: cost models.
        settings: as `params` of `shard`.
        seed: as in `shard`; the random numbers of a task and sharder do not depend on other tasks and sharders.
        policies: as in `shard`.

    Raises:
        NeuroShardError: an unknown sharder or a missing policy, before the first task; or a missing extra, later.
    """
    from neuroshard_pipeline.search.greedy_runs import compile_ahead  # imported late: importing numba takes 0.3 s

    settings = settings or SharderSettings()
    sharders = [make_sharder(name, settings, policies) for name in sharder_names]
    compile_ahead()  # so that no attempt includes the compilation
    plans, attempts = [], []
    for task in tasks:
        for sharder in sharders:
            start = time.perf_counter()
            solved, error = _attempt(sharder, task, models, settings.memory, seed)
            attempts.append((task.task_id, sharder.name, time.perf_counter() - start, error))
            if solved is not None:
                plans.append(price_plan(*solved, sharder.name))
    return Solutions(tuple(plans), pd.DataFrame(attempts, columns=["task_id", "sharder", "seconds", "error"]))


def _attempt(
    sharder: Sharder, task: ShardingTask, models: Models, memory: MemoryModel, seed: int
) -> tuple[tuple[Problem, Placement] | None, str | None]:
    """The problem and its placement, or the reason why there is none."""
    try:
        problem = _problem(task, models, memory)
        return (problem, sharder.shard(problem, _generator(seed, task.task_id, sharder.name))), None
    except (DoesNotFitError, ConstraintError) as refusal:
        return None, str(refusal)


def _generator(seed: int, task_id: str, sharder: str) -> np.random.Generator:
    """The random generator of one task and sharder."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise NeuroShardError(f"seed {seed!r:.60} must be a whole number of at least 0")
    return np.random.default_rng([seed, zlib.crc32(task_id.encode()), zlib.crc32(sharder.encode())])
