"""NeuroShard with a local search after the beam search."""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.search.beam import beam_search
from neuroshard_pipeline.search.local_search import local_search
from neuroshard_pipeline.search.params import LocalSearchParams, SearchParams
from neuroshard_pipeline.search.placement import PlacedState
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import SearchingSharder


@dataclass(frozen=True)
class NeuroShardPlus(SearchingSharder):
    """Improves the result of the beam search by moves, swaps, splits and merges of any width; never a worse plan.

    Deterministic for a seed, unless `local_params.time_budget_seconds` ends the search.
    """

    params: SearchParams
    local_params: LocalSearchParams
    name: str = "neuroshard_plus"

    def search(self, problem: Problem, rng: np.random.Generator) -> list[PlacedState]:
        """The states in which rounds of the local search ended, in ascending order of predicted cost.

        Raises:
            DoesNotFitError: the task does not fit the memory of its ranks.
        """
        return local_search(beam_search(problem, self.params)[0], problem, self.local_params, rng)
