"""Packs shards by bytes alone, splits tables until they fit, and constructs the errors for tasks that do not fit."""

import heapq
from collections.abc import Sequence

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, IntArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.units import Unit, units_of
from neuroshard_pipeline.tables.task import ShardingTask

#: If no left-over shard can be halved, a round halves the largest twentieth of the shards that can be halved.
_ROUND_DIVISOR = 20


def pack_by_size(
    sizes: Sequence[int], limits: Sequence[int], allowed: BoolArray | None = None
) -> tuple[list[int], list[int]]:
    """Put shards, largest first, on the rank with the most free bytes.

    Args:
        sizes: bytes of every shard; equal sizes keep their order.
        limits: bytes of every rank; ranks with equally many free bytes are taken in order.
        allowed: (N, W) whether a shard may be placed on a rank, or None if every shard may be placed everywhere;
            shards with fewer ranks to choose from are placed first.

    Returns:
        The rank of every shard (-1 if no rank had room for it), and the indices of the shards without a rank.
    """
    if allowed is not None:
        return _pack_where_allowed(sizes, limits, allowed)
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


def _pack_where_allowed(sizes: Sequence[int], limits: Sequence[int], allowed: BoolArray) -> tuple[list[int], list[int]]:
    free = np.array(limits, dtype=np.int64)
    choices = allowed.sum(axis=1).tolist()
    ranks = [-1] * len(sizes)
    left_over = []
    for index in sorted(range(len(sizes)), key=lambda i: (choices[i], -sizes[i])):
        rank = int(np.where(allowed[index], free, -1).argmax())
        if not allowed[index, rank] or sizes[index] > free[rank]:
            left_over.append(index)
            continue
        free[rank] -= sizes[index]
        ranks[index] = rank
    return ranks, left_over


def check_room(task: ShardingTask, memory: MemoryModel) -> None:
    """Refuse a task that does not fit, however its tables are split by columns.

    Raises:
        DoesNotFitError: all tables need more bytes than all ranks have; or the tables restricted to some ranks need
            more than these ranks have; or a table has a shard that needs more than any rank allowed for it has, even if
            the table is split as far and as evenly as allowed.
    """
    limits = memory.limits(task)
    units = units_of(task)
    for unit in units:
        _check_narrowest(unit, task, memory, limits)
    needed = sum(unit.bytes(unit.width, task, memory) for unit in units)
    if needed > sum(limits):
        raise DoesNotFitError(
            f"{task.task_id}: the tables need {needed} bytes but the {task.world_size} ranks have {sum(limits)}: "
            f"{needed - sum(limits)} bytes are missing; {_remedy(task, memory)}"
        )
    _check_pinned(units, task, memory, limits)


def _check_narrowest(unit: Unit, task: ShardingTask, memory: MemoryModel, limits: Sequence[int]) -> None:
    """Refuse a unit if no rank allowed for it has memory for its widest shard after the finest and most even split."""
    width = unit.finest[0]
    narrowest = unit.bytes(width, task, memory)
    roomiest = max(limits if unit.ranks is None else [limits[rank] for rank in unit.ranks])
    if narrowest <= roomiest:
        return
    rows = " + ".join(str(task.tables[index].num_embeddings) for index in unit.members)
    allowed = "" if unit.ranks is None else f" of those allowed for it, {list(unit.ranks)},"
    raise DoesNotFitError(
        f"{task.task_id}: table {unit.name!r} does not fit: even a shard of {width} columns "
        f"needs {narrowest} bytes, {narrowest - roomiest} more than any rank{allowed} has (at most {roomiest}); "
        f"give every rank at least {narrowest} bytes or reduce the table's {rows} rows"
        + (", or loosen its constraints" if task.constraints else "")
    )


def _check_pinned(units: Sequence[Unit], task: ShardingTask, memory: MemoryModel, limits: Sequence[int]) -> None:
    """Refuse units that are restricted to a set of ranks, or to a part of it, if they do not fit there together."""
    pinned = [unit for unit in units if unit.ranks is not None]
    masks = [sum(1 << rank for rank in unit.ranks or ()) for unit in pinned]
    sizes = [unit.bytes(unit.width, task, memory) for unit in pinned]
    for ranks, mask in dict(zip([unit.ranks or () for unit in pinned], masks, strict=True)).items():
        inside = [index for index, other in enumerate(masks) if not other & ~mask]
        needed, room = sum(sizes[index] for index in inside), sum(limits[rank] for rank in ranks)
        if needed > room:
            count = sum(len(pinned[index].members) for index in inside)
            raise DoesNotFitError(
                f"{task.task_id}: the {count} tables that may lie on ranks {list(ranks)} only, among them "
                f"{pinned[inside[0]].name!r}, need {needed} bytes but these ranks have {room}: {needed - room} bytes "
                f"are missing; allow more ranks for some of them"
            )


def make_room(problem: Problem) -> IntArray:
    """Halve shards until packing by size finds a rank for each; returns the kinds (`problem`) of the shards.

    A round halves the shards that were left over. If none of these can be halved, it halves the largest twentieth
    (at least one) of the shards that can be halved; equally large shards are taken in placement order.

    Raises:
        DoesNotFitError: shards are left over and nothing can be halved any more.
    """
    state = problem.whole_tables
    while True:
        state = problem.in_placement_order(state)
        sizes = problem.bytes[state]
        _, left_over = pack_by_size(sizes.tolist(), problem.limits.tolist(), problem.allowed_on(state))
        if not left_over:
            return state
        halvable = problem.can_halve[state] & problem.may_split(state)
        chosen = [index for index in left_over if halvable[index]]
        if not chosen:
            others = np.flatnonzero(halvable)
            count = -(-len(others) // _ROUND_DIVISOR)
            chosen = others[np.argsort(-sizes[others], kind="stable")[:count]].tolist()
        chosen = _within_max_shards(chosen, state, problem)
        if not chosen:
            raise _fragmented(problem, state[left_over])
        halves = problem.halves(state[chosen].tolist())
        state = np.concatenate([np.delete(state, chosen), np.repeat(halves, 2)])


def _within_max_shards(chosen: list[int], state: IntArray, problem: Problem) -> list[int]:
    """The shards of `chosen`, in this order, that can be halved together without exceeding `max_shards` of a unit."""
    if not problem.limits_shards:
        return chosen
    counts = np.bincount(problem.unit[state], minlength=len(problem.units))
    kept = []
    for index in chosen:
        unit = problem.unit[state[index]]
        if counts[unit] < problem.max_shards[unit]:
            counts[unit] += 1
            kept.append(index)
    return kept


def _fragmented(problem: Problem, left_over: IntArray) -> DoesNotFitError:
    """The error for shards without a rank although the ranks together have enough bytes for the whole tables."""
    task = problem.task
    name = problem.units[int(problem.unit[left_over[0]])].name
    missing = int(problem.bytes[left_over].sum())
    return DoesNotFitError(
        f"{task.task_id}: no arrangement was found for {len(left_over)} of the shards, {missing} bytes in all, among "
        f"them one of table {name!r} ({int(problem.bytes[left_over[0]])} bytes), although no shard "
        f"can be halved any more; {_remedy(task, problem.memory)}"
    )


def _remedy(task: ShardingTask, memory: MemoryModel) -> str:
    """Remedies for a message: more memory, an approximate number of ranks, or looser constraints."""
    return (
        f"raise memory_bytes, or use about {ranks_needed(task, memory)} ranks of {max(memory.limits(task))} bytes each"
        + (", or loosen the constraints" if task.constraints else "")
    )


def whole_tables_do_not_fit(problem: Problem, reason: str) -> DoesNotFitError:
    """The error of a sharder that places whole tables only."""
    return DoesNotFitError(
        f"{problem.task.task_id}: {reason}; use a sharder that splits tables, such as neuroshard, or raise memory_bytes"
    )


def no_rank_for_every_table(problem: Problem, sharder: str, tries: str) -> DoesNotFitError:
    """The error of a sharder that has tried several placements of whole tables, none of which fits."""
    sizes = problem.bytes[problem.whole_tables]
    largest = int(sizes.argmax())
    reason = (
        f"{sharder} did not place all tables in any of {tries}; the largest, {problem.units[largest].name!r}, needs "
        f"{sizes[largest]} bytes, and the rank with most memory has {problem.limits.max()}"
    )
    return whole_tables_do_not_fit(problem, reason)


def ranks_needed(task: ShardingTask, memory: MemoryModel) -> int:
    """Approximate number of ranks that the task needs when its tables are split as far as allowed.

    Every rank is given the memory of the task's largest rank. Constraints that name ranks are ignored.
    """
    limit = max(memory.limits(task))
    sizes = [unit.bytes(width, task, memory) for unit in units_of(task) for width in unit.finest]
    ranks = max(1, -(-sum(sizes) // limit))
    while pack_by_size(sizes, [limit] * ranks)[1]:
        ranks += max(1, ranks // 50)
    return ranks
