"""Starting points for a search, in which no shard that can be halved is large relative to the mean load of a rank.

A beam search of a few steps splits only a few tables. If there are many ranks and few tables, most tables must be
split before the ranks can be balanced at all.
"""

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.search.halving import all_cut_alike, halved, may_halve
from neuroshard_pipeline.search.models import quantised
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.placement import PlacedState, dimension_caps, place
from neuroshard_pipeline.search.problem import Problem

#: Largest load of a shard as a share of the mean load of a rank, for each starting point.
_SHARES = (1.0, 0.5, 0.25)


def presplit_states(problem: Problem, params: SearchParams, first: PlacedState) -> list[PlacedState]:
    """Placed states in which no shard that can be halved has a large share of a rank's mean columns, cost or memory.

    For each of them and for the state `first`, there is one more in which all sequence tables are cut alike if any is.
    States are left out if they have no placement, or if they equal the whole tables, `first`, or an earlier state.
    """
    found: list[PlacedState] = []
    known = {_key(problem.whole_tables), _key(first.kinds)}
    for state in (first.kinds, *(_presplit(problem, share) for share in _SHARES)):
        for each in (state, all_cut_alike(state, problem)):
            if _key(each) not in known:
                known.add(_key(each))
                found += filter(None, place(each[None], problem, dimension_caps(problem, params)))
    return found


def _presplit(problem: Problem, share: float) -> IntArray:
    """The whole tables, with shards halved while they exceed the share and may be halved."""
    task, state = problem.task, problem.whole_tables
    mean_dims = problem.dims[state].sum() / task.world_size
    mean_sum = problem.embedding[state].sum(axis=0) / task.world_size
    sums = np.stack([mean_sum, np.zeros_like(mean_sum)])
    mean_cost, launch = quantised(problem.models.compute.costs_from_sums(sums, task.batch_size).sum(axis=-1))
    while True:
        costs = problem.cost[state] - launch
        large = (problem.dims[state] > share * mean_dims) | (costs > share * (mean_cost - launch))
        large |= problem.bytes[state] > share * problem.limits.mean()
        chosen = np.flatnonzero(large & may_halve(state, problem))
        if problem.limits_shards:  # a round halves at most one shard of a unit, so that no unit exceeds its limit
            chosen = chosen[np.unique(problem.unit[state[chosen]], return_index=True)[1]]
        if not len(chosen):
            return state
        state = halved(state, chosen, problem)


def _key(state: IntArray) -> bytes:
    return np.sort(state).tobytes()
