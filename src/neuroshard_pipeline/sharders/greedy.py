"""Heuristics of [Zha2023] §4.1: largest weight first, on the rank with the smallest sum of weights so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.packing import check_room
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.search.units import ranks_of_tables, units_of
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask


def size_weight(table: Table) -> float:
    """Bytes of the weights."""
    return float(table.weight_bytes)


def dim_weight(table: Table) -> float:
    """Columns."""
    return float(table.embedding_dim)


def lookup_weight(table: Table) -> float:
    """Columns times pooling factor: numbers read per sample."""
    return table.embedding_dim * table.pooling_factor


def size_lookup_weight(table: Table) -> float:
    """Numbers read per sample times log10 of the rows."""
    return lookup_weight(table) * math.log10(table.num_embeddings)


#: The heuristics by name.
GREEDY_WEIGHTS: dict[str, Callable[[Table], float]] = {
    "size_greedy": size_weight,
    "dim_greedy": dim_weight,
    "lookup_greedy": lookup_weight,
    "size_lookup_greedy": size_lookup_weight,
}


@dataclass(frozen=True)
class GreedySharder:
    """Whole tables, heaviest first, each on the rank with room for it whose sum of weights is smallest.

    Of equally heavy tables the one with more bytes comes first, then the one that stands first in the task; of
    equally loaded ranks the one with fewer bytes takes the table, then the lowest.

    Attributes:
        name: what frames and reports call the heuristic.
        weight: weight of a table.
        memory: what counts against the memory of a rank.
    """

    name: str
    weight: Callable[[Table], float]
    memory: MemoryModel

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:  # noqa: ARG002
        """The heuristic's plan; neither the cost models nor the generator have a say.

        Raises:
            DoesNotFitError: a table finds no rank with room.
        """
        check_room(task, self.memory)
        limits = self.memory.limits(task)
        units = units_of(task)
        sizes = [unit.bytes(unit.width, task, self.memory) for unit in units]
        weights = [sum(self.weight(task.tables[index]) for index in unit.members) for unit in units]
        used, loads, ranks = [0] * task.world_size, [0.0] * task.world_size, [0] * len(units)
        for index in sorted(range(len(sizes)), key=lambda i: (-weights[i], -sizes[i])):
            allowed = units[index].ranks or range(task.world_size)
            with_room = [rank for rank in allowed if used[rank] + sizes[index] <= limits[rank]]
            if not with_room:
                most_free = max(limits[rank] - used[rank] for rank in allowed)
                raise self._no_room(task, units[index].name, sizes[index], most_free)
            rank = min(with_room, key=lambda r: (loads[r], used[r]))
            ranks[index] = rank
            used[rank] += sizes[index]
            loads[rank] += weights[index]
        return Plan(task, tuple(map(whole, task.tables)), ranks_of_tables(units, ranks), self.name, memory=self.memory)

    def _no_room(self, task: ShardingTask, table: str, size: int, most_free: int) -> DoesNotFitError:
        return DoesNotFitError(
            f"{task.task_id}: {self.name} found no rank for table {table!r}: it needs {size} bytes "
            f"and the roomiest rank has {most_free} left, {size - most_free} bytes are missing; use a sharder that "
            f"splits tables, such as neuroshard, or raise memory_bytes"
        )
