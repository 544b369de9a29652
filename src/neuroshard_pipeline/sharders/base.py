"""The interface of sharders, and the settings of all of them."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from pydantic import Field

from neuroshard_pipeline.errors import ConstraintError
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import LocalSearchParams, SearchParams, default_memory, default_values
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.task import ShardingTask


class Sharder(Protocol):
    """Maps a sharding problem to a placement."""

    @property
    def name(self) -> str:
        """Name of the sharder in data frames and reports."""
        ...

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:
        """A placement of the problem's tables that respects every memory limit and constraint.

        Raises:
            DoesNotFitError: this sharder found no placement that fits.
            ConstraintError: this sharder cannot respect a constraint of the task.
        """
        ...


def require_column_wise(task: ShardingTask, name: str) -> None:
    """Refuse a task with a table that must not be `column_wise`, for the sharder `name`, which knows no other type.

    Raises:
        ConstraintError: there is such a table.
    """
    for table in task.tables:
        if "column_wise" not in (types := task.possible_types(table)):
            raise ConstraintError(
                f"{task.task_id}: {task.constraints.where}table {table.name!r} may only be {' or '.join(types)}, but "
                f"{name} makes whole tables and column shards only; allow column_wise, or use neuroshard_plus with a "
                "step cost model"
            )


class RivalParams(Parameters):
    """Settings of sharders that this project's sharders are compared with.

    Attributes:
        milp_time_limit_seconds: `milp` stops after this time with the best plan found so far.
        milp_gap: `milp` stops when its plan's cost minus the proven lower bound is at most this share of the cost.
        embark_network_slowdown: hardware assumption of `embark`: time to send a byte between ranks, divided by the time
            to read a byte from memory.
        embark_replica_rows_per_sample: `embark` replicates a table with at most this many rows per sample of the batch.
        policy_rollouts: number of plans that `autoshard` and `dreamshard` each make for a task; the one with the lowest
            predicted cost is returned.
    """

    milp_time_limit_seconds: float = Field(gt=0.0, allow_inf_nan=False)
    milp_gap: float = Field(ge=0.0, lt=1.0)
    embark_network_slowdown: float = Field(ge=0.0, allow_inf_nan=False)
    embark_replica_rows_per_sample: float = Field(ge=0.0, allow_inf_nan=False)
    policy_rollouts: int = Field(ge=1, le=10_000)


@dataclass(frozen=True)
class SharderSettings:
    """Settings of all sharders; the defaults are the values of conf/base/parameters_search.yml.

    Attributes:
        search: settings of the beam search of `neuroshard` and `neuroshard_plus`.
        local_search: settings of the local search of `neuroshard_plus`.
        memory: what counts against the memory of a rank, for all sharders.
        rivals: settings of the rivals.
    """

    search: SearchParams = field(default_factory=lambda: SearchParams(**default_values()["neuroshard"]))
    local_search: LocalSearchParams = field(
        default_factory=lambda: LocalSearchParams(**default_values()["neuroshard_plus"])
    )
    memory: MemoryModel = field(default_factory=default_memory)
    rivals: RivalParams = field(default_factory=lambda: RivalParams(**default_values()["rivals"]))
