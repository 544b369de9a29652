"""A local search over column shards that starts from the present plan and moves at most some bytes per rank.

Its rounds are those of `search.local_search`, but every change is priced by the bytes that it moves: changes that would
take a rank above the limit are left out, and of the others those with the most gain per byte come first. The search
runs with a part of the limit first, so that the first bytes are spent where they gain most.

Shapes: U units, W ranks, P moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray
from neuroshard_pipeline.replanning.moved import bytes_per_cell
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.search.local_search import MAX_MOVES, cheapest_set, column_price_ms, potential_gain
from neuroshard_pipeline.search.moves import NONE, Layout, Moves, apply_moves, feasible, loads_after, propose
from neuroshard_pipeline.search.problem import Problem

#: Shares of the limit with which the search runs, one after another.
_SHARES = (0.25, 0.5, 1.0)
#: Number of changes that a round tries, ranks that they start from and lead to (at least, and as a share of all ranks).
_NUM_TRIED, _LEAST_SOURCES, _SOURCES_SHARE, _LEAST_TARGETS, _TARGETS_SHARE = 48, 3, 1 / 16, 6, 1 / 8
#: Most rounds with each share of the limit.
_MOST_ROUNDS = 60


@dataclass(frozen=True)
class Home:
    """The columns of every unit that each rank has now (U, W), and bytes that move with one (U,), 0 for new tables.

    `sends` (U,) says whether a rank that gives columns away sends them; a replica need not.
    """

    columns: IntArray
    column_bytes: FloatArray
    sends: BoolArray

    def port_bytes(self, layout: Layout, problem: Problem) -> FloatArray:
        """(2, W) bytes that every rank receives and sends if `layout` comes after the present plan."""
        now = np.zeros_like(self.columns)
        np.add.at(now, (problem.unit[layout.kinds], layout.ranks), problem.width[layout.kinds])
        more = now - self.columns
        received = np.maximum(more, 0).T @ self.column_bytes
        return np.stack([received, np.maximum(-more, 0).T @ (self.column_bytes * self.sends)])


def home_of(present: Present, columns: Problem) -> Home:
    """Where the columns of the units of a problem are in the present plan."""
    task, shape = columns.task, (len(columns.units), columns.task.world_size)
    home, of_column, sends = np.zeros(shape, dtype=np.int64), np.zeros(shape[0]), np.ones(shape[0], dtype=bool)
    for number, unit in enumerate(columns.units):
        for table in (task.tables[index] for index in unit.members):
            placed = present.placed.get(table.name, [])
            if not placed or placed[0][0].table.embedding_dim != table.embedding_dim:
                continue
            weight, row = bytes_per_cell(table, task.optimizer)
            rows = min(placed[0][0].table.num_embeddings, table.num_embeddings)
            of_column[number] += rows * (weight * table.embedding_dim + row) / unit.width
            kind = placed[0][0].sharding_type
            sends[number] = kind != "data_parallel"
            for shard, rank in placed if kind in ("column_wise", "data_parallel") else ():
                if rank < shape[1]:
                    home[number, rank] += shard.embedding_dim
    return Home(home, of_column, sends)


def descend(start: Layout, problem: Problem, home: Home, limits: FloatArray, rng: np.random.Generator) -> list[Layout]:
    """Layouts in descending order of cost, from `start` on, whose ranks receive and send at most `limits` (2, W) bytes.

    Ranks that move more in `start` may move as much as there.
    """
    found = [start]
    floor = home.port_bytes(start, problem)
    for limit in [np.maximum(floor, limits * share) for share in (_SHARES if np.isfinite(limits).all() else (1.0,))]:
        for _ in range(_MOST_ROUNDS):
            better = _improved(found[-1], problem, home, limit, rng)
            if better is None:
                break
            found.append(better)
    return found


def _improved(
    layout: Layout, problem: Problem, home: Home, limits: FloatArray, rng: np.random.Generator
) -> Layout | None:
    """The cheapest layout after one set of changes within the limits (2, W); None if none is cheaper."""
    price = column_price_ms(layout, problem)
    load = layout.compute_ms + price * layout.dims
    order = np.argsort(-load, kind="stable")
    sources = order[: max(_LEAST_SOURCES, round(len(order) * _SOURCES_SHARE))]
    targets = order[-max(_LEAST_TARGETS, round(len(order) * _TARGETS_SHARE)) :]
    moves = propose(layout, problem, sources, targets, MAX_MOVES, rng)
    moves = moves.take(np.flatnonzero(feasible(layout, moves, problem)))
    used = home.port_bytes(layout, problem)
    added = _bytes_added(layout, moves, problem, home)  # (2, 2, P)
    pair = np.stack([moves.source, moves.target])  # (2, P)
    fits = ((used[:, pair] + added <= limits[:, pair]) | (added <= 0)).all(axis=(0, 1))
    moves, added = moves.take(np.flatnonzero(fits)), added[:, :, fits]
    if not len(moves):
        return None
    loads = loads_after(layout, moves, problem)
    gain = potential_gain(load, moves, loads, price)
    spent = np.maximum(added[0].sum(axis=0), 0.0)
    per_byte = gain / (spent + 0.02 * max(spent.max(), 1.0))
    chosen = list(dict.fromkeys([*np.argsort(per_byte)[:_NUM_TRIED].tolist(), *np.argsort(gain)[:_NUM_TRIED].tolist()]))
    sets = _sets(moves, chosen, problem.unit[layout.kinds[moves.shard]] if problem.limits_shards else None)
    best, cost = cheapest_set(layout, moves, loads, sets, problem)
    if cost >= layout.cost:
        return None
    better = apply_moves(layout, moves.take(sets[best]), problem)
    return better if better.cost < layout.cost else None


def _sets(moves: Moves, chosen: list[int], unit: IntArray | None) -> list[IntArray]:
    """Every chosen move alone, and the first 2, 4, 8 ... of them that share no rank (and no `unit` (P,), if given)."""
    disjoint, used = list[int](), set[tuple[str, int]]()
    for move in chosen:
        touched = {("rank", int(moves.source[move])), ("rank", int(moves.target[move]))}
        if unit is not None:
            touched.add(("unit", int(unit[move])))
        if not touched & used:
            disjoint.append(move)
            used |= touched
    sizes = [2**power for power in range(1, 8) if 2 ** (power - 1) < len(disjoint)]
    return [np.array([move]) for move in chosen] + [np.array(disjoint[:size]) for size in sizes]


def _bytes_added(layout: Layout, moves: Moves, problem: Problem, home: Home) -> FloatArray:
    """(2, 2, P) bytes that each move adds: received and sent, by the source and the target."""
    unit, width = np.append(problem.unit, -1), np.append(problem.width, 0)
    kinds = np.append(layout.kinds, NONE)
    leaving, other = kinds[moves.shard], kinds[moves.other]
    now = np.zeros_like(home.columns)
    np.add.at(now, (problem.unit[layout.kinds], layout.ranks), problem.width[layout.kinds])
    added = np.zeros((2, 2, len(moves)))
    first, second = unit[leaving], unit[other]
    within = moves.source == moves.target
    for units, counts in ((first, np.ones(len(moves), bool)), (second, (second >= 0) & (second != first))):
        for place, (rank, gone, came) in enumerate(
            ((moves.source, leaving, moves.to_source), (moves.target, other, moves.to_target))
        ):
            change = (unit[came] == units) * width[came] - (unit[gone] == units) * width[gone]
            change = np.where(within, 0, change)  # a merge within a rank moves nothing
            before = now[units, rank] - home.columns[units, rank]
            of_column = np.where(counts, home.column_bytes[units], 0.0)
            added[0, place] += of_column * (np.maximum(before + change, 0) - np.maximum(before, 0))
            sent = np.maximum(-before - change, 0) - np.maximum(-before, 0)
            added[1, place] += of_column * home.sends[units] * sent
    return added
