"""The present plan with the fewest changes that the task of today needs.

Tables keep their sharding types and shards, and their ranks if these still exist. Only shards that cannot stay get
other places: of new tables, on ranks that are gone, against constraints, and the largest ones of ranks whose memory is
not enough. Each of them goes to the least loaded rank that has room, and is halved if no rank has.

Shapes: W ranks, N shards.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.replanning.present import Present, stretched
from neuroshard_pipeline.search.column_costs import compute_ms_of_sums
from neuroshard_pipeline.search.local_search import column_price_ms
from neuroshard_pipeline.search.moves import Layout, layout_of
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import Spread, column_problem, joined, spread_tables
from neuroshard_pipeline.tables.table import ShardingType

#: Types of tables that lie on one host each.
_ON_HOSTS = ("table_row_wise", "grid_shard")


def kept(present: Present, problem: Problem, fresh: Placement) -> Placement:
    """The placement with the fewest changes; the task of `problem` has the tiers and kernels of the present plan.

    New tables get their types in `fresh`, a placement of the same tables from nothing.

    Raises:
        DoesNotFitError: more than these changes is needed, because the tables do not fit.
    """
    spread = kept_spread(present, problem, fresh)
    columns = column_problem(problem, spread)
    if columns is None:
        return joined(problem, None, spread)
    layout = completed(*staying(present, columns), columns)
    return joined(problem, columns.placement(layout.kinds, layout.ranks), spread)


def kept_spread(present: Present, problem: Problem, fresh: Placement) -> Spread:
    """The spread tables of the present plan; those that it does not know have their type in `fresh`."""
    task = problem.task
    new_types = {shard.table.name: shard.sharding_type for shard in fresh.shards}
    types: dict[str, ShardingType] = {}
    for table in task.tables:
        old = stretched(present, table, task)
        kind = old[0][0].sharding_type if old else new_types.get(table.name, "column_wise")
        if kind not in task.possible_types(table):
            kind = new_types.get(table.name, "column_wise")
        if kind != "column_wise":
            types[table.name] = kind
    return placed_spread(types, present, problem)


def placed_spread(types: Mapping[str, ShardingType], present: Present, problem: Problem) -> Spread:
    """Spread tables of these types, on their present hosts if they are there.

    Raises:
        DoesNotFitError: a rank has too little memory for them.
    """
    task, memory = problem.task, problem.memory
    same_size = (present.ranks_per_host or present.world_size) == task.ranks_per_host
    same_hosts = same_size and present.world_size <= task.world_size  # or more of them
    stay: dict[str, list] = {}
    for table in task.tables:
        old = stretched(present, table, task) if types.get(table.name) in _ON_HOSTS else None
        if old and old[0][0].sharding_type == types[table.name] and same_hosts:
            stay[table.name] = old
    rest = spread_tables({name: kind for name, kind in types.items() if name not in stay}, task, memory)
    placed = [entry for of in stay.values() for entry in of]
    shards = (*rest.shards, *(shard for shard, _ in placed))
    ranks = (*rest.ranks, *(rank for _, rank in placed))
    if (memory.bytes_of_ranks(shards, ranks, task) > problem.limits).any():
        return spread_tables(types, task, memory)
    return Spread(types, shards, ranks)


def staying(present: Present, columns: Problem) -> tuple[IntArray, IntArray]:
    """(N,) kinds and (N,) ranks of the column shards that may stay where they are."""
    task, pairs, ranks = columns.task, list[tuple[int, int]](), list[int]()
    for number, unit in enumerate(columns.units):
        of = [stretched(present, task.tables[index], task) for index in unit.members]
        if any(not old or old[0][0].sharding_type != "column_wise" for old in of):
            continue
        places = [[(shard.embedding_dim, rank) for shard, rank in old or ()] for old in of]
        if len(of) > 1 and len({tuple(rank for _, rank in own) for own in places}) > 1:
            continue
        own = [(unit.width if len(of) > 1 else width, rank) for width, rank in places[0]]
        allowed = range(task.world_size) if unit.ranks is None else unit.ranks
        least = min(width for width, _ in own)
        if (
            len(own) <= max(unit.max_shards, unit.most_blocks)
            and (len(own) == 1 or least >= unit.min_width)
            and sum(w for w, _ in own) == unit.width
        ):
            stay = [(width, rank) for width, rank in own if rank in allowed]
            pairs += [(number, width) for width, _ in stay]
            ranks += [rank for _, rank in stay]
    return columns.numbers(pairs), np.array(ranks, dtype=np.int64)


def completed(kinds: IntArray, ranks: IntArray, columns: Problem) -> Layout:
    """The layout with these shards where memory allows it, and with all other columns of the tables.

    Raises:
        DoesNotFitError: a shard has no room on any rank, however often it is halved.
    """
    layout = layout_of(kinds, ranks, columns)
    while (layout.free < 0).any():
        rank = int(layout.free.argmin())
        own = np.flatnonzero(layout.ranks == rank)
        sizes = columns.bytes[layout.kinds[own]]
        enough = own[sizes >= -layout.free[rank]]
        leaving = enough[columns.bytes[layout.kinds[enough]].argmin()] if len(enough) else own[sizes.argmax()]
        layout = layout_of(np.delete(layout.kinds, leaving), np.delete(layout.ranks, leaving), columns)
    width = np.zeros(len(columns.units), dtype=np.int64)
    np.add.at(width, columns.unit[layout.kinds], columns.width[layout.kinds])
    missing = columns.width[columns.whole_tables] - width
    pieces = []
    for unit in np.flatnonzero(missing).tolist():
        kept = columns.width[layout.kinds[columns.unit[layout.kinds] == unit]]
        alike = len(kept) and columns.group[unit] >= 0  # a cut sequence table has shards of one width
        piece = int(kept[0]) if alike else int(missing[unit])
        pieces += [(unit, piece)] * (int(missing[unit]) // piece)
    for kind in sorted(columns.numbers(pieces).tolist(), key=lambda k: -columns.bytes[k]):
        layout = _with_shard(kind, layout, columns)
    return layout


def _with_shard(kind: int, layout: Layout, columns: Problem) -> Layout:
    """The layout with one more shard on the least loaded rank that has room for it, or with its halves on two."""
    task = columns.task
    fits = layout.free >= columns.bytes[kind]
    if columns.rank_allowed is not None:
        fits &= columns.rank_allowed[columns.unit[kind]]
    if fits.any():
        sums, dims = layout.sums + columns.embedding[kind], layout.dims + columns.dims[kind]
        compute_ms = (
            compute_ms_of_sums(columns.models, sums, dims, task.batch_size).sum(axis=-1) + columns.background_ms
        )
        load = compute_ms + column_price_ms(layout, columns) * dims if len(layout.kinds) else compute_ms
        rank = int(np.where(fits, load, np.inf).argmin())
        return layout_of(np.append(layout.kinds, kind), np.append(layout.ranks, rank), columns)
    unit = columns.units[columns.unit[kind]]
    num_shards = (columns.unit[layout.kinds] == columns.unit[kind]).sum() + 2
    if not columns.can_halve[kind] or num_shards > unit.max_shards:
        problem = f"no rank has {int(columns.bytes[kind])} bytes for {unit.name!r} beside the shards that stay"
        raise DoesNotFitError(f"{task.task_id}: {problem}; plan from nothing, or give the ranks more memory")
    one, other = columns.halves([kind])[0].tolist()
    return _with_shard(other, _with_shard(one, layout, columns), columns)
