"""Halves shards by columns until they fit; sequence tables of a group (`Unit.group`) are cut into shards of one width.

Shards of sequence tables are cut into three or more parts if half their width is no multiple of 4. Shapes: N shards.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, IntArray
from neuroshard_pipeline.errors import DoesNotFitError, memory_text
from neuroshard_pipeline.search.packing import does_not_fit, packed
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.units import UNLIMITED, block_counts

#: If no left-over shard can be halved, a round halves the largest twentieth of the shards that can be halved.
_ROUND_DIVISOR = 20


def may_halve(state: IntArray, problem: Problem) -> BoolArray:
    """(N,) whether each shard may be halved, sequence tables together with those of their group (`halved`)."""
    unit = problem.unit[state]
    most = np.array([each.most_blocks for each in problem.units])[unit]
    alike = _parts(state, problem) * problem.width[problem.whole_tables[unit]] <= most * problem.width[state]
    alone = problem.can_halve[state] & problem.may_split(state)
    return np.asarray(np.where(problem.group[unit] >= 0, alike, alone))


def halved(state: IntArray, chosen: IntArray, problem: Problem) -> IntArray:
    """`state` after the shards `chosen` have been halved, and then the wider ones of every group's cut tables, too."""
    while len(chosen):
        in_group = problem.group[problem.unit[state[chosen]]] >= 0
        halves, alike = problem.halves(state[chosen[~in_group]].tolist()), state[chosen[in_group]]
        parts = _parts(alike, problem)
        pairs = zip(problem.unit[alike].tolist(), (problem.width[alike] // parts).tolist(), strict=True)
        state = np.concatenate([np.delete(state, chosen), halves.ravel(), np.repeat(problem.numbers(pairs), parts)])
        group = np.where(problem.is_cut[state], problem.group[problem.unit[state]], -1)
        width, least = problem.width[state], np.full(len(problem.units) + 1, np.inf)
        np.minimum.at(least, group, width)
        chosen = np.flatnonzero((group >= 0) & (width > least[group]))
    return state


def _parts(state: IntArray, problem: Problem) -> IntArray:
    """(N,) into how many equal parts each shard is cut if its table is a sequence table: the fewest, at least 2."""
    widths, at = np.unique(problem.width[state], return_inverse=True)
    return np.array([[*block_counts(width), 2][1] for width in widths.tolist()], dtype=np.int64)[at]


def all_cut_alike(state: IntArray, problem: Problem) -> IntArray:
    """`state` after the whole tables of groups with cut ones have been cut as these are."""
    group, is_cut = problem.group[problem.unit[state]], problem.is_cut[state]
    of_cut = np.isin(group, group[is_cut & (group >= 0)])
    return halved(state, np.flatnonzero(of_cut & ~is_cut), problem)


def make_room(problem: Problem) -> IntArray:
    """Halve shards until packing by size finds a rank for each; returns the kinds (`problem`) of the shards.

    A round halves the shards that were left over. If none of these can be halved, it halves the largest twentieth
    (at least one) of the shards that can be halved; equally large shards are taken in placement order. Sequence tables
    are halved together with those of their group. At last, every such group gets back the shards that it had in an
    earlier round, if cutting other tables further leads to fewer shards in all.

    Raises:
        DoesNotFitError: shards are left over and nothing can be halved any more.
    """
    *rounds, state = _rounds(problem.whole_tables, problem)
    for group in range(problem.group.max() + 1):
        units = np.flatnonzero(problem.group == group)
        others = state[~np.isin(problem.unit[state], units)]
        for each in rounds:
            with suppress(DoesNotFitError):
                mixed = np.concatenate([others, each[np.isin(problem.unit[each], units)]])
                state = min(state, _rounds(mixed, problem, units.tolist(), len(state))[-1], key=len)
    return state


def _rounds(state: IntArray, problem: Problem, uncut: Sequence[int] = (), most: int = UNLIMITED) -> list[IntArray]:
    """The states before rounds of `make_room`, and the last, which packs or has `most` shards. `uncut` units stay."""
    states = list[IntArray]()
    while True:
        states.append(state := problem.in_placement_order(state))
        if len(state) >= most or not (left_over := packed(state, problem)[1]):
            return states
        halvable = may_halve(state, problem) & ~np.isin(problem.unit[state], uncut)
        chosen = [index for index in left_over if halvable[index]]
        if not chosen:
            others = np.flatnonzero(halvable)
            sizes, count = (problem.bytes + problem.host_bytes)[state[others]], -(-len(others) // _ROUND_DIVISOR)
            chosen = others[np.argsort(-sizes, kind="stable")[:count]].tolist()
        chosen = _within_max_shards(chosen, state, problem)
        if not chosen:
            raise _fragmented(problem, state[left_over])
        state = halved(state, np.array(chosen), problem)


def _within_max_shards(chosen: list[int], state: IntArray, problem: Problem) -> list[int]:
    """The shards of `chosen`, in this order, that can be halved together without exceeding `max_shards` of a unit."""
    if not problem.limits_shards:
        return chosen
    counts = np.bincount(problem.unit[state], minlength=len(problem.units))
    kept = []
    for index in chosen:
        unit = problem.unit[state[index]]
        if counts[unit] < problem.max_shards[unit] or problem.group[unit] >= 0:
            counts[unit] += 1
            kept.append(index)
    return kept


def _fragmented(problem: Problem, left_over: IntArray) -> DoesNotFitError:
    """The error for shards without a rank although the ranks together have enough bytes for the whole tables."""
    sizes, name = problem.bytes[left_over].tolist(), problem.units[int(problem.unit[left_over[0]])].name
    reason = (
        f"no arrangement was found for {len(left_over)} of the shards, {memory_text(sum(sizes))} in all, among them "
        f"one of table {name!r} ({memory_text(sizes[0])}), and no shard can be halved by columns any more"
    )
    return does_not_fit(problem.task, problem.memory, reason=reason)
