"""Moves of the local search: changes of the shards of one or two ranks, and the loads of these ranks afterwards.

Shapes: N shards of a layout, P moves, W ranks, Y kinds, H numbers that describe a shard's cost (shard embedding).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, FloatArray, IntArray, distinct
from neuroshard_pipeline.search.column_costs import communication_ms, compute_ms_of_sums
from neuroshard_pipeline.search.models import quantised
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY

#: Marks a missing shard or a missing kind in an array of indices.
NONE = -1

#: A split moves one of these shares of the columns, rounded to a multiple of 4, to another rank.
_SPLIT_SHARES = np.arange(1, 8) / 8

#: Numbers of columns that a shift moves from one shard of a table to another shard of the same table.
_SHIFTED_COLUMNS = (4, 8, 16, 32)

#: Largest number of combinations of a shard with a rank or another shard that are made into moves (they take 400 MB).
_MAX_PAIRS = 2**22


@dataclass(frozen=True)
class Layout:
    """Shards placed on ranks, with the totals of every rank. Costs are predicted when they are first asked for.

    Attributes:
        kinds: (N,) kind of every shard (see `problem`).
        ranks: (N,) rank of every shard.
        sums: (W, H) sum of the shard embeddings of every rank.
        dims: (W,) 4-byte words per sample that the shards of every rank send (see `Problem.dims`).
        free, host_free: (W,) bytes of GPU and host memory that further shards may use on every rank.
        problem: the problem, which defines the kinds.
    """

    kinds: IntArray
    ranks: IntArray
    sums: FloatArray
    dims: IntArray
    free: IntArray
    host_free: IntArray
    problem: Problem

    @cached_property
    def compute_ms(self) -> FloatArray:
        """(W,) predicted compute cost, including `Problem.background_ms`."""
        costs_ms = compute_ms_of_sums(self.problem.models, self.sums, self.dims, self.problem.task.batch_size)
        return np.asarray(costs_ms.sum(axis=-1) + self.problem.background_ms)

    @cached_property
    def cost(self) -> float:
        """Predicted embedding cost in units of 1e-9 ms."""
        problem, compute_ms = self.problem, self.compute_ms
        forward_ms, backward_ms = communication_ms(problem.models, compute_ms, self.dims, problem.task.batch_size)
        slowest_ms = (compute_ms + forward_ms + backward_ms).max()
        return float(quantised(slowest_ms) + quantised(problem.added_to_all_ms(self.kinds)))


@dataclass(frozen=True)
class Moves:
    """P moves between a source and a target rank.

    Attributes:
        shard: (P,) index of the shard that leaves the source. In a split or shift, the source receives a part back.
        other: (P,) index of the shard that leaves the target, or `NONE`.
        to_source: (P,) kind that the source receives, or `NONE`.
        to_target: (P,) kind that the target receives, or `NONE`.
        source: (P,) rank.
        target: (P,) rank; equal to `source` if two shards of one rank are merged.
    """

    shard: IntArray
    other: IntArray
    to_source: IntArray
    to_target: IntArray
    source: IntArray
    target: IntArray

    def __len__(self) -> int:
        return len(self.shard)

    def take(self, which: np.ndarray) -> Moves:
        """The moves that `which` selects; it is an array of indices or a mask."""
        return Moves(*(getattr(self, field.name)[which] for field in fields(self)))


@dataclass(frozen=True)
class Loads:
    """Compute cost (P, 2) and dimension sum (P, 2) of the source and the target after each of P moves."""

    compute_ms: FloatArray
    dims: IntArray


def layout_of(kinds: IntArray, ranks: IntArray, problem: Problem) -> Layout:
    """The layout of shards of `kinds` on `ranks`."""
    sums, free = np.zeros((problem.task.world_size, problem.embedding.shape[1])), problem.limits.copy()
    dims, host_free = np.zeros(problem.task.world_size, dtype=np.int64), problem.host_memory.copy()
    np.add.at(sums, ranks, problem.embedding[kinds])
    np.add.at(dims, ranks, problem.dims[kinds])
    np.subtract.at(free, ranks, problem.bytes[kinds])
    np.subtract.at(host_free, ranks, problem.host_bytes[kinds])
    return Layout(kinds, ranks, sums, dims, free, host_free, problem)


def apply_moves(layout: Layout, moves: Moves, problem: Problem) -> Layout:
    """The layout after all moves have been applied. No two moves may share a rank."""
    leaving = np.concatenate([moves.shard, moves.other[moves.other != NONE]])
    stays, lands = moves.to_source != NONE, moves.to_target != NONE
    new_kinds = np.concatenate([np.delete(layout.kinds, leaving), moves.to_source[stays], moves.to_target[lands]])
    new_ranks = np.concatenate([np.delete(layout.ranks, leaving), moves.source[stays], moves.target[lands]])
    return layout_of(new_kinds, new_ranks, problem)


def propose(
    layout: Layout, problem: Problem, sources: IntArray, targets: IntArray, max_moves: int, rng: np.random.Generator
) -> Moves:
    """Relocations, swaps, splits, shifts and merges, each of a shard on one of the ranks `sources`.

    At most `max_moves` moves of each type are drawn at random; shifts and merges count as one type. The target of a
    shift or merge may be any rank; the target of every other move is one of `targets`.
    """
    shards = np.flatnonzero(np.isin(layout.ranks, sources))
    parts = (
        _relocations(layout, shards, targets, rng),
        _swaps(layout, shards, targets, rng),
        _splits(layout, problem, shards[problem.may_split(layout.kinds)[shards]], targets, rng),
        _shifts(layout, problem, shards),
    )
    few = (m if len(m) <= max_moves else m.take(np.sort(rng.choice(len(m), max_moves, replace=False))) for m in parts)
    return _concatenated(list(few))


def bytes_added(layout: Layout, moves: Moves, bytes_of_kinds: IntArray) -> tuple[IntArray, IntArray]:
    """(P,) bytes that each move adds to its source and to its target; negative where it frees memory."""
    sizes = np.append(bytes_of_kinds, 0)  # the last entry belongs to NONE
    shard_sizes = np.append(bytes_of_kinds[layout.kinds], 0)
    to_source = sizes[moves.to_source] - shard_sizes[moves.shard]
    to_target = sizes[moves.to_target] - shard_sizes[moves.other]
    return to_source, to_target


def feasible(layout: Layout, moves: Moves, problem: Problem) -> BoolArray:
    """(P,) whether both ranks stay within their memory limits and the constraints allow the kinds they receive."""
    allowed = fits(layout, moves, problem.bytes, layout.free) & constraints_allow(moves, problem)
    return allowed & fits(layout, moves, problem.host_bytes, layout.host_free) if problem.uses_host_memory else allowed


def fits(layout: Layout, moves: Moves, bytes_of_kinds: IntArray, free: IntArray) -> BoolArray:
    """(P,) whether both ranks have enough `free` bytes (W,) for each move; kinds need `bytes_of_kinds` (Y,)."""
    to_source, to_target = bytes_added(layout, moves, bytes_of_kinds)
    within = moves.source == moves.target
    source_fits = free[moves.source] >= to_source + np.where(within, to_target, 0)
    return source_fits & (within | (free[moves.target] >= to_target))


def constraints_allow(moves: Moves, problem: Problem) -> BoolArray:
    """(P,) whether the constraints allow both ranks to hold the kinds that they receive."""
    if problem.rank_allowed is None:
        return np.ones(len(moves), dtype=bool)
    unit = np.append(problem.unit, 0)
    on_source = problem.rank_allowed[unit[moves.to_source], moves.source] | (moves.to_source == NONE)
    on_target = problem.rank_allowed[unit[moves.to_target], moves.target] | (moves.to_target == NONE)
    return on_source & on_target


def loads_after(layout: Layout, moves: Moves, problem: Problem) -> Loads:
    """Compute cost and dimension sum of source and target after each move."""
    embedding = np.concatenate([problem.embedding, np.zeros((1, problem.embedding.shape[1]))])
    sums = _after(layout.sums, embedding, layout, moves)  # (P, 2, H)
    dims = _after(layout.dims, np.append(problem.dims, 0), layout, moves)  # (P, 2)
    compute_ms = compute_ms_of_sums(problem.models, sums, dims, problem.task.batch_size).sum(axis=-1)
    background_ms = problem.background_ms[np.stack([moves.source, moves.target], axis=1)]
    return Loads(compute_ms + background_ms, dims)


def shared_ms_added(layout: Layout, moves: Moves, problem: Problem) -> FloatArray:
    """(P,) ms that each move adds to every rank of the task (`Problem.added_to_all_ms`).

    The first cut of a layout adds the reordering of all outputs; no merge is credited with removing it.
    """
    is_cut, shard_kinds = np.append(problem.is_cut, False), np.append(layout.kinds, NONE)
    of_kind = np.append(np.stack([problem.shared_ms, problem.reorder_ms]), np.zeros((2, 1)), axis=1)  # (2, Y + 1)
    before = of_kind[:, shard_kinds[moves.shard]] + of_kind[:, shard_kinds[moves.other]]
    shared, reordered = of_kind[:, moves.to_source] + of_kind[:, moves.to_target] - before
    if not is_cut[layout.kinds].any():
        cuts = is_cut[moves.to_source] | is_cut[moves.to_target]
        reordered = (reordered + problem.reorder_ms[layout.kinds].sum()) * cuts
    return np.asarray(shared + reordered)


def _after(totals: np.ndarray, of_kind: np.ndarray, layout: Layout, moves: Moves) -> np.ndarray:
    """(P, 2, ...) totals of source and target after each move, from (W, ...) totals and what each kind adds to them."""
    shard_kinds = np.append(layout.kinds, NONE)
    leaving, other = shard_kinds[moves.shard], shard_kinds[moves.other]
    at_source = totals[moves.source] - of_kind[leaving] + of_kind[moves.to_source]
    at_target = totals[moves.target] - of_kind[other] + of_kind[moves.to_target]
    after = np.stack([at_source, at_target], axis=1)
    # A merge within a rank changes one rank only; both columns then hold the total after the whole change.
    within = moves.source == moves.target
    after[within] = (after[within].sum(axis=1) - totals[moves.source[within]])[:, None]
    return after


def _relocations(layout: Layout, shards: IntArray, targets: IntArray, rng: np.random.Generator) -> Moves:
    shard, target = _pairs(shards, targets, rng)
    none = np.full(len(shard), NONE)
    return _between_ranks(Moves(shard, none, none, layout.kinds[shard], layout.ranks[shard], target))


def _swaps(layout: Layout, shards: IntArray, targets: IntArray, rng: np.random.Generator) -> Moves:
    shard, other = _pairs(shards, np.flatnonzero(np.isin(layout.ranks, targets)), rng)
    different = layout.kinds[shard] != layout.kinds[other]
    shard, other = shard[different], other[different]
    kinds, ranks = layout.kinds, layout.ranks
    return _between_ranks(Moves(shard, other, kinds[other], kinds[shard], ranks[shard], ranks[other]))


def _splits(layout: Layout, problem: Problem, shards: IntArray, targets: IntArray, rng: np.random.Generator) -> Moves:
    """Splits of `shards`: one part stays on its rank, and the other part moves to one of `targets`."""
    width = problem.width[layout.kinds[shards]]
    parts = COLUMN_GRANULARITY * np.rint(width[:, None] * _SPLIT_SHARES / COLUMN_GRANULARITY).astype(np.int64)
    least = problem.min_width[problem.unit[layout.kinds[shards]]][:, None]
    usable = (parts >= least) & (parts <= width[:, None] - least)
    usable[:, 1:] &= parts[:, 1:] != parts[:, :-1]
    which, share = np.nonzero(usable)
    moved = parts[which, share]
    unit = problem.unit[layout.kinds[shards[which]]].tolist()
    moved_kind = problem.numbers(zip(unit, moved.tolist(), strict=True))
    kept_kind = problem.numbers(zip(unit, (width[which] - moved).tolist(), strict=True))
    split, target = _pairs(np.arange(len(which)), targets, rng)
    shard = shards[which[split]]
    none = np.full(len(shard), NONE)
    return _between_ranks(Moves(shard, none, kept_kind[split], moved_kind[split], layout.ranks[shard], target))


def _shifts(layout: Layout, problem: Problem, shards: IntArray) -> Moves:
    """Moves of some (shift) or all columns (merge) of a shard to another one of its table, unless it is a sequence."""
    unit = problem.unit[layout.kinds]
    which, other = _matches(np.where(problem.group[unit[shards]] < 0, unit[shards], NONE), unit)
    shard = shards[which]
    shard, other = shard[shard != other], other[shard != other]
    width, within = problem.width[layout.kinds[shard]], layout.ranks[shard] == layout.ranks[other]
    least = problem.min_width[unit[shard]]
    shifts = []
    for columns in _SHIFTED_COLUMNS:
        possible = ~within & (columns <= width - least)
        shifts.append(_shift(layout, problem, shard[possible], other[possible], columns))
    merges = ~within | (shard < other)
    return _concatenated([*shifts, _shift(layout, problem, shard[merges], other[merges], None)])


def _shift(layout: Layout, problem: Problem, shard: IntArray, other: IntArray, columns: int | None) -> Moves:
    """Moves of `columns` columns (all columns if None) from each `shard` to the shard `other` of the same table."""
    unit, width = problem.unit[layout.kinds[shard]].tolist(), problem.width[layout.kinds[shard]]
    moved = width if columns is None else np.full_like(width, columns)
    stays = np.full(len(shard), NONE)
    if columns is not None:
        stays = problem.numbers(zip(unit, (width - moved).tolist(), strict=True))
    lands = problem.numbers(zip(unit, (problem.width[layout.kinds[other]] + moved).tolist(), strict=True))
    return Moves(shard, other, stays, lands, layout.ranks[shard], layout.ranks[other])


def _pairs(left: IntArray, right: IntArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Every combination of an element of `left` with one of `right`; a random part of them if they are too many."""
    count = len(left) * len(right)
    if count <= _MAX_PAIRS:
        return np.repeat(left, len(right)), np.tile(right, len(left))
    drawn = distinct(rng.integers(count, size=_MAX_PAIRS))
    return left[drawn // len(right)], right[drawn % len(right)]


def _matches(left: IntArray, right: IntArray) -> tuple[IntArray, IntArray]:
    """Indices of all pairs of equal elements, ordered by the index in `left` and then by the index in `right`."""
    order = np.argsort(right, kind="stable")
    first, last = (np.searchsorted(right[order], left, side) for side in ("left", "right"))
    which = np.repeat(np.arange(len(left)), last - first)
    place = np.arange(len(which)) - np.repeat(np.cumsum(last - first) - (last - first), last - first)
    return which, order[first[which] + place]


def _between_ranks(moves: Moves) -> Moves:
    return moves.take(np.flatnonzero(moves.source != moves.target))


def _concatenated(parts: list[Moves]) -> Moves:
    return Moves(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Moves)))
