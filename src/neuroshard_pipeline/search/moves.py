"""Moves of the local search: what may change between two ranks, and what that does to their loads.

Shapes: N shards of a layout, P moves, W ranks, H numbers of a shard embedding, I shards on the source ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.simulator import (
    TRUSTING,
    Caution,
    FloatArray,
    IntArray,
    cautious_compute_ms,
    cautious_cost_ms,
    embedding_cost_ms,
    quantised,
)
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY

#: No shard, or no kind.
NONE = -1

#: A shard is split after these shares of its columns, rounded to whole multiples of 4.
_SPLIT_SHARES = np.arange(1, 8) / 8

#: Columns that one shard of a table hands to another one of the same table.
_SHIFTED_COLUMNS = (4, 8, 16, 32)


@dataclass(frozen=True)
class Layout:
    """Shards on ranks, with all that a move needs to know of them.

    Attributes:
        kinds: (N,) kind of every shard.
        ranks: (N,) rank of every shard.
        sums: (W, H) summed embeddings.
        dims: (W,) dimension sums.
        free: (W,) bytes left.
        compute_ms: (W,) predicted compute cost, taken with caution (`simulator.cautious_compute_ms`).
        cost: embedding cost in units of 1e-9 ms.
        judged: what the search compares, `simulator.cautious_cost_ms`, in the same units.
    """

    kinds: IntArray
    ranks: IntArray
    sums: FloatArray
    dims: IntArray
    free: IntArray
    compute_ms: FloatArray
    cost: float
    judged: float


@dataclass(frozen=True)
class Moves:
    """P moves between a source and a target rank.

    Attributes:
        shard: (P,) a shard that leaves the source.
        other: (P,) a shard that leaves the target, or `NONE`.
        to_source: (P,) kind that the source gets, or `NONE`.
        to_target: (P,) kind that the target gets, or `NONE`.
        source: (P,) rank.
        target: (P,) rank; for a merge within a rank, the source.
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
        """The moves at `which`."""
        return Moves(*(getattr(self, field.name)[which] for field in fields(self)))


@dataclass(frozen=True)
class Loads:
    """What P moves make of their two ranks: compute cost and dimension sum, each (P, 2), source first."""

    compute_ms: FloatArray
    dims: IntArray


def layout_of(shard_kinds: IntArray, ranks: IntArray, kinds: ShardKinds, caution: Caution = TRUSTING) -> Layout:
    """The layout of shards of `shard_kinds` on `ranks`, judged with `caution`."""
    world_size, batch_size = kinds.task.world_size, kinds.task.batch_size
    sums = np.zeros((world_size, kinds.embedding.shape[1]))
    dims = np.zeros(world_size, dtype=np.int64)
    free = kinds.limits.copy()
    np.add.at(sums, ranks, kinds.embedding[shard_kinds])
    np.add.at(dims, ranks, kinds.width[shard_kinds])
    np.subtract.at(free, ranks, kinds.bytes[shard_kinds])
    compute_ms = cautious_compute_ms(kinds.models, sums, dims, batch_size, TRUSTING)
    cost = judged = float(quantised(embedding_cost_ms(kinds.models, compute_ms[None], dims[None], batch_size))[0])
    if caution != TRUSTING:
        compute_ms = cautious_compute_ms(kinds.models, sums, dims, batch_size, caution)
        judged = float(quantised(cautious_cost_ms(kinds.models, compute_ms[None], dims[None], batch_size, caution))[0])
    return Layout(shard_kinds, ranks, sums, dims, free, compute_ms, cost, judged)


def apply_moves(layout: Layout, moves: Moves, kinds: ShardKinds, caution: Caution = TRUSTING) -> Layout:
    """The layout after moves that share no rank."""
    leaving = np.concatenate([moves.shard, moves.other[moves.other != NONE]])
    stays, lands = moves.to_source != NONE, moves.to_target != NONE
    new_kinds = np.concatenate([np.delete(layout.kinds, leaving), moves.to_source[stays], moves.to_target[lands]])
    new_ranks = np.concatenate([np.delete(layout.ranks, leaving), moves.source[stays], moves.target[lands]])
    return layout_of(new_kinds, new_ranks, kinds, caution)


def propose(
    layout: Layout,
    kinds: ShardKinds,
    sources: IntArray,
    targets: IntArray,
    max_moves: int,
    rng: np.random.Generator,
) -> Moves:
    """Relocations, swaps, splits, shifts and merges that take something off `sources`, at most `max_moves` of a sort.

    Where there are more, those proposed are drawn at random.
    """
    shards = np.flatnonzero(np.isin(layout.ranks, sources))
    parts = (
        _relocations(layout, shards, targets),
        _swaps(layout, shards, targets),
        _splits(layout, kinds, shards[kinds.may_split(layout.kinds)[shards]], targets),
        _shifts(layout, kinds, shards),
    )
    return _concatenated([_at_most(moves, max_moves, rng) for moves in parts])


def feasible(layout: Layout, moves: Moves, kinds: ShardKinds) -> np.ndarray:
    """(P,) whether both ranks keep within their memory and get only what constraints allow there."""
    sizes = np.append(kinds.bytes, 0)  # the kind NONE
    shard_sizes = np.append(kinds.bytes[layout.kinds], 0)
    to_source = sizes[moves.to_source] - shard_sizes[moves.shard]
    to_target = sizes[moves.to_target] - shard_sizes[moves.other]
    within = moves.source == moves.target
    source_fits = layout.free[moves.source] >= to_source + np.where(within, to_target, 0)
    return source_fits & (within | (layout.free[moves.target] >= to_target)) & constraints_allow(moves, kinds)


def constraints_allow(moves: Moves, kinds: ShardKinds) -> np.ndarray:
    """(P,) whether both ranks get only what may lie there."""
    if kinds.rank_allowed is None:
        return np.ones(len(moves), dtype=bool)
    unit = np.append(kinds.table, 0)
    on_source = kinds.rank_allowed[unit[moves.to_source], moves.source] | (moves.to_source == NONE)
    on_target = kinds.rank_allowed[unit[moves.to_target], moves.target] | (moves.to_target == NONE)
    return on_source & on_target


def loads_after(layout: Layout, moves: Moves, kinds: ShardKinds, caution: Caution = TRUSTING) -> Loads:
    """Compute cost, taken with caution, and dimension sum of source and target after each move."""
    embedding = np.concatenate([kinds.embedding, np.zeros((1, kinds.embedding.shape[1]))])
    width = np.append(kinds.width, 0)
    shard_kinds = np.append(layout.kinds, NONE)
    leaving, other = shard_kinds[moves.shard], shard_kinds[moves.other]
    within = (moves.source == moves.target)[:, None]
    sums = np.stack(  # (P, 2, H)
        [
            layout.sums[moves.source] - embedding[leaving] + embedding[moves.to_source],
            layout.sums[moves.target] - embedding[other] + embedding[moves.to_target],
        ],
        axis=1,
    )
    dims = np.stack(
        [
            layout.dims[moves.source] - width[leaving] + width[moves.to_source],
            layout.dims[moves.target] - width[other] + width[moves.to_target],
        ],
        axis=1,
    )
    # A merge within a rank changes one rank only; both columns then hold the whole change.
    sums = np.where(within[..., None], (sums.sum(axis=1) - layout.sums[moves.source])[:, None], sums)
    dims = np.where(within, (dims.sum(axis=1) - layout.dims[moves.source])[:, None], dims)
    return Loads(cautious_compute_ms(kinds.models, sums, dims, kinds.task.batch_size, caution), dims)


def _relocations(layout: Layout, shards: IntArray, targets: IntArray) -> Moves:
    shard, target = _pairs(shards, targets)
    none = np.full(len(shard), NONE)
    return _between_ranks(Moves(shard, none, none, layout.kinds[shard], layout.ranks[shard], target))


def _swaps(layout: Layout, shards: IntArray, targets: IntArray) -> Moves:
    shard, other = _pairs(shards, np.flatnonzero(np.isin(layout.ranks, targets)))
    different = layout.kinds[shard] != layout.kinds[other]
    shard, other = shard[different], other[different]
    kinds, ranks = layout.kinds, layout.ranks
    return _between_ranks(Moves(shard, other, kinds[other], kinds[shard], ranks[shard], ranks[other]))


def _splits(layout: Layout, kinds: ShardKinds, shards: IntArray, targets: IntArray) -> Moves:
    """One part stays, the other goes to a target."""
    width = kinds.width[layout.kinds[shards]]
    parts = COLUMN_GRANULARITY * np.rint(width[:, None] * _SPLIT_SHARES / COLUMN_GRANULARITY).astype(np.int64)
    least = kinds.min_width[kinds.table[layout.kinds[shards]]][:, None]
    usable = (parts >= least) & (parts <= width[:, None] - least)
    usable[:, 1:] &= parts[:, 1:] != parts[:, :-1]
    which, share = np.nonzero(usable)
    gone = parts[which, share]
    table = kinds.table[layout.kinds[shards[which]]]
    gone_kind = kinds.numbers(zip(table.tolist(), gone.tolist(), strict=True))
    kept_kind = kinds.numbers(zip(table.tolist(), (width[which] - gone).tolist(), strict=True))
    split, target = _pairs(np.arange(len(which)), targets)
    shard = shards[which[split]]
    none = np.full(len(shard), NONE)
    return _between_ranks(Moves(shard, none, kept_kind[split], gone_kind[split], layout.ranks[shard], target))


def _shifts(layout: Layout, kinds: ShardKinds, shards: IntArray) -> Moves:
    """Columns handed from one shard to another of the same table, all of them in a merge."""
    table = kinds.table[layout.kinds]
    which, other = np.nonzero(table[shards][:, None] == table[None, :])
    shard = shards[which]
    distinct = shard != other
    shard, other = shard[distinct], other[distinct]
    width, other_width = kinds.width[layout.kinds[shard]], kinds.width[layout.kinds[other]]
    within = layout.ranks[shard] == layout.ranks[other]
    least = kinds.min_width[table[shard]]
    parts = []
    for columns in (*(np.full_like(width, step) for step in _SHIFTED_COLUMNS), width):
        merges = columns is width
        keep = (~within | (shard < other)) if merges else (~within & (columns <= width - least))
        pick, moved = np.flatnonzero(keep), columns[keep]
        names = table[shard[pick]].tolist()
        stays = np.full(len(pick), NONE)
        if not merges:
            stays = kinds.numbers(zip(names, (width[pick] - moved).tolist(), strict=True))
        lands = kinds.numbers(zip(names, (other_width[pick] + moved).tolist(), strict=True))
        ranks = layout.ranks
        parts.append(Moves(shard[pick], other[pick], stays, lands, ranks[shard[pick]], ranks[other[pick]]))
    return _concatenated(parts)


def _pairs(left: IntArray, right: IntArray) -> tuple[IntArray, IntArray]:
    """Every combination of an element of `left` with one of `right`."""
    return np.repeat(left, len(right)), np.tile(right, len(left))


def _between_ranks(moves: Moves) -> Moves:
    return moves.take(np.flatnonzero(moves.source != moves.target))


def _at_most(moves: Moves, count: int, rng: np.random.Generator) -> Moves:
    if len(moves) <= count:
        return moves
    return moves.take(np.sort(rng.choice(len(moves), count, replace=False)))


def _concatenated(parts: list[Moves]) -> Moves:
    return Moves(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Moves)))
