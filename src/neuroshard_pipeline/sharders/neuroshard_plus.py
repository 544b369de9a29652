"""NeuroShard with a local search after the beam search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.search.columns import beam_search
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import PlusParams, SearchParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.refine import refined_placements
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.tables.task import ShardingTask


@dataclass(frozen=True)
class NeuroShardPlus:
    """The beam search's plan, improved by moves, swaps, splits and merges of uneven widths; never a worse one.

    Deterministic for a seed, unless `plus.time_budget_seconds` ends it.
    """

    params: SearchParams
    plus: PlusParams
    memory: MemoryModel
    name: str = "neuroshard_plus"

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:
        """The plan of lowest predicted embedding cost that both searches met.

        Raises:
            DoesNotFitError: the task does not fit the memory of its ranks.
        """
        return self.shortlist(task, models, rng, 1)[0]

    def shortlist(self, task: ShardingTask, models: Models, rng: np.random.Generator, count: int) -> list[Plan]:
        """The plan of `shard` and at most `count - 1` runners-up, in ascending order of cautious cost.

        Raises:
            DoesNotFitError: the task does not fit the memory of its ranks.
        """
        kinds = ShardKinds(task, models, self.memory)
        placements = refined_placements(beam_search(kinds, self.params), kinds, self.plus, rng)[:count]
        return [kinds.plan(placement.kinds, placement.ranks, self.name) for placement in placements]
