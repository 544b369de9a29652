"""A local search over the tables on single hosts: it cuts them into column blocks, and moves and exchanges blocks.

`table_row_wise` tables lie on one host each. A host with an expensive table may decide the cost of the step. If that
table is cut into column blocks on several hosts, it is a `grid_shard` table. All tables on single hosts that may have
this type then get it, because every type that occurs has fixed costs. A cut often pays only if the host that gets the
other half loses other work; a change may therefore make a small table of that host a replica, too.

A round tries to move blocks of the busiest host, to halve them, and to replicate small tables. It makes the change with
the lowest predicted cost. The search ends when no change lowers the cost.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import placement_costs
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import Spread, joined, spread_of
from neuroshard_pipeline.search.spread_choice import Usable
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, ShardingType, whole

_MOST_ROUNDS = 12
#: Numbers of blocks of the busiest host, of least loaded hosts, and of small tables that changes concern.
_NUM_BLOCKS, _NUM_HOSTS, _NUM_REPLICAS = 3, 3, 4

_GRID: ShardingType = "grid_shard"

#: Column blocks by table: widths and hosts, in the order of the columns. A table without blocks is a replica.
Blocks = dict[str, tuple[tuple[int, int], ...]]


def improved_on_hosts(problem: Problem, placement: Placement, usable: Usable) -> Placement:
    """The cheapest placement found by changes of tables on single hosts; `placement` itself if none is cheaper.

    The problem's models price whole steps.
    """
    search = _HostSearch(problem, placement, usable)
    best, blocks = placement, search.blocks
    ((cost_ms, loads),) = search.costs([best])
    for _ in range(_MOST_ROUNDS if blocks else 0):
        tried = [(found, changed) for changed in search.changes(blocks, loads) if (found := search.placement(changed))]
        costs = search.costs([found for found, _ in tried])
        number = int(np.argmin([ms for ms, _ in costs])) if costs else -1
        if number < 0 or costs[number][0] >= cost_ms:
            break
        (best, blocks), (cost_ms, loads) = tried[number], costs[number]
    return best


class _HostSearch:
    """The `table_row_wise` and `grid_shard` tables of a placement that may be cut into column blocks (`grid_shard`)."""

    def __init__(self, problem: Problem, placement: Placement, usable: Usable) -> None:
        self._problem, self._usable, task = problem, usable, problem.task
        on_hosts = {n for n, t in spread_of(placement).types.items() if t in ("table_row_wise", _GRID)}
        self._tables = {
            table.name: table for table in task.tables if table.name in on_hosts and _GRID in usable(table, problem)
        }
        pairs = list(zip(placement.shards, placement.ranks, strict=True))
        others = [(shard, rank) for shard, rank in pairs if shard.table.name not in self._tables]
        self._others = Spread({}, tuple(shard for shard, _ in others), tuple(rank for _, rank in others))
        hosts: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        for shard, rank in pairs:
            if shard.table.name in self._tables:
                hosts[shard.table.name][shard.column_offset] = (shard.embedding_dim, rank // task.ranks_per_host)
        self.blocks: Blocks = {name: tuple(of[at] for at in sorted(of)) for name, of in hosts.items()}

    def costs(self, placements: Sequence[Placement]) -> list[tuple[float, IntArray]]:
        """Predicted costs in ms, and the hosts in descending order of their busiest ranks' cost without all-to-alls."""
        task, found = self._problem.task, list[tuple[float, IntArray]]()
        for cost_ms, parts in placement_costs(self._problem, placements):
            loads = parts.own_ms.reshape(task.num_hosts, task.ranks_per_host).max(axis=1)
            found.append((cost_ms, np.argsort(-loads, kind="stable")))
        return found

    def placement(self, blocks: Blocks) -> Placement | None:
        """The placement with these blocks; None if it exceeds the memory of a rank or violates constraints."""
        task, placed = self._problem.task, list[tuple[Shard, int]]()
        kind: ShardingType = _GRID if any(len(of) > 1 for of in blocks.values()) else "table_row_wise"
        for name, of in blocks.items():
            table, at = self._tables[name], 0
            if not of:
                placed += [(whole(table, "data_parallel"), rank) for rank in range(task.world_size)]
            for width, host in of:
                rows = row_shards(table, kind, task.ranks_per_host, at, width)
                placed += [(row, host * task.ranks_per_host + place) for place, row in enumerate(rows)]
                at += width
        own = Placement(tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed))
        found = joined(self._problem, own, self._others)
        return found if self._problem.allows(found) else None

    def changes(self, blocks: Blocks, hosts: IntArray) -> Iterator[Blocks]:
        """Blocks after each change; `hosts` are in descending order of load."""
        busiest, least = int(hosts[0]), hosts[1:][::-1][:_NUM_HOSTS].tolist()
        here = [(name, place) for name, of in blocks.items() for place, (_, host) in enumerate(of) if host == busiest]
        read = {entry: self._tables[entry[0]].pooling_factor * blocks[entry[0]][entry[1]][0] for entry in here}
        here = sorted(here, key=lambda entry: -read[entry])[:_NUM_BLOCKS]  # rows per sample times their columns
        weights = {name: table.num_embeddings * table.embedding_dim for name, table in self._tables.items()}
        replicable = (n for n in self._tables if "data_parallel" in self._usable(self._tables[n], self._problem))
        small = sorted((name for name in replicable if len(blocks[name]) == 1), key=weights.__getitem__)
        for name, place in here:
            for host in least:
                yield _moved(blocks, name, place, host)
                yield _halved(blocks, name, place, host)
                for other, at in [(n, p) for n, of in blocks.items() for p, (_, h) in enumerate(of) if h == host]:
                    yield _moved(_moved(blocks, name, place, host), other, at, busiest)
            for replica in small[:_NUM_REPLICAS]:
                yield {**blocks, replica: ()}
                if replica != name:
                    yield _halved({**blocks, replica: ()}, name, place, blocks[replica][0][1])


def _moved(blocks: Blocks, name: str, place: int, host: int) -> Blocks:
    own = blocks[name]
    return {**blocks, name: (*own[:place], (own[place][0], host), *own[place + 1 :])}


def _halved(blocks: Blocks, name: str, place: int, host: int) -> Blocks:
    """The blocks after the second half of a block has moved to `host`; a block that cannot be cut stays whole."""
    own, (width, first) = blocks[name], blocks[name][place]
    half = width // 2 // COLUMN_GRANULARITY * COLUMN_GRANULARITY
    if half == 0:
        return blocks
    return {**blocks, name: (*own[:place], (width - half, first), (half, host), *own[place + 1 :])}
