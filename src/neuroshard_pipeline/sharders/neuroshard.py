"""The sharder of [Zha2023]: beam search over column splits around a greedy grid search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.search.columns import beam_placements
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.tables.task import ShardingTask


@dataclass(frozen=True)
class NeuroShard:
    """Cost-model-driven column-wise and table-wise sharding; deterministic."""

    params: SearchParams
    memory: MemoryModel
    name: str = "neuroshard"

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:
        """The plan of lowest predicted embedding cost that the search met.

        Raises:
            DoesNotFitError: the task does not fit the memory of its ranks.
        """
        return self.shortlist(task, models, rng, 1)[0]

    def shortlist(self, task: ShardingTask, models: Models, rng: np.random.Generator, count: int) -> list[Plan]:  # noqa: ARG002
        """The plan of `shard` and at most `count - 1` runners-up, in ascending order of predicted cost.

        Raises:
            DoesNotFitError: the task does not fit the memory of its ranks.
        """
        kinds = ShardKinds(task, models, self.memory)
        placements = beam_placements(kinds, self.params)[:count]
        return [kinds.plan(placement.kinds, placement.ranks, self.name) for placement in placements]
