"""EMBark's own forms of tables [Liu2024]: whole tables, ranges of rows, and replicas.

HugeCTR cuts rows into 1, 2, 4, ... parts on any ranks. TorchRec can hold a table whole on one rank, in equal parts on
all ranks of one host (`table_row_wise`), or in equal parts on all ranks (`row_wise`). A split turns a table from one
of these forms into the next one.

A unit is a table, or tables that are kept together. Shapes: U units, W ranks, K ranks that a form needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import ConstraintError, DoesNotFitError
from neuroshard_pipeline.search.memory import OUTPUT_BYTES
from neuroshard_pipeline.search.packing import does_not_fit, largest_table
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.units import Unit
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.row_blocks import row_blocks, shards_together
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Shard, ShardingType, whole


@dataclass(frozen=True)
class Form:
    """One way to hold a unit on K neighbouring ranks.

    Attributes:
        sharding_type: `column_wise` for a whole unit, otherwise a type that cuts rows into K equal ranges.
        bytes: (K,) memory.
        load: load of the first of these ranks, as in `EmbarkSharder`; no other rank of them has a higher one.
    """

    sharding_type: ShardingType
    bytes: IntArray
    load: float

    @property
    def num_ranks(self) -> int:
        """K."""
        return len(self.bytes)


@dataclass(frozen=True)
class Found:
    """A placement of all units that have room.

    Attributes:
        state: (U,) the form of every unit.
        first_rank: (U,) the first rank of every unit; -1 for replicas and for units that have no room.
        without_rank: indices of the units that have no room.
        busiest: load of the busiest rank.
    """

    state: IntArray
    first_rank: IntArray
    without_rank: IntArray
    busiest: float


class EmbarkRows:
    """The forms of all units of a problem, and a greedy placement of units in given forms.

    Args:
        problem: the task, the models and the memory model.
        network_slowdown: see `EmbarkSharder`.
        replica_rows_per_sample: see `EmbarkSharder`; with 0, only tables that may have no other type are replicated.

    Raises:
        ConstraintError: a table that is not replicated can neither be whole nor be cut into ranges of rows, because
            constraints forbid it or TorchRec cannot train it.
    """

    def __init__(self, problem: Problem, network_slowdown: float, replica_rows_per_sample: float) -> None:
        self._problem = problem
        self._network_slowdown = network_slowdown
        self._most_replica_rows = replica_rows_per_sample * problem.task.batch_size
        self.forms = [list(self._forms(unit)) for unit in problem.units]
        self._replicas = [unit for unit, forms in zip(problem.units, self.forms, strict=True) if not forms]

    @cached_property
    def splits(self) -> IntArray:
        """(U,) how often every unit can be split; -1 for a replica."""
        return np.array([len(forms) - 1 for forms in self.forms], dtype=np.int64)

    @property
    def replicas_fit(self) -> bool:
        """Whether every rank has room for all replicas."""
        return self._replica_bytes <= int(self._problem.limits.min())

    def place(self, state: IntArray) -> Found:
        """Place every unit in its form `state` (U,): first the units that need most ranks, then by descending load.

        Of the ranks, or hosts, with room, the one with the lowest load is chosen. The load of replicas is left out,
        because it is the same on all ranks.
        """
        free, carried = self._problem.limits - self._replica_bytes, np.zeros(self._problem.task.world_size)
        chosen = [forms[at] if forms else None for forms, at in zip(self.forms, state, strict=True)]
        first = np.full(len(chosen), -1, dtype=np.int64)
        placed = [(index, form) for index, form in enumerate(chosen) if form is not None]
        for index, form in sorted(placed, key=lambda entry: (-entry[1].num_ranks, -entry[1].load, -entry[1].bytes[0])):
            fits = (free.reshape(-1, form.num_ranks) >= form.bytes).all(axis=1)
            if self._problem.rank_allowed is not None:
                fits &= self._problem.rank_allowed[index].reshape(-1, form.num_ranks).all(axis=1)
            if fits.any():
                loads = carried.reshape(-1, form.num_ranks).max(axis=1)
                start = int(np.where(fits, loads, np.inf).argmin()) * form.num_ranks
                first[index] = start
                free[start : start + form.num_ranks] -= form.bytes
                carried[start : start + form.num_ranks] += form.load
        without_rank = np.flatnonzero((first < 0) & (self.splits >= 0))
        return Found(state, first, without_rank, float(carried.max()))

    def next_split(self, found: Found) -> int | None:
        """The unit to split: the one of highest load or, if some units have no room, the largest of these.

        If none of the units without room can be split, it is the largest of all that can; None if no unit can be split.
        """
        state, without_rank = found.state, found.without_rank
        can = state < self.splits
        if not can.any():
            return None
        sizes = [(forms[at].bytes.max(), forms[at].load) if forms else (-1, -1.0) for forms, at in self._chosen(state)]
        of_size, of_load = np.array(sizes, dtype=np.float64).T
        urgent = np.zeros(len(state), dtype=bool)
        urgent[without_rank] = True
        candidates = can & urgent if (can & urgent).any() else can
        return int(np.where(candidates, of_size if len(without_rank) else of_load, -1.0).argmax())

    def placement(self, found: Found) -> Placement:
        """Shards and ranks of a placement in which every unit has room."""
        units = zip(self._problem.units, self._chosen(found.state), found.first_rank.tolist(), strict=True)
        placed = [each for unit, (forms, at), first in units if forms for each in self._placed(unit, forms[at], first)]
        for unit in self._replicas:
            replica = whole(self._problem.task.tables[unit.members[0]], "data_parallel")
            placed += [(replica, rank) for rank in range(self._problem.task.world_size)]
        return Placement(tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed))

    @cached_property
    def _replica_bytes(self) -> int:
        task = self._problem.task
        replicas = (whole(task.tables[unit.members[0]], "data_parallel") for unit in self._replicas)
        return sum(self._problem.memory.shard_bytes(replica, task) for replica in replicas)

    def _chosen(self, state: IntArray) -> list[tuple[list[Form], int]]:
        return list(zip(self.forms, state.tolist(), strict=True))

    def _forms(self, unit: Unit) -> Iterator[Form]:
        """The forms in the order of splits; none if the unit is replicated."""
        task = self._problem.task
        tables = [task.tables[index] for index in unit.members]
        types = usable_types(tables[0], self._problem)
        if "data_parallel" in types and (len(types) == 1 or tables[0].num_embeddings <= self._most_replica_rows):
            return
        if {*types} <= {"grid_shard", "data_parallel"}:
            raise ConstraintError(
                f"{task.task_id}: table {unit.name!r} may only be {' or '.join(types)}, but embark makes whole tables, "
                "ranges of rows, and replicas of small tables; allow one of these, or use another sharder"
            )
        if "column_wise" in types:
            shards = [whole(table) for table in tables]
            yield Form("column_wise", np.array([self._bytes(shards)]), sum(map(self._load, shards)))
        for name, ranks in (("table_row_wise", task.ranks_per_host), ("row_wise", task.world_size)):
            if name in types:
                blocks, width = row_blocks(tables[0].num_embeddings, ranks), tables[0].embedding_dim
                first, last = (Shard(tables[0], 0, width, *blocks[rank], name) for rank in (0, -1))
                used = [*[self._bytes([first])] * (ranks - 1), self._bytes([last])]  # only the last may have fewer rows
                yield Form(name, np.array(used), self._load(first))

    def _placed(self, unit: Unit, form: Form, first_rank: int) -> list[tuple[Shard, int]]:
        """The shards of a unit in this form on the ranks from `first_rank` on."""
        tables = [self._problem.task.tables[index] for index in unit.members]
        own = (shards_together(whole(table), form.sharding_type, form.num_ranks) for table in tables)
        return [(shard, first_rank + offset) for shards in own for offset, shard in enumerate(shards)]

    def _bytes(self, shards: list[Shard]) -> int:
        return sum(self._problem.memory.shard_bytes(shard, self._problem.task) for shard in shards)

    def _load(self, shard: Shard) -> float:
        """Bytes read plus weighted bytes sent per sample. Every row range sends partial sums of all columns."""
        world_size, table = self._problem.task.world_size, shard.table
        read = table.pooling_factor * shard.row_share * BYTES_PER_ELEMENT[table.data_type]
        return shard.embedding_dim * (read + self._network_slowdown * OUTPUT_BYTES * (world_size - 1) / world_size)


def no_room(problem: Problem, sharder: str) -> DoesNotFitError:
    """The error for a task that has no placement, whether small tables are replicated or not."""
    reason = (
        f"{largest_table(problem)}; {sharder} (which does not split columns; neuroshard_plus does) found no placement "
        "with whole tables, ranges of rows as short as TorchRec can make them, and replicas of small tables"
    )
    types = {table.name: usable_types(table, problem) for table in problem.task.tables}
    return does_not_fit(problem.task, problem.memory, types, reason)
