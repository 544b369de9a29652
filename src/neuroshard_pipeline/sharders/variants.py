"""The best plan over variants of a task.

Some choices are neither shards nor ranks, such as the cuts of a sequence table into tiers (parts by popularity of
rows). A *variant* is the task with such a choice made, and its tables state the choice. Each promising variant is
solved like any other task, and the cheapest plan is kept.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError, TooLargeError
from neuroshard_pipeline.search.packing import does_not_fit
from neuroshard_pipeline.search.params import LocalSearchParams, SearchParams
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import placement_cost_ms
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.tier_choice import tier_variants
from neuroshard_pipeline.sharders.in_host_memory import host_memory_placements, with_host_memory_remedy
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.sharders.whole_step import whole_step_placement
from neuroshard_pipeline.tables.task import ShardingTask


def best_variant(
    problem: Problem,
    search: SearchParams,
    local: LocalSearchParams,
    rng: np.random.Generator,
    variants: Callable[[Problem], list[ShardingTask]] = lambda problem: tier_variants(problem, usable_types),
    given: Callable[[Problem], Sequence[Placement]] = lambda _: (),
) -> Placement:
    """The placement of lowest predicted cost of the task and of its variants.

    `variants` are promising ones, without the task itself. If there are none, it is that of `whole_step_placement`. A
    task that does not fit GPU memory has a placement with tables in host memory instead, if it allows them. The search
    also starts from those of `given`.

    Raises:
        DoesNotFitError: no placement was found that fits the memory of the ranks, neither of the task nor of a variant.
        ConstraintError: a table has no usable sharding type (`usable_types`).
    """
    found: list[Placement] = []
    refusal: DoesNotFitError | None = None

    def solve(asked: Problem) -> Placement:
        return whole_step_placement(asked, search, local, rng, given(asked))

    try:
        found = [solve(problem)]
    except DoesNotFitError as error:
        refusal = error
        found = host_memory_placements(problem, solve)
        found = sorted(found, key=lambda placement: _priced_ms(problem, placement))[:1]
    for variant in variants(problem.of(found[0]) if found else problem):
        with suppress(DoesNotFitError):
            solved = replace(solve(Problem(variant, problem.models, problem.memory)), task=variant)
            found = sorted([*found, solved], key=lambda placement: _priced_ms(problem, placement))[:1]
    if isinstance(refusal, TooLargeError) and not found:
        raise refusal
    if not found:
        types = {table.name: usable_types(table, problem) for table in problem.task.tables}
        raise with_host_memory_remedy(does_not_fit(problem.task, problem.memory, types), problem)
    return found[0]


def _priced_ms(problem: Problem, placement: Placement) -> float:
    return placement_cost_ms(problem.of(placement), placement)
