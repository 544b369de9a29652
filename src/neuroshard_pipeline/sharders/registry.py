"""Sharders by name, and the two ways to run them: one task, or all sharders on all tasks."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from neuroshard_pipeline.errors import DoesNotFitError, NeuroShardError
from neuroshard_pipeline.search.changes import with_rejected_changes
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models, with_predicted_cost
from neuroshard_pipeline.sharders.base import Sharder, SharderSettings
from neuroshard_pipeline.sharders.greedy import (
    GreedySharder,
    dim_weight,
    lookup_weight,
    size_lookup_weight,
    size_weight,
)
from neuroshard_pipeline.sharders.neuroshard import NeuroShard
from neuroshard_pipeline.sharders.neuroshard_plus import NeuroShardPlus
from neuroshard_pipeline.sharders.random import RandomSharder
from neuroshard_pipeline.sharders.torchrec import TorchRecSharder
from neuroshard_pipeline.tables.task import ShardingTask

_MAKERS: dict[str, Callable[[SharderSettings], Sharder]] = {
    "random": lambda settings: RandomSharder(settings.memory),
    "size_greedy": lambda settings: GreedySharder("size_greedy", size_weight, settings.memory),
    "dim_greedy": lambda settings: GreedySharder("dim_greedy", dim_weight, settings.memory),
    "lookup_greedy": lambda settings: GreedySharder("lookup_greedy", lookup_weight, settings.memory),
    "size_lookup_greedy": lambda settings: GreedySharder("size_lookup_greedy", size_lookup_weight, settings.memory),
    "torchrec": lambda settings: TorchRecSharder(settings.memory),
    "neuroshard": lambda settings: NeuroShard(settings.search, settings.memory),
    "neuroshard_plus": lambda settings: NeuroShardPlus(settings.search, settings.plus, settings.memory),
}

#: Names of all sharders.
SHARDERS: tuple[str, ...] = tuple(_MAKERS)


def make_sharder(name: str, settings: SharderSettings | None = None) -> Sharder:
    """The sharder called `name`; without settings, with the paper's.

    Raises:
        NeuroShardError: no sharder has this name; the message lists them.
    """
    if name not in _MAKERS:
        raise NeuroShardError(f"sharder {name!r} is unknown; use one of {', '.join(SHARDERS)}")
    return _MAKERS[name](settings or SharderSettings())


def shard(
    task: ShardingTask,
    models: Models,
    sharder: str = "neuroshard",
    params: SharderSettings | None = None,
    seed: int = 0,
) -> Plan:
    """Plan a sharding task.

    Args:
        task: tables, ranks, batch size and memory.
        models: cost models, as `load_cost_models` returns them.
        sharder: one of `SHARDERS`.
        params: settings of the searches and of the memory model; the paper's where None.
        seed: of sharders that draw random numbers.

    Returns:
        A plan with its predicted cost and the best single changes that it does not make.

    Raises:
        DoesNotFitError: the sharder found no plan within the memory limits.
        NeuroShardError: the sharder's name is unknown.
    """
    found = make_sharder(sharder, params).shard(task, models, _generator(seed, task.task_id, sharder))
    return with_rejected_changes(with_predicted_cost(found, models), models)


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
) -> Solutions:
    """Let every sharder plan every task.

    Args:
        tasks: sharding tasks with distinct `task_id`.
        sharder_names: names out of `SHARDERS`.
        models: cost models.
        settings: as in `shard`.
        seed: as in `shard`; every task and sharder has its own random numbers, whatever else runs.
        progress: wraps the iteration over tasks, for example in a progress bar.

    Raises:
        NeuroShardError: an unknown sharder, before any work is done.
    """
    sharders = [make_sharder(name, settings) for name in sharder_names]
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
