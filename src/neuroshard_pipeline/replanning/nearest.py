"""A placement with its ranks and columns renamed so that fewer bytes move; its predicted cost stays the same or falls.

Ranks with equal memory can exchange all column shards; with tables on single hosts, whole hosts are exchanged first,
then ranks inside hosts. The exchanges are assignment problems, which are solved for the bytes that stay (Kuhn 1955, by
SciPy). Shards of one table can exchange columns. Shapes: W ranks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.replanning.moved import moved_bytes
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import placement_cost_ms
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Shard

_ON_HOSTS = ("table_row_wise", "grid_shard")


def nearest(problem: Problem, placement: Placement, present: Present) -> Placement:
    """The placement that moves fewest bytes of those that rename ranks and columns, at no higher predicted cost."""
    best, best_bytes = placement, total_bytes(problem, placement, present)
    cost_ms = placement_cost_ms(problem, placement)
    for renamed in (_renamed_ranks(placement, present, problem), placement):
        found = _renamed_columns(renamed, present)
        total = total_bytes(problem, found, present)
        if total < best_bytes and problem.allows(found) and placement_cost_ms(problem, found) <= cost_ms:
            best, best_bytes = found, total
    return best


def total_bytes(problem: Problem, placement: Placement, present: Present) -> int:
    """Bytes that all ranks together receive if `placement` comes after the present plan."""
    return int(moved_bytes(present, placement.shards, placement.ranks, problem.task).sum())


def _renamed_ranks(placement: Placement, present: Present, problem: Problem) -> Placement:
    from scipy.optimize import linear_sum_assignment  # imported late: this takes a fifth of a second

    task = problem.task
    world, local = task.world_size, task.ranks_per_host
    stays = _common_bytes(placement, present, world)
    name = np.arange(world)
    if any(shard.sharding_type in _ON_HOSTS for shard in placement.shards):
        hosts = np.arange(world) // local
        of_hosts = np.zeros((task.num_hosts, task.num_hosts))
        np.add.at(of_hosts, (hosts[:, None], hosts[None, :]), stays)
        _, host = linear_sum_assignment(-of_hosts)
        for old, new in enumerate(host.tolist()):
            inside = stays[old * local : (old + 1) * local, new * local : (new + 1) * local]
            _, place = linear_sum_assignment(-inside)
            name[old * local : (old + 1) * local] = new * local + place
        moved = {rank: int(host[rank // local]) * local + rank % local for rank in range(world)}
    else:
        _, name = linear_sum_assignment(-stays)
        moved = {}
    ranks = []
    for shard, rank in zip(placement.shards, placement.ranks, strict=True):
        if shard.sharding_type == "column_wise":
            ranks.append(int(name[rank]))
        else:
            ranks.append(moved.get(rank, rank) if shard.sharding_type in _ON_HOSTS else rank)
    return replace(placement, ranks=tuple(ranks))


def _common_bytes(placement: Placement, present: Present, world: int) -> FloatArray:
    """(W, W) bytes of the shards of the row's rank that the column's rank has now, whichever columns they are."""
    common = np.zeros((world, world), dtype=np.float64)
    held: dict[str, dict[int, int]] = {}
    for name, placed in present.placed.items():
        held[name] = defaultdict(int)
        for shard, rank in placed:
            if rank < world and shard.sharding_type in ("column_wise", *_ON_HOSTS):
                held[name][rank] += shard.embedding_dim * shard.num_rows
    for shard, rank in zip(placement.shards, placement.ranks, strict=True):
        if shard.sharding_type in ("column_wise", *_ON_HOSTS):
            size = shard.embedding_dim * shard.num_rows
            for other, cells in held.get(shard.table.name, {}).items():
                common[rank, other] += min(cells, size) * BYTES_PER_ELEMENT[shard.table.data_type]
    return common


def _renamed_columns(placement: Placement, present: Present) -> Placement:
    """The placement in which the column shards of every table lie, as far as possible, where they begin now."""
    places: dict[str, list[int]] = defaultdict(list)
    for index, shard in enumerate(placement.shards):
        if shard.sharding_type == "column_wise" and shard.embedding_dim < shard.table.embedding_dim:
            places[shard.table.name].append(index)
    shards = list(placement.shards)
    for name, own in places.items():
        starts = _starts([(shards[at], placement.ranks[at]) for at in own], present.placed.get(name, []))
        offset = 0
        for at in [own[number] for number in np.argsort(starts, kind="stable")]:
            shards[at] = Shard(shards[at].table, offset, shards[at].embedding_dim)
            offset += shards[at].embedding_dim
    return replace(placement, shards=tuple(shards))


def _starts(new: list[tuple[Shard, int]], old: list[tuple[Shard, int]]) -> list[float]:
    """Where each new shard should begin: where its rank has the table now, else where a shard that leaves begins."""
    free = sorted((shard.column_offset, shard.embedding_dim, rank) for shard, rank in old)
    starts = [np.inf] * len(new)
    for by_rank in (True, False):
        for number, (shard, rank) in enumerate(new):
            if starts[number] < np.inf:
                continue
            fitting = [e for e in free if (e[2] == rank if by_rank else e[1] == shard.embedding_dim)]
            if fitting:
                chosen = max(fitting, key=lambda entry: (entry[1] == shard.embedding_dim, -entry[0]))
                starts[number] = chosen[0]
                free.remove(chosen)
    return starts
