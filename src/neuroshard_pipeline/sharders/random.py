"""Random placement of whole tables."""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, IntArray
from neuroshard_pipeline.search.packing import check_room_of, no_rank_for_every_table
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import require_column_wise

#: Number of placements drawn before the sharder gives up. The baseline of [Zha2023] draws once and ignores memory.
_ATTEMPTS = 100


@dataclass(frozen=True)
class RandomSharder:
    """Places each table on a rank drawn uniformly from the ranks with enough free memory; starts again if none has.

    Only ranks that the constraints allow are drawn. Tables that are kept together are placed as one.
    """

    name: str = "random"

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:
        """A random placement.

        Raises:
            DoesNotFitError: the tables do not fit even if they are split, or none of the draws fits.
            ConstraintError: the constraints on a table do not allow `column_wise`.
        """
        require_column_wise(problem.task, self.name)
        check_room_of(problem)
        sizes = problem.bytes[problem.whole_tables]
        for _ in range(_ATTEMPTS):
            ranks = _draw(sizes, problem.limits, problem.rank_allowed, rng)
            if ranks is not None:
                return problem.whole_placement(ranks)
        raise no_rank_for_every_table(problem, self.name, f"{_ATTEMPTS} draws")


def _draw(sizes: IntArray, limits: IntArray, allowed: BoolArray | None, rng: np.random.Generator) -> list[int] | None:
    """A random rank for each unit, with units placed in random order; None if no rank has room for one of them."""
    free = limits.copy()
    ranks = [0] * len(sizes)
    for index in rng.permutation(len(sizes)).tolist():
        has_room = free >= sizes[index]
        with_room = np.flatnonzero(has_room if allowed is None else has_room & allowed[index])
        if not len(with_room):
            return None
        ranks[index] = int(rng.choice(with_room))
        free[ranks[index]] -= sizes[index]
    return ranks
