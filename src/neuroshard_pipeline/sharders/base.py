"""What a sharder is, and what all of them are set up with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from neuroshard_pipeline.search.memory import WEIGHTS_AND_OPTIMIZER, MemoryModel
from neuroshard_pipeline.search.params import PAPER_SEARCH, REFINEMENT, PlusParams, SearchParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.tables.task import ShardingTask


class Sharder(Protocol):
    """Anything that maps a sharding task to a plan."""

    @property
    def name(self) -> str:
        """What frames and reports call the sharder."""
        ...

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:
        """A plan for `task` that respects every memory limit.

        Raises:
            DoesNotFitError: this sharder found no plan that fits.
        """
        ...


class ShortlistingSharder(Sharder, Protocol):
    """A sharder that can also name the plans that came next."""

    def shortlist(self, task: ShardingTask, models: Models, rng: np.random.Generator, count: int) -> list[Plan]:
        """The plan of `shard`, and at most `count - 1` runners-up in the order in which they would have been taken.

        Raises:
            DoesNotFitError: this sharder found no plan that fits.
        """
        ...


class RivalParams(BaseModel):
    """Settings of the sharders that this project is compared with.

    Attributes:
        milp_time_limit_seconds: `milp` stops here with the best plan that it has.
        milp_gap: `milp` stops when its plan is proved to cost at most so much more than the best, as a share.
        embark_network_slowdown: what `embark` assumes of the hardware: time of a byte sent between ranks over that of
            a byte read from memory.
        policy_rollouts: plans that `autoshard` and `dreamshard` make of a task; the best by predicted cost is theirs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    milp_time_limit_seconds: float = Field(gt=0.0, allow_inf_nan=False)
    milp_gap: float = Field(ge=0.0, lt=1.0)
    embark_network_slowdown: float = Field(ge=0.0, allow_inf_nan=False)
    policy_rollouts: int = Field(ge=1, le=10_000)


#: Ten times is NVLink against HBM: 450 GB/s each way and 4.8 TB/s on an H200 (NVIDIA's datasheet).
RIVALS = RivalParams(milp_time_limit_seconds=10.0, milp_gap=0.005, embark_network_slowdown=10.0, policy_rollouts=16)


@dataclass(frozen=True)
class SharderSettings:
    """Settings that sharders pick theirs from.

    Attributes:
        search: of the beam search, for `neuroshard` and `neuroshard_plus`.
        plus: of the local search, for `neuroshard_plus`.
        memory: what counts against the memory of a rank, for all.
        rivals: of the sharders that this project is compared with.
    """

    search: SearchParams = PAPER_SEARCH
    plus: PlusParams = REFINEMENT
    memory: MemoryModel = WEIGHTS_AND_OPTIMIZER
    rivals: RivalParams = RIVALS
