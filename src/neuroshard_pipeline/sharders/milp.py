"""A sharder of whole tables that solves an integer program: the cost of a rank is the sum of the costs of its tables.

A unit is a table, or tables that are kept together. Shapes: U units, W ranks, P (unit, rank) pairs that are allowed.
"""

from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import DoesNotFitError, memory_text
from neuroshard_pipeline.search.packing import check_room_of, whole_tables_do_not_fit
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.room import require_room
from neuroshard_pipeline.sharders.base import require_column_wise

#: The solver may violate constraints by up to 1e-6. If its plan exceeds a memory limit, a second attempt leaves this
#: share of the memory free.
_MARGIN = 1e-5

#: Largest number of (unit, rank) pairs of a task. The solver overruns its time limit if there are many: with a limit of
#: 10 s, 100,000 pairs took about 30 s.
_MOST_PAIRS = 500_000

#: Status of `scipy.optimize.milp` for a program without any solution.
_INFEASIBLE = 2


@dataclass(frozen=True)
class MilpSharder:
    """Places whole tables. Minimises the largest cost of a rank, the sum of the predicted compute costs of its tables.

    Each table's cost is predicted as if the table were alone on a rank. The sum is therefore more than the cost of one
    fused lookup of all tables. Communication has no cost. With enough time, the plan is optimal up to `gap` for this
    sum. The plan is deterministic unless `time_limit_seconds` ends the search.

    Attributes:
        time_limit_seconds: the solver stops after this time with the best plan found so far.
        gap: the solver stops when the plan's cost minus the proven lower bound is at most this share of the cost.
    """

    time_limit_seconds: float
    gap: float
    name: str = "milp"

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:  # noqa: ARG002
        """The best placement that HiGHS, SciPy's solver, finds.

        Raises:
            DoesNotFitError: whole tables do not fit, no placement was found within the time limit, or the task has too
                many (unit, rank) pairs.
            ConstraintError: the constraints on a table do not allow `column_wise`.
        """
        require_column_wise(problem.task, self.name)
        require_room(problem.task, self.name, most_ranks=max(1, _MOST_PAIRS // len(problem.units)))
        check_room_of(problem)
        for margin in (0.0, _MARGIN):
            ranks, impossible = self._solve(problem, problem.limits.astype(np.float64) * (1.0 - margin))
            if ranks is None:
                raise self._no_plan(problem, proved=impossible and margin == 0.0)
            used = np.bincount(ranks, weights=problem.bytes[problem.whole_tables], minlength=len(problem.limits))
            if (used <= problem.limits).all():  # exact, not only within the tolerance of the solver
                return problem.placement(problem.whole_tables, ranks)
        raise self._no_plan(problem, proved=False)

    def _no_plan(self, problem: Problem, *, proved: bool) -> DoesNotFitError:
        found = (
            "proved that no placement of whole tables keeps every rank within its memory"
            if proved
            else f"found no placement of whole tables in {self.time_limit_seconds:g} s that keeps every rank within "
            "its memory"
        )
        most = memory_text(int(problem.limits.max()))
        return whole_tables_do_not_fit(problem, f"{self.name} {found} of at most {most}")

    def _solve(self, problem: Problem, limits: FloatArray) -> tuple[IntArray | None, bool]:
        """The rank of each unit (U,), or None if no solution was found; and whether the solver proved that none exists.

        The variables are x[u, r], which is 1 if unit u is on rank r and 0 otherwise, and the cost of the most expensive
        rank. Costs are divided by `scale`, so that a balanced rank costs at most 1.
        """
        from scipy import sparse  # imported late: this takes a third of a second
        from scipy.optimize import Bounds, LinearConstraint, milp

        everywhere = np.ones((len(problem.units), len(limits)), dtype=bool)
        unit, rank = np.nonzero(everywhere if problem.rank_allowed is None else problem.rank_allowed)  # (P,) each
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
            options={"time_limit": self.time_limit_seconds, "mip_rel_gap": self.gap},
        )
        if found.x is None:
            return None, found.status == _INFEASIBLE
        ranks = np.zeros(len(costs), dtype=np.int64)
        chosen = found.x[:-1] > 0.5
        ranks[unit[chosen]] = rank[chosen]
        return ranks, False
