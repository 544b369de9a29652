"""Packs shards by bytes alone, and constructs the errors for tasks that do not fit."""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, IntArray
from neuroshard_pipeline.errors import DoesNotFitError, memory_text
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import largest_row_shards
from neuroshard_pipeline.search.units import Unit, units_of
from neuroshard_pipeline.tables.table import ShardingType, whole
from neuroshard_pipeline.tables.task import ShardingTask


def pack_by_size(
    sizes: Sequence[int] | IntArray, limits: Sequence[int] | IntArray, allowed: BoolArray | None = None
) -> tuple[list[int], list[int]]:
    """Put shards, largest first, on the rank with the most free bytes.

    Args:
        sizes: bytes of every shard, (N,), or of GPU and host memory, (N, 2); equal sizes keep their order.
        limits: bytes of every rank, likewise; ranks with equally many free bytes are taken in order. With two memories,
            free bytes are those of the memory of which the shard takes the larger share.
        allowed: (N, W) whether a shard may be placed on a rank, or None if every shard may be placed everywhere;
            shards with fewer ranks to choose from are placed first.

    Returns:
        The rank of every shard (-1 if no rank had room for it), and the indices of the shards without a rank.
    """
    if allowed is not None or np.ndim(limits) == 2:
        anywhere = np.ones((len(sizes), len(limits)), dtype=bool)
        return _pack_where_allowed(np.array(sizes), np.array(limits), anywhere if allowed is None else allowed)
    sizes, limits = np.array(sizes).tolist(), np.array(limits).tolist()  # whole numbers of Python are faster here
    free = [(-limit, rank) for rank, limit in enumerate(limits)]
    heapq.heapify(free)
    ranks, left_over = [-1] * len(sizes), list[int]()
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        negative_free, rank = free[0]
        if sizes[index] > -negative_free:
            left_over.append(index)
            continue
        heapq.heapreplace(free, (negative_free + sizes[index], rank))
        ranks[index] = rank
    return ranks, left_over


def _pack_where_allowed(sizes: IntArray, limits: IntArray, allowed: BoolArray) -> tuple[list[int], list[int]]:
    sizes, free = sizes.reshape(len(sizes), -1), limits.reshape(len(limits), -1).copy()
    scarcer = (sizes / np.maximum(free.sum(axis=0), 1)).argmax(axis=1)  # (N,) the memory that decides
    choices, total = allowed.sum(axis=1).tolist(), sizes.sum(axis=1).tolist()
    ranks = [-1] * len(sizes)
    left_over = []
    for index in sorted(range(len(sizes)), key=lambda i: (choices[i], -total[i])):
        fits = allowed[index] & (sizes[index] <= free).all(axis=1)
        rank = int(np.where(fits, free[:, scarcer[index]], -1).argmax())
        if not fits[rank]:
            left_over.append(index)
            continue
        free[rank] -= sizes[index]
        ranks[index] = rank
    return ranks, left_over


def packed(state: IntArray, problem: Problem) -> tuple[list[int], list[int]]:
    """`pack_by_size` of the shards of a state, in GPU memory and, if a table is there, in host memory."""
    sizes, limits = problem.bytes[state], problem.limits
    if problem.uses_host_memory:
        sizes = np.stack([sizes, problem.host_bytes[state]], axis=1)
        limits = np.stack([limits, problem.host_memory], axis=1)
    return pack_by_size(sizes, limits, problem.allowed_on(state))


@dataclass(frozen=True)
class _Need:
    """Least bytes of a unit, whatever sharding type it gets: of all its shards, and of the largest one (`shard`)."""

    unit: Unit
    total: int
    largest: int
    shard: str


def check_room(
    task: ShardingTask, memory: MemoryModel, types: Mapping[str, Sequence[ShardingType]] | None = None
) -> None:
    """Refuse a task that does not fit, however its tables are split by columns, or sharded by their `types`.

    Raises:
        DoesNotFitError: all tables need more bytes than all ranks have; or the tables restricted to some ranks need
            more than these ranks have; or a table has a shard that needs more than any rank allowed for it has, even if
            the table is split as far and as evenly as allowed.
    """
    for reason in _shortfalls(task, memory, _needs(task, memory, types)):
        raise DoesNotFitError(f"{task.task_id}: {reason}")


def check_room_of(problem: Problem) -> None:
    """`check_room` of the task of a problem; sharders that solve the same problem check it once."""
    if not problem.has_room:
        check_room(problem.task, problem.memory)
        problem.has_room = True


def does_not_fit(
    task: ShardingTask,
    memory: MemoryModel,
    types: Mapping[str, Sequence[ShardingType]] | None = None,
    reason: str = "the search found no packing",
) -> DoesNotFitError:
    """The error of a sharder that has found no plan with the sharding types that every table may have (`_needs`).

    `reason` is stated if `_shortfalls` does not show that the task cannot fit. The remedy is then ranks with room for
    an equal share of all bytes and the largest shard: while shards are left, one of these ranks has room for the next.
    """
    needs = _needs(task, memory, types)
    needed, limits = sum(need.total for need in needs), memory.limits(task)
    enough = needed // task.world_size + 1 + max(need.largest for need in needs)
    reason = (
        f"{reason}, although the tables fill only {100 * needed / max(1, sum(limits)):.1f} % of the memory of the "
        f"{task.world_size} ranks; use "
        + (f"ranks of about {_of_rank(enough, memory)}" if enough > max(limits) else "ranks with more memory")
        + (", more ranks, or looser constraints" if task.constraints else ", or more ranks")
    )
    return DoesNotFitError(f"{task.task_id}: {next(_shortfalls(task, memory, needs), reason)}")


def _needs(
    task: ShardingTask, memory: MemoryModel, types: Mapping[str, Sequence[ShardingType]] | None = None
) -> list[_Need]:
    """What every unit needs if its tables may have these types; by default, only columns are split."""
    scope = " (this sharder cuts columns only; neuroshard_plus with a step cost model also cuts rows)" * (types is None)
    found = []
    for unit in units_of(task):
        table, width = task.tables[unit.members[0]], unit.finest[0]
        own = ("column_wise",) if types is None else types[table.name]
        cuts = [(unit.bytes(width, task, memory), f"a shard of {width} columns{scope}")] * ("column_wise" in own)
        for name, shard in largest_row_shards(table, task).items() if own != ("column_wise",) else ():
            if name in own:
                text = f"a shard of {shard.num_rows} rows and {shard.embedding_dim} columns ({name})"
                cuts.append((memory.shard_bytes(shard, task), text))
        replica = 0 if cuts else memory.shard_bytes(whole(table, "data_parallel"), task)
        total = replica * task.world_size or unit.bytes(unit.width, task, memory)
        found.append(_Need(unit, total, *min(cuts, default=(replica, "a replica (data_parallel)"))))
    return found


def _of_rank(count: int, memory: MemoryModel) -> str:
    """Text for the memory of a rank of which shards may use `count` bytes."""
    return memory_text(math.ceil(count / (1.0 - memory.reserve_fraction)) if memory.reserve_fraction else count)


def _shortfalls(task: ShardingTask, memory: MemoryModel, needs: Sequence[_Need]) -> Iterator[str]:
    """Why a task cannot fit, the reason that asks for most memory per rank first; nothing if it may fit."""
    limits, needed, count = memory.limits(task), sum(need.total for need in needs), task.world_size
    missing, share, given = needed - sum(limits), -(-needed // count), max(task.memory_limits)
    if max(need.largest for need in needs) > share:
        yield from _too_large_shards(task, memory, needs)
    if missing > 0:
        yield (
            f"the tables need {memory_text(needed)} but the {count} ranks have {memory_text(sum(limits))}"
            + (f" beside the reserve of {memory.reserve_fraction:.1%}" if memory.reserve_fraction else "")
            + f": {memory_text(missing)} are missing, {memory_text(-(-missing // count))} per rank; use ranks of at "
            + f"least {_of_rank(share, memory)}"
            + (" on average" if min(task.memory_limits) < given else "")
            + f", or at least {-(-needed // max(1, *limits))} ranks of {memory_text(given)}"
        )
    yield from _too_large_shards(task, memory, needs)
    yield from _too_full_ranks(needs, limits)


def _too_large_shards(task: ShardingTask, memory: MemoryModel, needs: Sequence[_Need]) -> Iterator[str]:
    """A reason for every unit whose largest shard fits no rank allowed for it, the largest of these shards first."""
    least = min(limits := memory.limits(task))
    for need in sorted((need for need in needs if need.largest > least), key=lambda each: -each.largest):
        unit = need.unit
        roomiest = max(limits if unit.ranks is None else [limits[rank] for rank in unit.ranks])
        if need.largest <= roomiest:
            continue
        rows = " + ".join(str(task.tables[index].num_embeddings) for index in unit.members)
        allowed = "" if unit.ranks is None else f" of those allowed for it, {list(unit.ranks)},"
        yield (
            f"table {unit.name!r} does not fit: even {need.shard} needs {memory_text(need.largest)}, "
            f"{memory_text(need.largest - roomiest)} more than any rank{allowed} has (at most {memory_text(roomiest)})"
            f"; use ranks of at least {_of_rank(need.largest, memory)} or reduce the table's {rows} rows"
            + (", or loosen its constraints" if task.constraints else "")
        )


def _too_full_ranks(needs: Sequence[_Need], limits: Sequence[int]) -> Iterator[str]:
    """A reason for every set of ranks on which the units that may not lie elsewhere do not fit together."""
    for ranks in dict.fromkeys(need.unit.ranks for need in needs if need.unit.ranks is not None):
        inside = [need for need in needs if need.unit.ranks is not None and {*need.unit.ranks} <= {*ranks}]
        needed, room = sum(need.total for need in inside), sum(limits[rank] for rank in ranks)
        if needed > room:
            count = sum(len(need.unit.members) for need in inside)
            yield (
                f"the {count} tables that may lie on ranks {list(ranks)} only, among them {inside[0].unit.name!r}, "
                f"need {memory_text(needed)} but these ranks have {memory_text(room)}: {memory_text(needed - room)} "
                "are missing; allow more ranks for some of them"
            )


def whole_tables_do_not_fit(problem: Problem, reason: str) -> DoesNotFitError:
    """The error of a sharder that places whole tables only."""
    return DoesNotFitError(
        f"{problem.task.task_id}: {reason}; use a sharder that splits tables, such as neuroshard, or ranks with more "
        "memory"
    )


def no_rank_for_every_table(problem: Problem, sharder: str, tries: str) -> DoesNotFitError:
    """The error of a sharder that has tried several placements of whole tables, none of which fits."""
    reason = f"{sharder} did not place all tables in any of {tries}; {largest_table(problem)}"
    return whole_tables_do_not_fit(problem, reason)


def largest_table(problem: Problem) -> str:
    """What the largest table needs and what the rank with most memory has."""
    sizes = problem.bytes[problem.whole_tables].tolist()
    name, most = problem.units[sizes.index(max(sizes))].name, int(problem.limits.max())
    return (
        f"the largest table, {name!r}, needs {memory_text(max(sizes))}, and the rank with most memory has "
        f"{memory_text(most)}"
    )
