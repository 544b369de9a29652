"""The planner of HugeCTR's EMBark [Liu2024]: split the hottest shard again and again, place greedily each time.

Its rows-and-tables shards become column shards here, the only ones that a plan of this project has. Shapes: N shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import OUTPUT_BYTES, MemoryModel
from neuroshard_pipeline.search.packing import check_room
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import FloatArray, IntArray, Models
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT
from neuroshard_pipeline.tables.task import ShardingTask

#: A placement counts as better when the load of its busiest rank is lower by this share: a split costs something
#: that the planner's own loads do not show.
_LEAST_GAIN = 0.01

#: Splits in a row without a better placement after which the planner stops.
_PATIENCE = 10


@dataclass(frozen=True)
class EmbarkSharder:
    """Balances bytes moved: those read from memory, and those sent, which count more as the network is slower.

    The load of a shard is `pooling factor * width * bytes per element + network_slowdown * width * 4 * (W - 1) / W`,
    per sample. The hottest shard is halved, all shards are placed, heaviest first on the rank with room for it
    whose load is lowest; a shard without room is halved too. The placement whose busiest rank has the least load wins.
    The cost models have no say. Deterministic.

    Attributes:
        memory: what counts against the memory of a rank.
        network_slowdown: time of a byte sent between ranks over that of a byte read from memory.
    """

    memory: MemoryModel
    network_slowdown: float
    name: str = "embark"

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:  # noqa: ARG002
        """The placement with the least load on the busiest rank.

        Raises:
            DoesNotFitError: shards are left without room and nothing can be halved any more.
        """
        check_room(task, self.memory)
        kinds = ShardKinds(task, models, self.memory)
        state, best, least, stale = kinds.whole_tables, None, np.inf, 0
        while stale < _PATIENCE:
            ranks, busiest, homeless = _place(self._loads(kinds, state), kinds, state)
            stale += best is not None
            if not len(homeless) and busiest < least * (1.0 - _LEAST_GAIN):
                best, least, stale = (state, ranks), busiest, 0
            chosen = self._next_split(kinds, state, homeless)
            if chosen is None:
                if best is None:
                    raise self._no_room(task, kinds, state, homeless)
                break
            halves = np.repeat(kinds.halves([int(state[chosen])]), 2)
            state = np.concatenate([np.delete(state, chosen), halves])
        assert best is not None  # only a placement makes `stale` count
        return kinds.plan(*best, self.name)

    def _loads(self, kinds: ShardKinds, state: IntArray) -> FloatArray:
        """(N,) bytes per sample that every shard of `state` moves, those sent weighted."""
        task = kinds.task
        read = np.array(
            [
                sum(task.tables[i].pooling_factor * BYTES_PER_ELEMENT[task.tables[i].data_type] for i in unit.members)
                / len(unit.members)  # a group is never split: its width counts once, at its mean hotness
                for unit in kinds.units
            ]
        )
        sent = self.network_slowdown * OUTPUT_BYTES * (task.world_size - 1) / task.world_size
        return kinds.width[state] * (read[kinds.table[state]] + sent)

    def _next_split(self, kinds: ShardKinds, state: IntArray, homeless: IntArray) -> int | None:
        """The shard to halve: the largest without room, else the hottest, or the largest where memory is short."""
        can = kinds.can_halve[state] & kinds.may_split(state)
        if not can.any():
            return None
        urgent = np.zeros(len(state), dtype=bool)
        urgent[homeless] = True
        by = kinds.bytes[state] if len(homeless) else self._loads(kinds, state)
        candidates = can & urgent if (can & urgent).any() else can
        return int(np.where(candidates, by, -1).argmax())

    def _no_room(self, task: ShardingTask, kinds: ShardKinds, state: IntArray, homeless: IntArray) -> DoesNotFitError:
        first = int(state[homeless[0]])
        name = kinds.units[kinds.table[first]].name
        return DoesNotFitError(
            f"{task.task_id}: {self.name} found no rank for {len(homeless)} shards although every table is split as "
            f"far as it goes, among them one of {name!r} of {kinds.bytes[first]} bytes; "
            "use neuroshard, which also packs by size, or raise memory_bytes"
        )


def _place(loads: FloatArray, kinds: ShardKinds, state: IntArray) -> tuple[IntArray, float, IntArray]:
    """Greedy placement: ranks (N,), the load of the busiest rank, and the shards (M,) that found no room."""
    free, carried = kinds.limits.copy(), np.zeros(len(kinds.limits))
    ranks = np.full(len(state), -1, dtype=np.int64)
    sizes, allowed = kinds.bytes[state], kinds.allowed_on(state)
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
