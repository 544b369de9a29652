"""What a sharder is, and what all of them are set up with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

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


@dataclass(frozen=True)
class SharderSettings:
    """Settings that sharders pick theirs from.

    Attributes:
        search: of the beam search, for `neuroshard` and `neuroshard_plus`.
        plus: of the local search, for `neuroshard_plus`.
        memory: what counts against the memory of a rank, for all.
    """

    search: SearchParams = PAPER_SEARCH
    plus: PlusParams = REFINEMENT
    memory: MemoryModel = WEIGHTS_AND_OPTIMIZER
