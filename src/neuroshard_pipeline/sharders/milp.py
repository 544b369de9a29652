"""The best additive plan of whole tables: an integer program in which the cost of a rank is the sum over its tables.

Shapes: U units, W ranks, P (unit, rank) pairs that are allowed.
"""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.models import COST_UNITS_PER_MS
from neuroshard_pipeline.search.packing import check_room
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem

#: The solver keeps constraints to within 1e-6 only; the second attempt leaves this share of the memory free.
_MARGIN = 1e-5

#: Status of `scipy.optimize.milp` for a program without any solution.
_INFEASIBLE = 2


@dataclass(frozen=True)
class Assignment:
    """Answer of the integer program.

    Attributes:
        ranks: (U,) rank of every unit, or None where none was found.
        cost_ms: largest sum of single-table costs on a rank; infinite without ranks.
        bound_ms: lower bound on the cost of every assignment.
        impossible: whether it is proved that whole units do not fit.
    """

    ranks: IntArray | None
    cost_ms: float
    bound_ms: float
    impossible: bool = False


@dataclass(frozen=True)
class MilpSharder:
    """Places whole tables so that the largest sum over ranks of predicted single-table compute costs is least.

    It considers neither communication nor that a fused lookup of many tables costs less than the sum of its tables: the
    strongest plan that additive costs can find. Deterministic, unless `time_limit_seconds` ends the search.

    Attributes:
        time_limit_seconds: the solver stops after this time with the best plan found so far.
        gap: the solver stops when its plan provably costs at most this share more than the best.
    """

    time_limit_seconds: float
    gap: float
    name: str = "milp"

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:  # noqa: ARG002
        """The best placement that HiGHS finds.

        Raises:
            DoesNotFitError: whole tables do not fit, or no placement was found within the time limit.
        """
        check_room(problem.task, problem.memory)
        found = assign(problem, self.time_limit_seconds, self.gap)
        if found.ranks is None:
            raise self._no_plan(problem, found)
        return problem.placement(problem.whole_tables, found.ranks)

    def _no_plan(self, problem: Problem, found: Assignment) -> DoesNotFitError:
        reason = (
            "proved that no placement of whole tables keeps the bytes of every rank"
            if found.impossible
            else f"found no placement of whole tables within {self.time_limit_seconds:g} s that keeps the bytes of "
            "every rank"
        )
        return DoesNotFitError(
            f"{problem.task.task_id}: {self.name} {reason}, {problem.limits.max()} at most; use a sharder that "
            "splits tables, such as neuroshard, or raise memory_bytes"
        )


def assign(problem: Problem, time_limit_seconds: float, gap: float) -> Assignment:
    """Assign whole units to ranks such that the largest sum of single costs is least.

    Args:
        problem: the task, the models and the memory.
        time_limit_seconds: time limit of the solver.
        gap: relative gap between plan and bound at which the solver stops.
    """
    found = Assignment(None, np.inf, 0.0)
    for margin in (0.0, _MARGIN):
        found = _solve(problem, problem.limits.astype(np.float64) * (1.0 - margin), time_limit_seconds, gap)
        if found.impossible and margin > 0.0:  # proved for a little less memory only
            return Assignment(None, np.inf, 0.0)
        if found.ranks is None or _keeps_memory(found.ranks, problem):
            return found
    return Assignment(None, np.inf, found.bound_ms)


def _solve(problem: Problem, limits: FloatArray, time_limit_seconds: float, gap: float) -> Assignment:
    """Solve for binary x[u, r] and the largest sum, a continuous number; both are scaled to the order of 1."""
    from scipy import sparse  # imported late: this takes a third of a second
    from scipy.optimize import Bounds, LinearConstraint, milp

    unit, rank = _pairs(problem)
    costs = problem.cost[problem.whole_tables]
    scale = max(float(costs.sum()) / len(limits), 1.0)
    bytes_share = problem.bytes[problem.whole_tables][unit] / np.maximum(limits[rank], 1.0)
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
    bound_ms = scale / COST_UNITS_PER_MS * float(found.mip_dual_bound or 0.0)
    if found.x is None:
        return Assignment(None, np.inf, bound_ms, impossible=found.status == _INFEASIBLE)
    ranks = np.zeros(len(costs), dtype=np.int64)
    chosen = found.x[:-1] > 0.5
    ranks[unit[chosen]] = rank[chosen]
    loads = np.bincount(ranks, weights=costs, minlength=len(limits))
    return Assignment(ranks, float(loads.max()) / COST_UNITS_PER_MS, bound_ms)


def _pairs(problem: Problem) -> tuple[IntArray, IntArray]:
    """(P,) unit and rank of every pair that the constraints allow."""
    if problem.rank_allowed is not None:
        unit, rank = np.nonzero(problem.rank_allowed)
        return unit, rank
    world_size = problem.task.world_size
    return np.repeat(np.arange(len(problem.units)), world_size), np.tile(np.arange(world_size), len(problem.units))


def _keeps_memory(ranks: IntArray, problem: Problem) -> bool:
    """Whether the limits, which the solver kept within its tolerance, also hold in whole bytes."""
    used = np.zeros(problem.task.world_size, dtype=np.int64)
    np.add.at(used, ranks, problem.bytes[problem.whole_tables])
    return bool((used <= problem.limits).all())
