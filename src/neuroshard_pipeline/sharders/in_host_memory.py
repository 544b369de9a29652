"""Plans with some tables in host memory, for tasks that do not fit GPU memory (`search.host_memory`)."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from neuroshard_pipeline.errors import DoesNotFitError, memory_text
from neuroshard_pipeline.search.host_memory import host_bytes_needed, host_memory_tasks, with_larger_caches
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem

#: Searches a problem; returns its best placement.
Search = Callable[[Problem], Placement]


def host_memory_placements(problem: Problem, search: Search) -> list[Placement]:
    """Placements of variants, with tables in host memory, of a task that does not fit GPU memory; empty if none fits.

    `search` raises `DoesNotFitError` if it finds nothing.
    """
    found: list[Placement] = []
    for variant in host_memory_tasks(problem.task, problem.memory):
        with suppress(DoesNotFitError):
            found.append(replace(search(Problem(variant, problem.models, problem.memory)), task=variant))
    return [with_larger_caches(problem, placement) for placement in found]


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
