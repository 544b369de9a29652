"""Making room: packing by bytes alone, and what to say when nothing fits."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.simulator import IntArray
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY
from neuroshard_pipeline.tables.task import ShardingTask

#: Shards halved at once when whatever did not fit is already at its narrowest: one in twenty.
_ROUND_DIVISOR = 20


def pack_by_size(sizes: Sequence[int], limits: Sequence[int]) -> tuple[list[int], list[int]]:
    """Put shards, largest first, on the rank with the most free bytes.

    Args:
        sizes: bytes of every shard; equal sizes keep their order.
        limits: bytes of every rank; ranks with equally many free bytes are taken in order.

    Returns:
        The rank of every shard (-1 where no rank had room), and the indices of the shards without a rank.
    """
    free = [(-limit, rank) for rank, limit in enumerate(limits)]
    heapq.heapify(free)
    ranks = [-1] * len(sizes)
    left_over = []
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        negative_free, rank = free[0]
        if sizes[index] > -negative_free:
            left_over.append(index)
            continue
        heapq.heapreplace(free, (negative_free + sizes[index], rank))
        ranks[index] = rank
    return ranks, left_over


def check_room(task: ShardingTask, memory: MemoryModel) -> None:
    """Refuse a task that no splitting of columns can fit.

    Raises:
        DoesNotFitError: all tables need more bytes than all ranks have, or the narrowest shard of a table needs
            more than any rank has.
    """
    limits = memory.limits(task)
    for table in task.tables:
        narrowest = memory.table_bytes(table, COLUMN_GRANULARITY, task)
        if narrowest > max(limits):
            raise DoesNotFitError(
                f"{task.task_id}: table {table.name!r} does not fit: even a shard of {COLUMN_GRANULARITY} columns "
                f"needs {narrowest} bytes, {narrowest - max(limits)} more than the roomiest rank has ({max(limits)}); "
                f"give every rank at least {narrowest} bytes or reduce the table's {table.num_embeddings} rows"
            )
    needed = sum(memory.table_bytes(table, table.embedding_dim, task) for table in task.tables)
    if needed > sum(limits):
        raise DoesNotFitError(
            f"{task.task_id}: the tables need {needed} bytes but the {task.world_size} ranks have {sum(limits)}: "
            f"{needed - sum(limits)} bytes are missing; {_remedy(task, memory)}"
        )


def make_room(kinds: ShardKinds) -> IntArray:
    """Halve shards until packing by size finds every one a rank: the kinds of that state.

    A round halves the shards that were left over; where none of these can be halved, the largest twentieth (at
    least one) of those that can; of equally large ones, those that come first in placement order.

    Raises:
        DoesNotFitError: shards are left over and nothing can be halved any more.
    """
    state = kinds.whole_tables
    while True:
        state = kinds.in_placement_order(state)
        sizes = kinds.bytes[state]
        _, left_over = pack_by_size(sizes.tolist(), kinds.limits.tolist())
        if not left_over:
            return state
        halvable = kinds.can_halve[state]
        chosen = [index for index in left_over if halvable[index]]
        if not chosen:
            chosen = _largest(sizes, np.flatnonzero(halvable))
        if not chosen:
            raise _fragmented(kinds, state[left_over])
        halves = kinds.halves(state[chosen].tolist())
        state = np.concatenate([np.delete(state, chosen), np.repeat(halves, 2)])


def _largest(sizes: IntArray, indices: IntArray) -> list[int]:
    count = -(-len(indices) // _ROUND_DIVISOR)
    return indices[np.argsort(-sizes[indices], kind="stable")[:count]].tolist()


def _fragmented(kinds: ShardKinds, left_over: IntArray) -> DoesNotFitError:
    """The error for shards that found no rank although the bytes of all ranks together would do."""
    task = kinds.task
    table = task.tables[int(kinds.table[left_over[0]])]
    missing = int(kinds.bytes[left_over].sum())
    return DoesNotFitError(
        f"{task.task_id}: no arrangement was found for {len(left_over)} of the shards, {missing} bytes in all, among "
        f"them one of table {table.name!r} ({int(kinds.bytes[left_over[0]])} bytes), although every table was split "
        f"as far as it goes; {_remedy(task, kinds.memory)}"
    )


def _remedy(task: ShardingTask, memory: MemoryModel) -> str:
    """What would help: more memory, or so many ranks."""
    return (
        f"raise memory_bytes, or use about {ranks_needed(task, memory)} ranks of {max(memory.limits(task))} bytes each"
    )


def ranks_needed(task: ShardingTask, memory: MemoryModel) -> int:
    """Fewest ranks, each with the memory of the task's roomiest, on which the narrowest shards pack by size."""
    limit = max(memory.limits(task))
    sizes = [
        memory.table_bytes(table, COLUMN_GRANULARITY, task)
        for table in task.tables
        for _ in range(table.embedding_dim // COLUMN_GRANULARITY)
    ]
    ranks = max(1, -(-sum(sizes) // limit))
    while pack_by_size(sizes, [limit] * ranks)[1]:
        ranks += max(1, ranks // 50)
    return ranks
