"""Random placement of whole tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.packing import check_room
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.search.units import allowed_ranks, ranks_of_tables, units_of
from neuroshard_pipeline.tables.table import whole
from neuroshard_pipeline.tables.task import ShardingTask

#: Draws before a task counts as not fitting. The baseline of [Zha2023] draws once and ignores memory.
_ATTEMPTS = 100


@dataclass(frozen=True)
class RandomSharder:
    """Every table on a rank drawn uniformly among those with room for it; drawn again while a table has none.

    Constraints leave a table fewer ranks; tables that are kept together are drawn as one.
    """

    memory: MemoryModel
    name: str = "random"

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:  # noqa: ARG002
        """A random plan.

        Raises:
            DoesNotFitError: no draw fitted.
        """
        check_room(task, self.memory)
        units = units_of(task)
        sizes = np.array([unit.bytes(unit.width, task, self.memory) for unit in units], dtype=np.int64)
        allowed = allowed_ranks(units, task.world_size)
        limits = np.array(self.memory.limits(task), dtype=np.int64)
        for _ in range(_ATTEMPTS):
            ranks = _draw(sizes, limits, allowed, rng)
            if ranks is not None:
                where = ranks_of_tables(units, ranks)
                return Plan(task, tuple(map(whole, task.tables)), where, self.name, memory=self.memory)
        largest = int(sizes.argmax())
        raise DoesNotFitError(
            f"{task.task_id}: {self.name} found no rank for every table in {_ATTEMPTS} draws; the largest, "
            f"{units[largest].name!r}, needs {sizes[largest]} bytes and the roomiest rank has {limits.max()}; "
            f"use a sharder that splits tables, such as neuroshard, or raise memory_bytes"
        )


def _draw(
    sizes: np.ndarray, limits: np.ndarray, allowed: np.ndarray | None, rng: np.random.Generator
) -> list[int] | None:
    """A random rank for every table, taken in random order; None where one has no room."""
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
