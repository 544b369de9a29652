"""The sharder of [Zha2023]: beam search over column splits around a greedy grid search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.search.columns import beam_search
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

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:  # noqa: ARG002
        """The plan of lowest predicted embedding cost that the search met.

        Raises:
            DoesNotFitError: the task does not fit the memory of its ranks.
        """
        kinds = ShardKinds(task, models, self.memory)
        placement = beam_search(kinds, self.params)
        return kinds.plan(placement.kinds, placement.ranks, self.name)
