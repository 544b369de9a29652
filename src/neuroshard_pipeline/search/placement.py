"""Greedy grid search for the placement of shards [Zha2023] §3.3, for all caps and all states in lockstep.

Each attempt places one state (a multiset of kinds) under one cap on a rank's dimension sum (see `price`). It takes
the shards in descending order of the cost that each has alone on a rank (ties: the table that comes first in the task,
then the wider shard). It puts each shard on the feasible rank with the lowest predicted compute cost so far (ties: the
lowest rank). A rank is feasible if it has enough memory, its dimension sum stays within the cap and the constraints
allow the shard there. An attempt fails if a shard has no feasible rank. Of the attempts that do not fail, the one with
the lowest predicted embedding cost wins (ties: the smallest cap). If all attempts fail, the shards are packed by size
alone, largest first (`packing.pack_by_size`; if ranks are constrained, the shards with the fewest allowed ranks come
first). If this fails as well, the state has no placement. Costs are compared in whole units of 1e-9 ms
(`models.quantised`).

`greedy_runs` implements the attempts; attempts that make the same choices share one run.

A kind is a table and a width (see `problem`). Shapes: S states, N shards of a state, R runs, W ranks, M caps, H numbers
that describe a shard's cost (shard embedding).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.search.column_costs import cheapest_plans
from neuroshard_pipeline.search.models import COST_UNITS_PER_MS
from neuroshard_pipeline.search.moves import layout_of
from neuroshard_pipeline.search.packing import packed
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.problem import Problem


@dataclass(frozen=True)
class PlacedState:
    """A state with a rank for every shard: (N,) kinds and ranks, and the predicted cost in units of 1e-9 ms."""

    kinds: IntArray
    ranks: IntArray
    cost: float


def dimension_caps(problem: Problem, params: SearchParams) -> IntArray:
    """(M,) caps on a rank's dimension sum, whole numbers, ascending; the same for all states of a problem."""
    mean = float(problem.dims[problem.whole_tables].sum()) / problem.task.world_size
    ratios = np.linspace(params.min_cap_ratio, params.max_cap_ratio, params.num_caps)
    return np.floor(ratios * mean + 1e-9).astype(np.int64)


def place(states: IntArray, problem: Problem, caps: IntArray) -> list[PlacedState | None]:
    """Best placement of every state, None for a state without one.

    States are (S, N) kinds of the problem in any order; the caps (M,) on the dimension sum ascend.
    """
    sequences = problem.in_placement_order(states)  # (S, N)
    best = _best_of_runs(sequences, problem, caps)
    return [found or _packed_by_size(sequence, problem) for found, sequence in zip(best, sequences, strict=True)]


def placed_state(kinds: IntArray, ranks: Sequence[int] | IntArray, problem: Problem) -> PlacedState:
    """The state with shards of `kinds` on `ranks`, and its predicted embedding cost."""
    layout = layout_of(kinds, np.array(ranks, dtype=np.int64), problem)
    return PlacedState(layout.kinds, layout.ranks, layout.cost)


def _best_of_runs(sequences: IntArray, problem: Problem, caps: IntArray) -> list[PlacedState | None]:
    """The cheapest greedy run of every state, or None for a state whose runs all failed."""
    from neuroshard_pipeline.search.greedy_runs import run_greedily  # imported late: importing numba takes 0.3 s

    best: list[PlacedState | None] = [None] * len(sequences)
    runs, rows = run_greedily(sequences, problem, caps)
    if len(rows):
        of, order = runs.state[rows], np.argsort(runs.low[rows], kind="stable")  # ties: the smallest cap
        rows, of = rows[order], of[order]
        compute_ms, added_ms = runs.cost[rows] / COST_UNITS_PER_MS, problem.added_to_all_ms(sequences)[of]
        anything = np.full(len(sequences), np.inf)
        found, costs = cheapest_plans(
            problem.models, compute_ms, runs.dims[rows], added_ms, problem.task.batch_size, of, anything
        )
        for state in np.flatnonzero(found >= 0).tolist():
            best[state] = PlacedState(sequences[state], runs.choices[rows[found[state]]], float(costs[state]))
    return best


def _packed_by_size(sequence: IntArray, problem: Problem) -> PlacedState | None:
    ranks, left_over = packed(sequence, problem)
    if left_over:
        return None
    return placed_state(sequence, ranks, problem)
