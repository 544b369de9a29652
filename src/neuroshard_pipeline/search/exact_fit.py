"""Integer programming that decides whether a task fits at all; used if packing by size finds no placement.

The program has, for each unit u and each rank r allowed for it, a whole number of 4-column steps c[u, r] and a binary
b[u, r] that is 1 if the unit has a shard there. One shard per unit and rank is enough, because two of them never
need less memory than one. The constraints of the program are: the steps of a unit add up to its width; each of its
shards has at least `min_width` columns; it has at most `max_shards` shards; and the bytes of a rank, which are linear
in c and b, stay within its memory.

A unit is a table, or tables that are kept together. Shapes: U units, P (unit, rank) pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.units import Unit, units_of
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY
from neuroshard_pipeline.tables.task import ShardingTask

#: Programs with more (unit, rank) pairs are not solved, because they may take too long: bin packing is NP-hard.
MAX_PAIRS = 2000

#: Branch-and-bound nodes and seconds after which the solver stops without an answer.
_NODE_LIMIT, _SECONDS = 20_000, 20.0

#: The solver may violate a constraint by 1e-6, whatever its magnitude. Every rank's limit is scaled to `_RANK_SCALE`,
#: so that this is 1e-10 of the limit. `fit_exactly` and `_Program.keeps` compare whole bytes, without any tolerance.
_RANK_SCALE = 1e4

#: Share of the memory that the second attempt leaves free. The first plan may exceed a rank's limit by a few bytes.
_MARGIN = 1e-9

#: Status of `scipy.optimize.milp` for a program without any solution.
_INFEASIBLE = 2


@dataclass(frozen=True)
class ExactFit:
    """Answer of the integer program: (unit index, width, rank) of every shard of an arrangement that fits, or None.

    `impossible` says whether it is proved that no arrangement exists. The program does not cut sequence tables.
    """

    shards: list[tuple[int, int, int]] | None
    impossible: bool = False


def fit_exactly(task: ShardingTask, memory: MemoryModel, host_limits: Sequence[int] | None = None) -> ExactFit:
    """Find an arrangement within memory and constraints, or prove that none exists, or give up.

    `host_limits` are bytes of host memory of every rank; None if no table is in host memory.
    """
    units, limits = units_of(task), [_Limits(Unit.bytes, memory.limits(task))]
    limits += [] if host_limits is None else [_Limits(Unit.host_bytes, tuple(host_limits))]
    for each in limits:  # splitting never saves memory
        if sum(each.size_of(unit, unit.width, task, memory) for unit in units) > sum(each.of_ranks):
            return ExactFit(None, impossible=True)
    pairs = [(u, r) for u, unit in enumerate(units) for r in (unit.ranks or range(task.world_size))]
    if len(pairs) > MAX_PAIRS:
        return ExactFit(None)
    program = _Program(task, memory, units, np.array(pairs, dtype=np.int64))
    for margin in (0.0, _MARGIN):
        fit = program.solve(limits, margin)
        if fit.shards is None:
            proved = fit.impossible and margin == 0.0 and all(unit.most_blocks == 1 for unit in units)
            return ExactFit(None, impossible=proved)
        if program.keeps(fit.shards, limits):
            return fit
    return ExactFit(None)


@dataclass(frozen=True)
class _Limits:
    """The bytes of one memory that a shard of a unit takes, and those of every rank."""

    size_of: Callable[[Unit, int, ShardingTask, MemoryModel], int]
    of_ranks: tuple[int, ...]


@dataclass(frozen=True)
class _Program:
    """The integer program of a task; `pairs` (P, 2) holds the unit and the rank of every allowed pair."""

    task: ShardingTask
    memory: MemoryModel
    units: tuple[Unit, ...]
    pairs: IntArray

    def solve(self, limits: Sequence[_Limits], margin: float) -> ExactFit:
        """Find an arrangement whose ranks exceed `limits`, less a margin, at most by the tolerance of the solver."""
        unit, count = self.pairs[:, 0], len(self.pairs)
        steps = np.array([u.width / COLUMN_GRANULARITY for u in self.units])[unit]
        most = np.minimum(np.array([u.max_shards for u in self.units], dtype=float)[unit], 1.0)
        found = milp(
            np.zeros(2 * count),
            integrality=np.ones(2 * count),
            bounds=Bounds(0, np.concatenate([steps, most])),
            constraints=[*self._unit_constraints(steps), *(self._memory_constraint(each, margin) for each in limits)],
            options={"node_limit": _NODE_LIMIT, "time_limit": _SECONDS},
        )
        if found.x is None:
            return ExactFit(None, impossible=found.status == _INFEASIBLE)
        widths = COLUMN_GRANULARITY * np.rint(found.x[:count]).astype(int)
        placed = zip(self.pairs.tolist(), widths.tolist(), strict=True)
        return ExactFit([(u, width, rank) for (u, rank), width in placed if width])

    def _unit_constraints(self, steps: FloatArray) -> list[LinearConstraint]:
        """A unit's steps add up to its width and lie in 1 to `max_shards` shards of at least `min_width` columns."""
        unit, count = self.pairs[:, 0], len(self.pairs)
        of_unit, each = _sum_by(unit, len(self.units)), sparse.eye(count)
        none = sparse.csr_matrix(of_unit.shape)
        width = np.array([u.width / COLUMN_GRANULARITY for u in self.units])
        least = np.array([u.min_width / COLUMN_GRANULARITY for u in self.units])[unit]
        most = np.minimum([u.max_shards for u in self.units], count)
        return [
            LinearConstraint(sparse.hstack([of_unit, none]), width, width),
            LinearConstraint(sparse.hstack([none, of_unit]), 1, most),
            LinearConstraint(sparse.hstack([each, -sparse.diags(steps)]), -np.inf, 0),
            LinearConstraint(sparse.hstack([each, -sparse.diags(least)]), 0, np.inf),
        ]

    def _memory_constraint(self, limits: _Limits, margin: float) -> LinearConstraint:
        """The bytes of every rank are at most its limit; both are scaled so that the limit is `_RANK_SCALE`."""
        unit, rank = self.pairs.T
        one, two = (
            np.array([limits.size_of(u, steps * COLUMN_GRANULARITY, self.task, self.memory) for u in self.units])[unit]
            for steps in (1, 2)
        )
        fixed, per_step = 2 * one - two, two - one  # bytes of a shard without columns, and bytes of 4 columns
        share = _RANK_SCALE / np.maximum(np.array(limits.of_ranks)[rank] * (1.0 - margin), 1.0)
        of_rank = _sum_by(rank, self.task.world_size)
        parts = [of_rank @ sparse.diags(bytes_ * share) for bytes_ in (per_step, fixed)]
        return LinearConstraint(sparse.hstack(parts), -np.inf, _RANK_SCALE)

    def keeps(self, shards: list[tuple[int, int, int]], limits: Sequence[_Limits]) -> bool:
        """Whether the limits, which the solver kept within its tolerance, also hold in whole bytes."""
        for each in limits:
            used = [0] * self.task.world_size
            for unit, width, rank in shards:
                used[rank] += each.size_of(self.units[unit], width, self.task, self.memory)
            if any(u > limit for u, limit in zip(used, each.of_ranks, strict=True)):
                return False
        return True


def _sum_by(group: IntArray, count: int) -> sparse.csr_matrix:
    """(count, P) matrix that adds up the pairs of every group."""
    return sparse.csr_matrix((np.ones(len(group)), (group, np.arange(len(group)))), shape=(count, len(group)))
