"""Plans with some tables in host memory, for tasks that do not fit GPU memory (`search.host_memory`).

Searches place shards by GPU memory. If all plans that a search finds exceed the host memory of a rank, it is repeated
with each table in host memory bound to one rank that has room for it, or cut by rows over all ranks.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError, PlanError, memory_text
from neuroshard_pipeline.search.host_memory import host_bytes_needed, host_memory_tasks
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.packing import pack_by_size
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import whole
from neuroshard_pipeline.tables.task import ShardingTask

#: Searches a problem; returns its best placement.
Search = Callable[[Problem], Placement]


def host_memory_placements(problem: Problem, search: Search) -> list[Placement]:
    """Placements of variants of the task with tables in host memory; empty if none was found.

    Args:
        problem: a problem whose task does not fit GPU memory.
        search: raises `DoesNotFitError` if it finds nothing; another `PlanError` counts as no plan within host memory.
    """
    found: list[Placement] = []
    for variant in host_memory_tasks(problem.task, problem.memory):
        try:
            placement = _searched(problem, variant, search)
        except DoesNotFitError:
            continue
        if placement is not None:
            found.append(replace(placement, task=variant))
    return found


def with_host_memory_remedy(refusal: DoesNotFitError, problem: Problem) -> DoesNotFitError:
    """The error of a task for which no plan was found, with the host memory that it would need."""
    given, needed = problem.task.host_memory_bytes, host_bytes_needed(problem.task, problem.memory)
    if needed is None:
        return refusal
    if given is None:
        remedy = f"or allow tables in host memory (host_memory_gib or host_memory_bytes): about {memory_text(needed)} "
        remedy += "per rank, and more if the tables cannot be shared evenly among the ranks"
    else:
        remedy = (
            "no plan with tables in host memory was found either; if all ranks share them evenly, a rank needs about "
        )
        remedy += f"{memory_text(needed)} of host memory, but has {memory_text(given)}; allow more"
    return DoesNotFitError(f"{refusal}; {remedy}")


def _searched(problem: Problem, variant: ShardingTask, search: Search) -> Placement | None:
    """The placement of a variant within host memory; None if there is none even with tables bound to ranks.

    Raises:
        DoesNotFitError: the variant does not fit GPU memory.
    """
    free = _within_host_memory(problem, variant, search)
    if free is not None:
        return free
    bound = _bound(variant, problem.memory)
    return None if bound is None else _within_host_memory(problem, bound, search)


def _within_host_memory(problem: Problem, task: ShardingTask, search: Search) -> Placement | None:
    """The placement that the search finds for a task, None if it exceeds the host memory of a rank."""
    try:
        placement = search(Problem(task, problem.models, problem.memory))
    except DoesNotFitError:
        raise
    except PlanError:  # the search priced a plan that exceeds the host memory of a rank
        return None
    used = problem.memory.host_bytes_of_ranks(placement.shards, placement.ranks, task)
    return placement if used.max() <= (task.host_memory_bytes or 0) else None


def _bound(task: ShardingTask, memory: MemoryModel) -> ShardingTask | None:
    """The task with constraints that keep every rank within its host memory, wherever the search places shards.

    None if some table in host memory has no room on any rank and may not be cut by rows, if the row shards of the cut
    tables exceed the host memory of a rank, or if a table in host memory is kept together with other tables.
    """
    in_host = [table for table in task.tables if table.is_in_host_memory]
    if any(task.constraints.is_grouped(table.name) for table in in_host):
        return None
    cut: set[str] = set()
    while True:
        apart = [table for table in in_host if table.name not in cut]
        sizes = [memory.host_bytes(whole(table), task) for table in apart]
        parts = [row_shards(table, "row_wise", task.world_size)[0] for table in in_host if table.name in cut]
        limit = (task.host_memory_bytes or 0) - sum(memory.host_bytes(part, task) for part in parts)
        ranks = np.arange(task.world_size)
        allowed = [np.isin(ranks, task.constraints.of(table.name).allowed_ranks(task.world_size)) for table in apart]
        on_rank = np.array(allowed, dtype=bool).reshape(len(apart), task.world_size)
        placed, left_over = pack_by_size(sizes, [limit] * task.world_size, on_rank)
        if limit < 0 or any("row_wise" not in task.possible_types(apart[index]) for index in left_over):
            return None
        if not left_over:
            return _with_ranks(task, {table.name: rank for table, rank in zip(apart, placed, strict=True)}, cut)
        cut |= {apart[index].name for index in left_over}


def _with_ranks(task: ShardingTask, rank_of: Mapping[str, int], cut: Collection[str]) -> ShardingTask:
    """The task with some tables bound to one rank each, and some row-wise."""
    own = {table.name: task.constraints.of(table.name) for table in task.tables}
    own |= {name: replace(own[name], ranks=(rank,), forbidden_ranks=()) for name, rank in rank_of.items()}
    own |= {name: replace(own[name], sharding_types=("row_wise",)) for name in cut}
    return replace(task, constraints=replace(task.constraints, tables=tuple(own.values())))
