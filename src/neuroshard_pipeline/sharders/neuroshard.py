"""The sharder of [Zha2023]: beam search over column splits around a greedy grid search."""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.search.beam import beam_search
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.placement import PlacedState
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import SearchingSharder


@dataclass(frozen=True)
class NeuroShard(SearchingSharder):
    """Column-wise and table-wise sharding that minimises the predicted embedding cost; deterministic."""

    params: SearchParams
    name: str = "neuroshard"

    def search(self, problem: Problem, rng: np.random.Generator) -> list[PlacedState]:  # noqa: ARG002
        """The states of the beam, in ascending order of predicted cost.

        Raises:
            DoesNotFitError: the task does not fit the memory of its ranks.
        """
        return beam_search(problem, self.params)
