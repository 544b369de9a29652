"""The best additive plan of whole tables: an integer program that takes a rank's cost for the sum of its tables'.

Shapes: U units, W ranks, P (unit, rank) pairs that are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.packing import check_room
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import COST_UNITS_PER_MS, Models
from neuroshard_pipeline.tables.task import ShardingTask

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: The solver keeps constraints to 1e-6 only; a plan that uses a rank to the last byte is sought with this much less.
_MARGIN = 1e-5

#: Status of `scipy.optimize.milp` for a program without any solution.
_INFEASIBLE = 2


@dataclass(frozen=True)
class Assignment:
    """Answer of the integer program.

    Attributes:
        ranks: (U,) rank of every unit, or None where none was found.
        cost_ms: largest sum of single costs on a rank; infinite without ranks.
        bound_ms: no assignment has a lower one.
        impossible: whether it is proved that whole units do not fit.
    """

    ranks: IntArray | None
    cost_ms: float
    bound_ms: float
    impossible: bool = False


@dataclass(frozen=True)
class MilpSharder:
    """Whole tables, placed to minimise the largest sum over ranks of predicted single-table compute costs.

    It knows neither communication nor that a fused lookup of many tables costs less than these one by one: the
    strongest plan that additive costs can find. Deterministic, unless `time_limit_seconds` ends it.

    Attributes:
        memory: what counts against the memory of a rank.
        time_limit_seconds: the solver stops here with the best that it has.
        gap: the solver stops when its plan is proved to cost at most so much more than the best, as a share.
    """

    memory: MemoryModel
    time_limit_seconds: float
    gap: float
    name: str = "milp"

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:  # noqa: ARG002
        """The best plan that HiGHS finds.

        Raises:
            DoesNotFitError: whole tables do not fit, or no plan was found within the time limit.
        """
        check_room(task, self.memory)
        kinds = ShardKinds(task, models, self.memory)
        found = assign(kinds, self.time_limit_seconds, self.gap)
        if found.ranks is None:
            raise self._no_plan(task, found)
        return kinds.plan(kinds.whole_tables, found.ranks, self.name)

    def _no_plan(self, task: ShardingTask, found: Assignment) -> DoesNotFitError:
        reason = (
            "proved that no placement of whole tables keeps the bytes of every rank"
            if found.impossible
            else f"found no placement of whole tables within {self.time_limit_seconds:g} s that keeps the bytes of "
            "every rank"
        )
        return DoesNotFitError(
            f"{task.task_id}: {self.name} {reason}, {max(self.memory.limits(task))} at most; use a sharder that "
            "splits tables, such as neuroshard, or raise memory_bytes"
        )


def assign(kinds: ShardKinds, time_limit_seconds: float, gap: float) -> Assignment:
    """Whole units on ranks such that the largest sum of single costs is least.

    Args:
        kinds: the task, the models and the memory.
        time_limit_seconds: of the solver.
        gap: relative gap between plan and bound at which the solver stops.
    """
    found = Assignment(None, np.inf, 0.0)
    for margin in (0.0, _MARGIN):
        found = _solve(kinds, kinds.limits.astype(np.float64) * (1.0 - margin), time_limit_seconds, gap)
        if found.impossible and margin > 0.0:  # proved for a little less memory only
            return Assignment(None, np.inf, 0.0)
        if found.ranks is None or _keeps_memory(found.ranks, kinds):
            return found
    return Assignment(None, np.inf, found.bound_ms)


def _solve(kinds: ShardKinds, limits: FloatArray, time_limit_seconds: float, gap: float) -> Assignment:
    """Binary x[u, r] and one continuous number, the largest sum; both scaled to the order of 1."""
    from scipy import sparse  # a third of a second that whoever imports the package need not wait for
    from scipy.optimize import Bounds, LinearConstraint, milp

    unit, rank = _pairs(kinds)
    costs = kinds.cost[kinds.whole_tables]
    scale = max(float(costs.sum()) / len(limits), 1.0)
    bytes_share = kinds.bytes[kinds.whole_tables][unit] / np.maximum(limits[rank], 1.0)
    each = np.arange(len(unit))
    of_unit = sparse.csr_matrix((np.ones(len(unit)), (unit, each)), shape=(len(costs), len(unit) + 1))
    used = sparse.csr_matrix((bytes_share, (rank, each)), shape=(len(limits), len(unit) + 1))
    load = sparse.csr_matrix((costs[unit] / scale, (rank, each)), shape=(len(limits), len(unit)))
    below = sparse.hstack([load, -np.ones((len(limits), 1))])
    objective = np.append(np.zeros(len(unit)), 1.0)
    found = milp(
        objective,
        integrality=1.0 - objective,
        bounds=Bounds(0.0, np.append(np.ones(len(unit)), np.inf)),
        constraints=[
            LinearConstraint(of_unit, 1, 1),
            LinearConstraint(used, -np.inf, 1),
            LinearConstraint(below, -np.inf, 0),
        ],
        options={"time_limit": time_limit_seconds, "mip_rel_gap": gap},
    )
    to_ms = scale / COST_UNITS_PER_MS
    bound_ms = to_ms * float(found.mip_dual_bound or 0.0)
    if found.x is None:
        return Assignment(None, np.inf, bound_ms, impossible=found.status == _INFEASIBLE)
    ranks = np.zeros(len(costs), dtype=np.int64)
    chosen = found.x[:-1] > 0.5
    ranks[unit[chosen]] = rank[chosen]
    loads = np.bincount(ranks, weights=costs, minlength=len(limits))
    return Assignment(ranks, float(loads.max()) / COST_UNITS_PER_MS, bound_ms)


def _pairs(kinds: ShardKinds) -> tuple[IntArray, IntArray]:
    """(P,) unit and rank of every pair that the constraints allow."""
    if kinds.rank_allowed is not None:
        unit, rank = np.nonzero(kinds.rank_allowed)
        return unit, rank
    world_size = kinds.task.world_size
    return np.repeat(np.arange(len(kinds.units)), world_size), np.tile(np.arange(world_size), len(kinds.units))


def _keeps_memory(ranks: IntArray, kinds: ShardKinds) -> bool:
    """Whether whole bytes keep the limits that the solver kept within its tolerance."""
    used = [0] * kinds.task.world_size
    for rank, size in zip(ranks.tolist(), kinds.bytes[kinds.whole_tables].tolist(), strict=True):
        used[rank] += size
    return all(u <= limit for u, limit in zip(used, kinds.limits.tolist(), strict=True))
