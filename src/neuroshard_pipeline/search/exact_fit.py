"""Whether shards fit at all, decided by integer programming where packing by size gives up.

Per unit u and rank r that it may lie on: a whole number of 4-column steps c[u, r] and whether there is a shard,
b[u, r]. One shard per unit and rank is enough, as two of them never need less memory than one. The steps of a unit
sum to its width, a shard has between its minimum and all of them, a unit has no more shards than it may, and the bytes
of a rank, which are linear in both, stay within its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.units import Unit, units_of
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY
from neuroshard_pipeline.tables.task import ShardingTask

if TYPE_CHECKING:
    from scipy import sparse

#: Larger programs, counted in (unit, rank) pairs, are not tried: bin packing is NP-hard.
MAX_PAIRS = 2000

#: Branch-and-bound nodes and seconds after which the question stays open.
_NODE_LIMIT, _SECONDS = 20_000, 20.0

#: The solver keeps constraints to 1e-6 whatever their size: the memory of a rank counts as this much, so that it sees a
#: byte too many in about a megabyte. Whether all ranks together have too little is decided in whole bytes.
_RANK_SCALE = 1e4

#: A plan that uses a rank to the last byte is sought with this much less.
_MARGIN = 1e-9

#: Status of `scipy.optimize.milp` for a program without any solution.
_INFEASIBLE = 2


@dataclass(frozen=True)
class ExactFit:
    """Answer of the integer program.

    Attributes:
        shards: (unit index, width, rank) of every shard of an arrangement that fits, or None where none was found.
        impossible: whether it is proved that there is none.
    """

    shards: list[tuple[int, int, int]] | None
    impossible: bool = False


def fit_exactly(task: ShardingTask, memory: MemoryModel) -> ExactFit:
    """Find an arrangement within memory and constraints, or prove that there is none."""
    units, limits = units_of(task), memory.limits(task)
    if sum(unit.bytes(unit.width, task, memory) for unit in units) > sum(limits):  # splitting never saves memory
        return ExactFit(None, impossible=True)
    pairs = [(u, r) for u, unit in enumerate(units) for r in (unit.ranks or range(task.world_size))]
    if len(pairs) > MAX_PAIRS:
        return ExactFit(None)
    for margin in (0.0, _MARGIN):
        shards, impossible = _solve(task, memory, units, pairs, [limit * (1.0 - margin) for limit in limits])
        if impossible:
            return ExactFit(None, impossible=margin == 0.0)
        if shards is not None and _keeps(shards, limits, units, task, memory):
            return ExactFit(shards)
    return ExactFit(None)


def _solve(
    task: ShardingTask,
    memory: MemoryModel,
    units: tuple[Unit, ...],
    pairs: list[tuple[int, int]],
    limits: list[float],
) -> tuple[list[tuple[int, int, int]] | None, bool]:
    """Shards, and whether there cannot be any."""
    from scipy import sparse  # a third of a second that whoever imports the package need not wait for
    from scipy.optimize import Bounds, LinearConstraint, milp

    unit, rank = np.array(pairs, dtype=np.int64).T
    steps, least, most = (
        np.array(values, dtype=float)[unit]
        for values in (
            [u.width / COLUMN_GRANULARITY for u in units],
            [u.min_width / COLUMN_GRANULARITY for u in units],
            [u.max_shards for u in units],
        )
    )
    fixed, per_step = (np.array(values)[unit] for values in _affine_bytes(units, task, memory))
    share = _RANK_SCALE / np.maximum(np.array(limits)[rank], 1.0)
    of_unit, of_rank, each = _grouped(unit, len(units)), _grouped(rank, task.world_size), sparse.eye(len(pairs))
    none = sparse.csr_matrix((len(units), len(pairs)))
    sums_to = np.array([u.width / COLUMN_GRANULARITY for u in units])
    rows = [
        LinearConstraint(sparse.hstack([of_unit, none]), sums_to, sums_to),
        LinearConstraint(sparse.hstack([none, of_unit]), 1, np.minimum([u.max_shards for u in units], len(pairs))),
        LinearConstraint(sparse.hstack([each, -sparse.diags(steps)]), -np.inf, 0),
        LinearConstraint(sparse.hstack([each, -sparse.diags(least)]), 0, np.inf),
        LinearConstraint(
            sparse.hstack([of_rank @ sparse.diags(per_step * share), of_rank @ sparse.diags(fixed * share)]),
            -np.inf,
            _RANK_SCALE,
        ),
    ]
    found = milp(
        np.zeros(2 * len(pairs)),
        integrality=np.ones(2 * len(pairs)),
        bounds=Bounds(0, np.concatenate([steps, np.minimum(most, 1.0)])),
        constraints=rows,
        options={"node_limit": _NODE_LIMIT, "time_limit": _SECONDS},
    )
    if found.x is None:
        return None, found.status == _INFEASIBLE
    widths = COLUMN_GRANULARITY * np.rint(found.x[: len(pairs)]).astype(int)
    return [(u, w, r) for (u, r), w in zip(pairs, widths.tolist(), strict=True) if w], False


def _affine_bytes(units: tuple[Unit, ...], task: ShardingTask, memory: MemoryModel) -> tuple[list[int], list[int]]:
    """Per unit, the bytes of a shard apart from its columns, and those of 4 columns."""
    fixed, per_step = [], []
    for unit in units:
        one, two = (unit.bytes(steps * COLUMN_GRANULARITY, task, memory) for steps in (1, 2))
        fixed.append(2 * one - two)
        per_step.append(two - one)
    return fixed, per_step


def _grouped(group: np.ndarray, count: int) -> sparse.csr_matrix:
    """(count, P) matrix that sums the pairs of every group."""
    from scipy import sparse

    return sparse.csr_matrix((np.ones(len(group)), (group, np.arange(len(group)))), shape=(count, len(group)))


def _keeps(
    shards: list[tuple[int, int, int]],
    limits: tuple[int, ...],
    units: tuple[Unit, ...],
    task: ShardingTask,
    memory: MemoryModel,
) -> bool:
    """Whether whole bytes keep the limits that the solver kept within its tolerance."""
    used = [0] * task.world_size
    for unit, width, rank in shards:
        used[rank] += units[unit].bytes(width, task, memory)
    return all(u <= limit for u, limit in zip(used, limits, strict=True))
