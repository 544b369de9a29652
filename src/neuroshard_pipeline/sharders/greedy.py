"""Heuristics of [Zha2023] §4.1: each weights tables by a simple measure and balances the sums of weights over ranks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from neuroshard_pipeline.errors import memory_text
from neuroshard_pipeline.search.packing import check_room_of, whole_tables_do_not_fit
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import require_column_wise
from neuroshard_pipeline.tables.table import Table

#: The heuristics by name, and the weight that each gives to a table, an estimate of its relative cost.
GREEDY_WEIGHTS: dict[str, Callable[[Table], float]] = {
    "size_greedy": lambda table: float(table.weight_bytes),
    "dim_greedy": lambda table: float(table.embedding_dim),
    "lookup_greedy": lambda table: table.embedding_dim * table.pooling_factor,  # numbers read per sample
    "size_lookup_greedy": lambda table: table.embedding_dim * table.pooling_factor * math.log10(table.num_embeddings),
}


@dataclass(frozen=True)
class GreedySharder:
    """Places whole tables, heaviest first. Of the ranks with room, the one with the smallest sum of weights is chosen.

    Of equally heavy tables, the one with more bytes comes first, then the one that comes first in the task. Of equally
    loaded ranks, the one with fewer bytes is chosen, then the one with the lowest number.

    Attributes:
        name: a key of `GREEDY_WEIGHTS`.
    """

    name: str

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:  # noqa: ARG002
        """The placement of the heuristic, which uses neither the cost models nor the generator.

        Raises:
            DoesNotFitError: no rank has room for a table.
            ConstraintError: the constraints on a table do not allow `column_wise`.
        """
        require_column_wise(problem.task, self.name)
        check_room_of(problem)
        weight, world_size = GREEDY_WEIGHTS[self.name], problem.task.world_size
        sizes, limits = problem.bytes[problem.whole_tables].tolist(), problem.limits.tolist()
        weights = [sum(weight(problem.task.tables[index]) for index in unit.members) for unit in problem.units]
        ranks, least_loaded = [0] * len(sizes), [(0.0, 0, rank) for rank in range(world_size)]  # a heap: load, bytes
        for index in sorted(range(len(sizes)), key=lambda i: (-weights[i], -sizes[i])):
            allowed, passed = problem.units[index].ranks or range(world_size), []
            while least_loaded:
                load, used, rank = heappop(least_loaded)
                if rank in allowed and used + sizes[index] <= limits[rank]:
                    ranks[index] = rank
                    heappush(least_loaded, (load + weights[index], used + sizes[index], rank))
                    break
                passed.append((load, used, rank))
            else:
                most_free = max(limits[rank] - used for _, used, rank in passed if rank in allowed)
                reason = (
                    f"{self.name} found no rank for table {problem.units[index].name!r}: it needs "
                    f"{memory_text(sizes[index])} and no allowed rank has more than {memory_text(most_free)} left: "
                    f"{memory_text(sizes[index] - most_free)} are missing"
                )
                raise whole_tables_do_not_fit(problem, reason)
            for each in passed:
                heappush(least_loaded, each)
        return problem.whole_placement(ranks)
