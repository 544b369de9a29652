"""NeuroShard: the search of [Zha2023], and the same search followed by a local search."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from neuroshard_pipeline.errors import ConstraintError, DoesNotFitError
from neuroshard_pipeline.search.beam import beam_search
from neuroshard_pipeline.search.local_search import local_search
from neuroshard_pipeline.search.params import LocalSearchParams, SearchParams
from neuroshard_pipeline.search.placement import placed_state
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import placement_cost_ms
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import Sharder, require_column_wise
from neuroshard_pipeline.sharders.variants import best_variant
from neuroshard_pipeline.tables.table import whole

#: The local search also starts from all placements of whole tables, if there are at most so many.
_MOST_PLACEMENTS = 512


@dataclass(frozen=True)
class NeuroShard:
    """Sharding that minimises the predicted embedding cost.

    `neuroshard` is the published search: a beam search over column splits around a greedy grid search. It minimises the
    costs of lookups and of all-to-alls, and is deterministic. `neuroshard_plus` improves the result by a local search
    (`search.local_search`). With a step cost model, it minimises the cost of the whole step over all sharding types
    (`sharders.whole_step`) and over variants of the task (`sharders.variants`). It is deterministic for a seed, unless
    `local_search.time_budget_seconds` ends the search.

    Attributes:
        search: parameters of the beam search.
        local_search: parameters of the local search; None for `neuroshard`.
        others: sharders from whose plans the local search may also start; no plan of theirs is predicted to be cheaper.
    """

    search: SearchParams
    local_search: LocalSearchParams | None = None
    others: tuple[Sharder, ...] = ()

    @property
    def name(self) -> str:
        """`neuroshard` or `neuroshard_plus`."""
        return "neuroshard" if self.local_search is None else "neuroshard_plus"

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:
        """The placement of lowest predicted embedding cost that the search found.

        Raises:
            DoesNotFitError: the task does not fit the memory of its ranks, or is too large for the search.
            ConstraintError: constraints forbid `column_wise` for a table, and the search can use no other type.
        """
        if self.local_search is not None and problem.models.step is not None:
            given = partial(_placements, self.others, rng=rng)
            return best_variant(problem, self.search, self.local_search, rng, given=given)
        require_column_wise(problem.task, self.name)
        found = beam_search(problem, self.search)
        if self.local_search is None:
            return problem.placement(found[0].kinds, found[0].ranks)
        theirs = [placed_state(*problem.kinds_of(each), problem) for each in _placements(self.others, problem, rng)]
        start = min([found[0], *theirs], key=lambda state: state.cost)
        found = [*local_search(start, problem, self.local_search, rng), *found, *theirs]
        placements = [problem.placement(state.kinds, state.ranks) for state in found]
        return min(placements, key=partial(placement_cost_ms, problem))


def _placements(sharders: Sequence[Sharder], problem: Problem, rng: np.random.Generator) -> list[Placement]:
    """The placements of all sharders that find one and, if they are few, all allowed ones of whole tables."""
    found, tables, ranks = list[Placement](), problem.task.tables, range(problem.task.world_size)
    for sharder in sharders:
        with suppress(DoesNotFitError, ConstraintError):
            found.append(sharder.shard(problem, rng))
    ways = product(ranks, repeat=len(tables)) if len(ranks) ** len(tables) <= _MOST_PLACEMENTS else ()
    return found + [each for way in ways if problem.allows(each := Placement(tuple(map(whole, tables)), way))]
