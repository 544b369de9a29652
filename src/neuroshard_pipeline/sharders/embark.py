"""HugeCTR's planner EMBark [Liu2024]: it repeatedly splits the shard with the highest load and places all shards again.

EMBark distributes whole tables, ranges of rows and replicas (`embark_rows`). Cost models without a step cost model
cannot price ranges of rows and replicas. With such models, this version splits columns instead.

Shapes: N shards, W ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import DoesNotFitError, memory_text
from neuroshard_pipeline.search.memory import OUTPUT_BYTES
from neuroshard_pipeline.search.packing import check_room_of
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.base import require_column_wise
from neuroshard_pipeline.sharders.embark_rows import EmbarkRows, Found, no_room
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT

#: A placement counts as better if the load of its busiest rank is lower by at least this share, because a split has a
#: cost that the loads of the planner do not contain.
_LEAST_GAIN = 0.01

#: The planner stops after this number of consecutive splits without a better placement.
_PATIENCE = 10


@dataclass(frozen=True)
class EmbarkSharder:
    """Balances a load: bytes read from memory plus bytes sent to other ranks, weighted by `network_slowdown`.

    The load of a shard is `pooling factor * width * bytes per element + network_slowdown * width * 4 * (W - 1) / W`,
    per sample. Each round splits the shard with the highest load or, if no rank had room for some shards, the largest
    of these. It then places all shards in descending order of load, each on the least loaded rank that has room.
    The best placement has the lowest load on its busiest rank. The planner is deterministic and uses no cost models.

    With a step cost model, tables of few rows are replicated, and a split divides rows instead of columns. A range of
    rows reads its share of the ids, but sends all columns. The plan that splits the rows of all tables over all ranks
    is one of the candidates, as in HugeCTR. If no placement has room beside the replicas, only tables that may have no
    other type are replicated.

    Attributes:
        network_slowdown: time of a byte sent between ranks, divided by the time of a byte read from memory.
        replica_rows_per_sample: a table is replicated if its number of rows is at most this many times the batch size.
    """

    network_slowdown: float
    replica_rows_per_sample: float
    name: str = "embark"

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:  # noqa: ARG002
        """The placement with the least load on the busiest rank.

        Raises:
            DoesNotFitError: shards have no room and nothing can be split any more.
            ConstraintError: the constraints on a table allow neither the whole table nor ranges of rows, and the table
                is not replicated.
        """
        if problem.models.step is not None:
            return self._by_rows(problem)
        require_column_wise(problem.task, self.name)
        check_room_of(problem)
        state, best, least, stale = problem.whole_tables, None, np.inf, 0
        while stale < _PATIENCE:
            ranks, busiest, without_rank = _place(self._loads(problem, state), problem, state)
            stale += best is not None
            if not len(without_rank) and busiest < least * (1.0 - _LEAST_GAIN):
                best, least, stale = (state, ranks), busiest, 0
            chosen = self._next_split(problem, state, without_rank)
            if chosen is None:
                if best is None:
                    raise self._no_room(problem, state, without_rank)
                break
            state = np.concatenate([np.delete(state, chosen), *problem.halves([int(state[chosen])])])
        assert best is not None  # `stale` counts only after a first placement
        return problem.placement(*best)

    def _by_rows(self, problem: Problem) -> Placement:
        """The placement of whole tables, ranges of rows and replicas."""
        for threshold in (self.replica_rows_per_sample, 0.0):
            rows = EmbarkRows(problem, self.network_slowdown, threshold)
            tried = (*_tried(rows), rows.place(rows.splits.clip(0))) if rows.replicas_fit else ()
            candidates = [found for found in tried if not len(found.without_rank)]
            if candidates:
                return rows.placement(min(candidates, key=lambda found: found.busiest))
        raise no_room(problem, self.name)

    def _loads(self, problem: Problem, state: IntArray) -> FloatArray:
        """(N,) load of each shard of `state`: bytes read plus weighted bytes sent, per sample."""
        task = problem.task
        read = np.array(
            [
                sum(task.tables[i].pooling_factor * BYTES_PER_ELEMENT[task.tables[i].data_type] for i in unit.members)
                / len(unit.members)  # a column of tables kept together counts with the mean over these tables
                for unit in problem.units
            ]
        )
        sent = self.network_slowdown * OUTPUT_BYTES * (task.world_size - 1) / task.world_size
        return problem.width[state] * (read[problem.unit[state]] + sent)

    def _next_split(self, problem: Problem, state: IntArray, without_rank: IntArray) -> int | None:
        """The index in `state` of the shard to halve, or None if no shard can be halved.

        If some shards have no rank, the largest of them that can be halved is chosen. If none of them can be halved, it
        is the largest of all shards that can. If all shards have a rank, the shard with the highest load is chosen.
        """
        can = problem.can_halve[state] & problem.may_split(state)
        if not can.any():
            return None
        urgent = np.zeros(len(state), dtype=bool)
        urgent[without_rank] = True
        by = problem.bytes[state] if len(without_rank) else self._loads(problem, state)
        candidates = can & urgent if (can & urgent).any() else can
        return int(np.where(candidates, by, -1).argmax())

    def _no_room(self, problem: Problem, state: IntArray, without_rank: IntArray) -> DoesNotFitError:
        first = int(state[without_rank[0]])
        name = problem.units[problem.unit[first]].name
        return DoesNotFitError(
            f"{problem.task.task_id}: {self.name} found no rank for {len(without_rank)} shards, among them one of "
            f"table {name!r} ({memory_text(int(problem.bytes[first]))}), although every table is split as far as "
            "allowed; use neuroshard, which also packs by size, or ranks with more memory"
        )


def _tried(rows: EmbarkRows) -> Iterator[Found]:
    """The placements that the planner tries, until splits no longer lower the load of the busiest rank."""
    state, least, stale = np.zeros(len(rows.forms), dtype=np.int64), np.inf, 0
    while stale < _PATIENCE:
        found = rows.place(state)
        yield found
        stale += least < np.inf
        if not len(found.without_rank) and found.busiest < least * (1.0 - _LEAST_GAIN):
            least, stale = found.busiest, 0
        unit = rows.next_split(found)
        if unit is None:
            return
        state = state.copy()
        state[unit] += 1


def _place(loads: FloatArray, problem: Problem, state: IntArray) -> tuple[IntArray, float, IntArray]:
    """Greedy placement: ranks (N,), the load of the busiest rank, and the indices of the shards without room."""
    free, carried = problem.limits.copy(), np.zeros(len(problem.limits))
    ranks = np.full(len(state), -1, dtype=np.int64)
    sizes, allowed = problem.bytes[state], problem.allowed_on(state)
    for index in np.lexsort((-sizes, -loads)).tolist():
        fits = free >= sizes[index]
        if allowed is not None:
            fits &= allowed[index]
        if fits.any():
            rank = int(np.where(fits, carried, np.inf).argmin())
            ranks[index] = rank
            free[rank] -= sizes[index]
            carried[rank] += loads[index]
    return ranks, float(carried.max()), np.flatnonzero(ranks < 0)
