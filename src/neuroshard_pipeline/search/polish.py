"""A local search over changes of one table at a time, each priced exactly: the last step of a search.

A change gives the table another sharding type, or other equal column blocks, on the ranks or hosts with least load of
other tables that may hold it, or on its own ranks; cuts all sequence tables of its module alike; moves one of its
column shards to another rank; or exchanges it with one of another table. The best change of a table is made if it
lowers the predicted cost; then the next table has its turn, until no table has such a change. Other searches compare
estimates, take loads for costs, or look at slow ranks only.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.parts import step_parts
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import placement_costs, predicted_cost
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import spread_tables
from neuroshard_pipeline.search.spread_choice import Usable
from neuroshard_pipeline.search.units import block_counts, sequence_group
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, ShardingType, Table

#: Most placements that a search prices; it takes about a millisecond to price one.
_MOST_PRICED = 200
#: A change must lower the cost by at least this share.
_LEAST_GAIN = 1e-4
#: Most numbers of equal column blocks that are tried (`search.units.block_counts`).
_NUM_COUNTS = 4

#: The shards of every table, with their ranks.
_Placed = dict[str, list[tuple[Shard, int]]]


def polished(problem: Problem, placement: Placement, usable: Usable) -> Placement:
    """The placement after the best changes, one after another; `placement` itself if no change lowers its cost.

    Args:
        problem: the problem; its models price whole steps.
        placement: where the search starts.
        usable: gives the sharding types that a table may have.
    """
    best, ((cost_ms, parts),) = placement, placement_costs(problem, [placement])
    num_priced, num_kept, known = 0, 0, {_key(_placed(placement))}
    tables = sorted(problem.task.tables, key=lambda table: -table.pooling_factor * table.embedding_dim)
    for table in cycle(tables):
        rank_ms = np.array(predicted_cost(parts, problem.models, problem.task.batch_size).rank_ms)
        changed = {_key(found): found for found in _changes(problem, _placed(best), table, usable, rank_ms)}
        new = [_joined(problem, found) for key, found in changed.items() if key not in known]
        tried = [found for found in new if problem.allows(found)]
        known |= changed.keys()  # none of these costs less than the placement from which the search goes on
        costs = placement_costs(problem, tried)
        num_priced, num_kept = num_priced + len(tried), num_kept + 1
        least = min(range(len(tried)), key=lambda place: costs[place][0], default=None)
        if least is not None and costs[least][0] < cost_ms * (1.0 - _LEAST_GAIN):
            (cost_ms, parts), best, num_kept = costs[least], tried[least], 0
        if num_kept == len(tables) or num_priced >= _MOST_PRICED:
            break
    return best


def _placed(placement: Placement) -> _Placed:
    found: _Placed = {}
    for shard, rank in zip(placement.shards, placement.ranks, strict=True):
        found.setdefault(shard.table.name, []).append((shard, rank))
    return found


def _key(placed: _Placed) -> Hashable:
    """Equal for placements of one cost: equal shards of a table cost the same, wherever their columns begin."""
    keys = ((name, s.embedding_dim, s.num_rows, s.sharding_type, rank) for name, of in placed.items() for s, rank in of)
    return frozenset(Counter(keys).items())


def _joined(problem: Problem, placed: _Placed) -> Placement:
    pairs = [placed[table.name] for table in problem.task.tables]
    return Placement(tuple(s for of in pairs for s, _ in of), tuple(rank for of in pairs for _, rank in of))


def _changes(problem: Problem, placed: _Placed, table: Table, usable: Usable, rank_ms: FloatArray) -> Iterator[_Placed]:
    """The placement after every change of a table; `rank_ms` (W,) are the predicted costs of the ranks before it."""
    ranks_per_host = problem.task.ranks_per_host
    host = np.arange(len(rank_ms)) // ranks_per_host * (ranks_per_host > 1)  # 0 for all if a host is one rank
    others = _joined(problem, {**placed, table.name: []})
    room = problem.limits - problem.memory.bytes_of_ranks(others.shards, others.ranks, problem.task)
    order = np.argsort(-room, kind="stable")
    kinds = np.stack([rank_ms.round(9), problem.limits, host], axis=1)[order]
    targets = order[np.unique(kinds, axis=0, return_index=True)[1]].tolist()  # the roomiest of all ranks that are alike
    for group in (names for names in problem.task.constraints.together if table.name in names):
        yield from ({**placed, **{name: [(placed[name][0][0], rank)] for name in group}} for rank in targets)
        return
    rest_ms = step_parts(problem.task, others.shards, others.ranks, problem.models, problem.known).own_ms
    ranks, counts = np.argsort(rest_ms, kind="stable").tolist(), block_counts(table.embedding_dim)[:_NUM_COUNTS]
    for kind in usable(table, problem):
        for form in _rows(problem, table, kind, rest_ms) if kind != "column_wise" else ():
            yield {**placed, table.name: form}
        for count in counts if kind == "column_wise" else ():
            alike, held = _cut_alike(problem, placed, table, count), [rank for _, rank in placed[table.name]]
            for first, tables in (([], alike[0]), (held, alike[0]), ([], alike[1])):
                yield {**placed, **_columns(problem, tables, count, list(dict.fromkeys([*first, *ranks])), room)}
    for place, (shard, own) in enumerate(placed[table.name]):
        if shard.sharding_type != "column_wise":
            return
        yield from (_moved(placed, table.name, place, rank) for rank in targets if rank != own)
        for name, of in placed.items():
            for at, (other, rank) in enumerate(of):
                if other.sharding_type == "column_wise" and name != table.name and rank != own:
                    yield _moved(_moved(placed, table.name, place, rank), name, at, own)


def _moved(placed: _Placed, name: str, place: int, rank: int) -> _Placed:
    own = list(placed[name])
    own[place] = own[place][0], rank
    return {**placed, name: own}


def _cut_alike(problem: Problem, placed: _Placed, table: Table, count: int) -> tuple[list[Table], list[Table]]:
    """The tables that must get `count` column blocks if a table gets as many, and those that may.

    Shards of a module's cut sequence tables must have one width (`tables.step_work.torchrec_type`).
    """
    group = sequence_group(table) if count > 1 and table.pooling == "none" else None
    others = [other for other in problem.task.tables if group and other is not table and sequence_group(other) == group]
    may = [other for other in others if placed[other.name][0][0].sharding_type == "column_wise"]
    return [table, *(other for other in may if len(placed[other.name]) not in (1, count))], [table, *may]


def _columns(problem: Problem, tables: Sequence[Table], count: int, ranks: Sequence[int], room: IntArray) -> _Placed:
    """The tables in equal column blocks on the first allowed `ranks`, first those with `room` (W,); none if too few."""
    found = _Placed()
    for table in tables:
        width = table.embedding_dim // count
        allowed = problem.task.constraints.of(table.name).allowed_ranks(problem.task.world_size)
        needed = problem.memory.shard_bytes(Shard(table, 0, width), problem.task)
        own = sorted((rank for rank in ranks if rank in allowed), key=lambda rank: room[rank] < needed)
        own = own[len(found) * count :] + own[: len(found) * count]
        if len(own) < count:
            return {}
        found[table.name] = [(Shard(table, place * width, width), own[place]) for place in range(count)]
    return found


def _rows(problem: Problem, table: Table, kind: ShardingType, rest_ms: FloatArray) -> Iterator[list[tuple[Shard, int]]]:
    """The table with a type other than column-wise; what lies on single hosts goes to those with least other load."""
    task, counts = problem.task, block_counts(table.embedding_dim)[:_NUM_COUNTS]
    hosts = np.argsort(rest_ms.reshape(task.num_hosts, task.ranks_per_host).max(axis=1), kind="stable").tolist()
    counts = {"table_row_wise": counts[:1], "grid_shard": counts[1:]}.get(kind, [])
    for count in (count for count in counts if count <= len(hosts)):
        width = table.embedding_dim // count
        blocks = [row_shards(table, kind, task.ranks_per_host, place * width, width) for place in range(count)]
        for first in range(1 if count > 1 else min(4, len(hosts))):
            placed = [(hosts[first + place] * task.ranks_per_host, rows) for place, rows in enumerate(blocks)]
            yield [(row, start + at) for start, rows in placed for at, row in enumerate(rows)]
    if kind != "table_row_wise":
        with suppress(DoesNotFitError):
            found = spread_tables({table.name: kind}, task, problem.memory)
            yield list(zip(found.shards, found.ranks, strict=True))
