"""Chooses the tables that go to host memory if a task does not fit the GPU memory of its ranks.

Every table has options: to stay, `fused_uvm_caching` with a load factor of `LOAD_FACTORS`, or `fused_uvm`. An option
frees GPU memory and costs bytes over the host link in every step (`tables.host_memory`). At first, every
table stays in the memory that the task gives it. Until everything fits, the search moves one table after another to its
next option on the lower convex hull: always the table with the fewest additional bytes over the host link per byte of
freed GPU memory. Memory that the last move freed in excess is given to caches, or to tables that move back.

Tables of a module with the same sharding type, data type and pooling share a cache on a rank, and its slots are as wide
as the widest cached table. Of the tables of a module, data type and pooling, only those of one width are therefore
cached, the width whose tables have most bytes; tables of other widths may be `fused_uvm`.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import placement_cost_ms
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.units import units_of
from neuroshard_pipeline.tables.host_memory import host_link_bytes
from neuroshard_pipeline.tables.table import COMPUTE_KERNELS, DEFAULT_CACHE_LOAD_FACTOR, Table, whole
from neuroshard_pipeline.tables.task import MOST_BYTES, ShardingTask

#: Load factors of caches that are tried.
LOAD_FACTORS: tuple[float, ...] = (0.8, 0.65, 0.5, 0.35, 0.2, 0.1, 0.05, 0.02)

#: Shares of all ranks' GPU memory, or of the bytes of all tables if these are fewer, that tables may fill; each gives
#: at most one variant of the task. With the largest share, the fewest bytes of GPU memory are freed; smaller shares
#: leave room to balance the ranks.
_SHARES = (0.99, 0.9, 0.75)

#: The same for variants without caches, whose tables need less GPU memory per rank and can be placed on any rank.
_UNCACHED_SHARES = (0.99, 0.6)

#: If its number of tables times its number of ranks exceeds this, a task gets variants for the first shares only and
#: has fewer load factors, because each search takes long.
_LARGE, _NUM_SHARES_IF_LARGE = 20_000, 2
_LOAD_FACTORS_IF_LARGE = (0.5, 0.2, 0.05)


@dataclass(frozen=True)
class _Option:
    """What a table may become: GPU and host memory, and bytes over the host link per step."""

    table: Table
    gpu_bytes: int
    host_bytes: int
    link_bytes: float


def host_memory_tasks(task: ShardingTask, memory: MemoryModel) -> list[ShardingTask]:
    """Variants of a task that does not fit, with tables in host memory, in the last of them all that no rank can hold.

    The list is empty if the task has no `host_memory_bytes`, or if no moves make it fit.
    """
    if task.host_memory_bytes is None:
        return []
    options = _options_of_tables(task, memory)
    shares, most = _SHARES[: _NUM_SHARES_IF_LARGE if _is_large(task) else None], max(memory.limits(task))
    found = [_chosen(task, memory, options, share) for share in shares]
    if not _is_large(task):
        uncut = [[of[0], *(each for each in of[1:] if each.gpu_bytes <= most)] for of in options]
        uncached = [[of[0], *(each for each in of[1:] if each.table.compute_kernel == "fused_uvm")] for of in options]
        found += [_chosen(task, memory, uncached, share) for share in _UNCACHED_SHARES]
        whole_on_no_rank = {number for number, of in enumerate(options) if of[0].gpu_bytes > most}
        found += [_chosen(task, memory, uncut, _SHARES[0], whole_on_no_rank)]
    return [replace(task, tables=tables) for tables in dict.fromkeys(found) if tables not in (None, task.tables)]


def with_larger_caches(problem: Problem, placement: Placement) -> Placement:
    """The placement of a variant, with larger or new caches of the tables that it moved where these lower the cost."""
    task, best, cost_ms = problem.of(placement).task, placement, placement_cost_ms(problem.of(placement), placement)
    moved = [table for table in task.tables if table not in problem.task.tables and not _is_large(task)]
    choices = zip(problem.task.tables, kernel_choices(problem.task), strict=True)
    cacheable = {table.name for table, kernels in choices if "fused_uvm_caching" in kernels}
    for table in sorted(moved, key=lambda table: -host_link_bytes(whole(table), task)):
        least = table.cache_load_factor if table.compute_kernel == "fused_uvm_caching" else 0.0
        for load_factor in (larger for larger in LOAD_FACTORS if larger > least and table.name in cacheable):
            own = replace(table, compute_kernel="fused_uvm_caching", cache_load_factor=load_factor)
            shards = tuple(replace(s, table=own) if s.table.name == own.name else s for s in best.shards)
            tables = [own if each.name == own.name else each for each in problem.of(best).task.tables]
            changed = Placement(shards, best.ranks, replace(task, tables=tables))
            asked = problem.of(changed)
            if asked.allows(changed) and (changed_ms := placement_cost_ms(asked, changed)) < cost_ms:
                best, cost_ms = changed, changed_ms
                break
    return best


def host_bytes_needed(task: ShardingTask, memory: MemoryModel) -> int | None:
    """Approximate host memory per rank with which the task would fit; None if host memory does not help."""
    asked = replace(task, host_memory_bytes=MOST_BYTES)
    tables = _chosen(asked, memory, _options_of_tables(asked, memory), _SHARES[0])
    if tables is None or tables == asked.tables:
        return None
    total = sum(memory.host_bytes(whole(table), asked) for table in tables)
    return -(-total // task.world_size)


def _is_large(task: ShardingTask) -> bool:
    return len(task.tables) * task.world_size > _LARGE


def _options_of_tables(task: ShardingTask, memory: MemoryModel) -> list[list[_Option]]:
    """The options of every table. The computation of one option takes about a millisecond.

    In large tasks, there are few load factors, and tables with less than a tenth of the mean bytes can only stay.
    """
    load_factors, least = LOAD_FACTORS, 0.0
    if _is_large(task):
        load_factors = _LOAD_FACTORS_IF_LARGE
        least = 0.1 * sum(table.weight_bytes for table in task.tables) / len(task.tables)
    return [
        list(_options(table, kernels if table.weight_bytes >= least else kernels[:1], load_factors, task, memory))
        for table, kernels in zip(task.tables, kernel_choices(task), strict=True)
    ]


def _chosen(
    task: ShardingTask,
    memory: MemoryModel,
    options: Sequence[Sequence[_Option]],
    share: float,
    first: Collection[int] = (),
) -> tuple[Table, ...] | None:
    """The tables, some in host memory, that fill at most `share` (see `_SHARES`); None if that cannot be reached.

    The tables with the numbers `first` move whatever that costs.
    """
    hulls, too_large = [_hull(of) for of in options], _too_large(task, memory) | {*first}
    chosen = [0] * len(hulls)
    needed, host_left = sum(hull[0].gpu_bytes for hull in hulls), (task.host_memory_bytes or 0) * task.world_size
    target = share * min(sum(memory.limits(task)), needed)
    # Tables that fit nowhere move first, whatever they cost.
    steps = [(-1.0 if at in too_large else _price(hull, 0), at) for at, hull in enumerate(hulls) if len(hull) > 1]
    heapq.heapify(steps)
    while steps and (needed > target or steps[0][0] < 0):
        _, index = heapq.heappop(steps)
        hull, at = hulls[index], chosen[index]
        if at + 1 == len(hull) or (at == 0 and hull[1].host_bytes > host_left):
            continue
        host_left -= hull[at + 1].host_bytes - hull[at].host_bytes
        needed -= hull[at].gpu_bytes - hull[at + 1].gpu_bytes
        chosen[index] = at + 1
        if at + 2 < len(hull):
            heapq.heappush(steps, (_price(hull, at + 1), index))
    if needed > target:
        return None
    found = [hull[at] for hull, at in zip(hulls, chosen, strict=True)]
    return _with_larger_caches(found, [() if at in too_large else of for at, of in enumerate(options)], target - needed)


def _with_larger_caches(
    chosen: list[_Option], options: Sequence[Sequence[_Option]], free_bytes: float
) -> tuple[Table, ...]:
    """The chosen tables. In descending order of link bytes, each gets the best option that free GPU memory allows."""
    for index in sorted(range(len(chosen)), key=lambda at: -chosen[at].link_bytes):
        own = chosen[index]
        affordable = [each for each in options[index] if each.gpu_bytes <= own.gpu_bytes + free_bytes]
        if own.link_bytes > 0 and affordable:
            chosen[index] = min(affordable, key=lambda each: (each.link_bytes, each.gpu_bytes))
            free_bytes -= chosen[index].gpu_bytes - own.gpu_bytes
    return tuple(option.table for option in chosen)


def _price(hull: Sequence[_Option], at: int) -> float:
    """Further bytes over the host link per freed byte of GPU memory, from option `at` of a hull to the next option."""
    before, after = hull[at], hull[at + 1]
    return (after.link_bytes - before.link_bytes) / (before.gpu_bytes - after.gpu_bytes)


def kernel_choices(task: ShardingTask) -> list[tuple[str, ...]]:
    """The kernels that a search may give to each table, the table's own kernel first.

    A table keeps its kernel if it is in host memory already, must stay in GPU memory, is a tier or can only be
    replicated. In a task without host memory, all tables keep their kernels.
    """
    widths = _cache_widths(task.tables)
    found: list[tuple[str, ...]] = []
    for table in task.tables:
        is_free = not table.is_in_host_memory and table.tier is None and task.host_memory_bytes is not None
        is_free = is_free and not task.constraints.of(table.name).in_gpu_memory
        if not is_free or task.possible_types(table) == ("data_parallel",):
            found.append((table.compute_kernel,))
        elif table.embedding_dim == widths[_cache_of(table)]:
            found.append(COMPUTE_KERNELS)
        else:
            found.append(COMPUTE_KERNELS[:2])
    return found


def _options(
    table: Table, kernels: Sequence[str], load_factors: Sequence[float], task: ShardingTask, memory: MemoryModel
) -> Iterator[_Option]:
    """What the table may become, beginning with what it is."""
    yield _option(table, task, memory)
    for kernel in kernels[1:]:
        for load_factor in load_factors if kernel == "fused_uvm_caching" else (DEFAULT_CACHE_LOAD_FACTOR,):
            moved = replace(table, compute_kernel=kernel, cache_load_factor=load_factor)
            yield _option(moved, task, memory)


def _option(table: Table, task: ShardingTask, memory: MemoryModel) -> _Option:
    shard = whole(table)
    return _Option(table, memory.shard_bytes(shard, task), memory.host_bytes(shard, task), host_link_bytes(shard, task))


def _hull(options: Sequence[_Option]) -> list[_Option]:
    """The lower convex hull of the options: each takes less GPU memory than the one before, at a higher `_price`."""
    hull = [options[0]]
    for option in sorted(options[1:], key=lambda each: (-each.gpu_bytes, each.link_bytes)):
        if option.gpu_bytes >= hull[-1].gpu_bytes:
            continue
        while len(hull) > 1 and _price([hull[-1], option], 0) <= _price(hull, len(hull) - 2):
            hull.pop()
        hull.append(option)
    return hull


def _cache_of(table: Table) -> tuple[object, ...]:
    """What tables must have in common, besides their sharding type, to share a cache on a rank."""
    return table.embedding_module, table.data_type, table.pooling


def _cache_widths(tables: Sequence[Table]) -> dict[tuple[object, ...], int]:
    """For each cache, the number of columns whose tables have most bytes together."""
    sizes: dict[tuple[object, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for table in tables:
        sizes[_cache_of(table)][table.embedding_dim] += table.weight_bytes
    return {cache: max(of, key=lambda width: (of[width], width)) for cache, of in sizes.items()}


def _too_large(task: ShardingTask, memory: MemoryModel) -> set[int]:
    """Indices of tables whose rows may not be cut, and whose narrowest column shard no rank can hold."""
    most = max(memory.limits(task))
    found = set()
    for unit in units_of(task):
        if unit.bytes(unit.finest[0], task, memory) > most:
            types = (task.possible_types(task.tables[index]) for index in unit.members)
            found |= set(unit.members) if all("row_wise" not in of for of in types) else set()
    return found
