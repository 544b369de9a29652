"""Halves shards by columns; sequence tables of a group (`Unit.group`) that are cut have shards of one width.

Shapes: N shards.
"""

import numpy as np

from neuroshard_pipeline.arrays import BoolArray, IntArray
from neuroshard_pipeline.search.problem import Problem


def may_halve(state: IntArray, problem: Problem) -> BoolArray:
    """(N,) whether each shard may be halved, sequence tables together with those of their group (`halved`)."""
    unit = problem.unit[state]
    most = np.array([each.most_blocks for each in problem.units])[unit]
    alike = 2 * problem.width[problem.whole_tables[unit]] <= most * problem.width[state]
    alone = problem.can_halve[state] & problem.may_split(state)
    return np.asarray(np.where(problem.group[unit] >= 0, alike, alone))


def halved(state: IntArray, chosen: IntArray, problem: Problem) -> IntArray:
    """`state` after the shards `chosen` have been halved, and then the wider ones of every group's cut tables, too."""
    while len(chosen):
        state = np.concatenate([np.delete(state, chosen), np.repeat(problem.halves(state[chosen].tolist()), 2)])
        group = np.where(problem.is_cut[state], problem.group[problem.unit[state]], -1)
        width, least = problem.width[state], np.full(len(problem.units) + 1, np.inf)
        np.minimum.at(least, group, width)
        chosen = np.flatnonzero((group >= 0) & (width > least[group]))
    return state


def all_cut_alike(state: IntArray, problem: Problem) -> IntArray:
    """`state` after the whole tables of groups with cut ones have been cut as these are."""
    group, is_cut = problem.group[problem.unit[state]], problem.is_cut[state]
    of_cut = np.isin(group, group[is_cut & (group >= 0)])
    return halved(state, np.flatnonzero(of_cut & ~is_cut), problem)
