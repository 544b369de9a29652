"""A lower bound on the lab's cost of a step on several hosts: a linear program over all plans of a case.

`lab_expressions` describes a case, `lab_segments` has the expressions of the program, and `lab_branching` covers all
plans with cases. A segment of a step (`lab_segments`) takes at least the mean time of some ranks. It also takes at
least as long as the ranks with a table's most expensive block would take if their only other shards were those of types
that lie on all ranks. The time of a lookup contains the largest of several sums over its shards, and is therefore at
least each of these sums. Numbers of column blocks need not be whole, and tables get a single type only on demand. The
memory of all ranks together is limited.
"""

from __future__ import annotations

import numpy as np
from lab_expressions import CUT, Case
from lab_plans import Machine
from lab_segments import Segments
from lab_terms import COLUMN_WISE, DATA_PARALLEL, KINDS, ROW_WISE, Terms
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.network import NetworkParams

_K = len(KINDS)
_SECONDS, _GAP, _INFEASIBLE = 20.0, 1e-3, 2


class Program:
    """The linear program of a case; arguments as for `Segments`."""

    def __init__(self, case: Case, terms: Terms, m: Machine, network: NetworkParams) -> None:
        self._terms, self._m = terms, m
        self._s = Segments(case, terms, m, network)
        self._rows: list[FloatArray] = []  # expressions that are at most 0

    def least_us(self, is_integer: bool = False) -> tuple[float, FloatArray]:
        """The bound in us, infinite if the case has no plan, and the variables; `is_integer`: one type per table."""
        self._rows = []
        objective = self._objective()
        self._segment_rows()
        self._lookup_rows()
        rows, equal = self._limits()
        rows = np.array([*self._rows, *rows])
        rows = rows / np.abs(rows).max(axis=1, keepdims=True)
        constraints = [
            LinearConstraint(csr_array(rows[:, :-1]), -np.inf, -rows[:, -1]),
            LinearConstraint(csr_array(equal[:, :-1]), -equal[:, -1], -equal[:, -1]),
        ]
        whole = np.zeros(self._s.size)
        whole[: self._s.tables * _K] = is_integer
        options = {"mip_rel_gap": _GAP, "time_limit": _SECONDS}
        found = milp(objective[:-1], integrality=whole, bounds=self._bounds(), constraints=constraints, options=options)
        if found.status == _INFEASIBLE:
            return np.inf, np.zeros(0)
        least = found.mip_dual_bound if is_integer else found.fun
        return float(least + objective[-1]), np.zeros(0) if found.x is None else found.x

    def _ids_apart(self) -> list[int]:
        """Types whose exchange of ids is a segment of its own."""
        last = self._s.case.last
        return [kind for kind in self._s.sharded if last >= 0 and kind != last]

    def _objective(self) -> FloatArray:
        s = self._s
        segments = s.one(s.plan) + s.one(s.plan + 1)
        return segments + s.equal_for_all() + sum(s.one(s.plan + 2 + kind) for kind in self._ids_apart())

    def _segment_rows(self) -> None:
        s = self._s
        for kind in self._ids_apart():
            self._at_least(s.plan + 2 + kind, s.ids_after(kind, kind))
        for ranks in s.ranks_of():
            self._at_least(s.plan, s.gradients(ranks))
            self._at_least(s.plan + 1, s.outputs(ranks))
        for kind in [kind for kind in s.sharded if kind != ROW_WISE]:
            self._block_rows(kind)

    def _block_rows(self, kind: int) -> None:
        """Constraints for ranks with the most expensive block of a table.

        The cost of this block is at least the mean cost of the table's blocks, weighted by columns, which counts here.
        """
        s, one_rank = self._s, kind + _K
        share = np.arange(s.widths) / self._terms.widths[:, None]
        ids, gradients, outputs = (share * of for of in s.alone(kind))
        places = [(s.plan, s.gradients(one_rank), gradients)]
        if kind in self._ids_apart():
            places += [(s.plan + 1, s.outputs(one_rank), outputs)]
            places += [(s.plan + 2 + kind, s.ids_after(kind, one_rank), ids)]
        else:
            places += [(s.plan + 1, s.outputs(one_rank), outputs + ids)]
        for place, others, of_block in places:
            alone = s.spare(kind, place)
            self._at_least(alone, others)
            for table in np.flatnonzero(s.possible(kind).any(axis=1)):
                own = np.zeros_like(of_block)
                own[table] = of_block[table]
                self._at_least(place, s.one(alone) + s.total(kind, own))

    def _at_least(self, place: int, expression: FloatArray) -> None:
        self._rows.append(expression - self._s.one(place))

    def _lookup_rows(self) -> None:
        """Constraints: the time of a lookup is at least each of the sums of which it contains the largest."""
        s = self._s
        for kind in s.case.used:
            of = s.lookups(kind)
            sums = [s.total(kind, of[..., number]) for number in range(of.shape[-1])]
            forward, backward = s.plan + 2 + _K + kind, s.plan + 2 + 2 * _K + kind
            for number in (0, 1, 2):
                self._at_least(forward, sums[number])
            for number in (4, 5, 6):
                self._at_least(backward, sums[3] + sums[number] + sums[7])

    def _bounds(self) -> Bounds:
        s = self._s
        most = np.zeros(s.size)
        most[s.plan :] = np.inf
        for kind in s.case.used:
            possible = s.possible(kind)
            most[kind * s.tables : (kind + 1) * s.tables] = possible.any(axis=1)
            if kind in CUT:
                counts = self._terms.widths[:, None] // np.maximum(np.arange(s.widths), 1)
                first = s.first_block(kind)
                most[first : first + counts.size] = (counts * possible).ravel()
        return Bounds(np.zeros(s.size), most)

    def _limits(self) -> tuple[list[FloatArray], FloatArray]:
        """Expressions that are at most 0 (numbers of blocks, memory, reduced bytes) or 0 (types, columns)."""
        s = self._s
        case, world, local = s.case, self._m.world, self._m.local
        rows, memory = [], s.constant(-float(self._terms.limits.sum()))
        for kind in case.used:
            numbers = s.total(kind, np.ones((s.tables, s.widths)))
            least = max(case.spread[kind][0], 1.0) if kind in case.spread else 1.0
            rows.append(s.constant(least) - numbers)
            of = self._terms.bytes[:, kind]
            ranks = {COLUMN_WISE: 1, DATA_PARALLEL: world, ROW_WISE: world}.get(kind, local)
            used = s.total(kind, (ranks - 1) * of[..., 0] + of[..., 1])
            memory = memory + used
            if kind in case.spread:
                rows.append(used - s.constant(case.spread[kind][1] * ranks * self._terms.limits.max()))
            if kind in case.reduced:
                low, high = case.reduced[kind]
                rows += [s.constant(low) - s.reduced_bytes(kind), s.reduced_bytes(kind) - s.constant(high)]
        equal = []
        for table in range(s.tables):
            types = sum(s.one(kind * s.tables + table) for kind in range(_K))
            equal.append(types - s.constant(1.0))
            for kind in CUT:
                first = s.first_block(kind) + table * s.widths
                columns = np.zeros(s.size + 1)
                columns[first : first + s.widths] = np.arange(s.widths)
                equal.append(columns - self._terms.widths[table] * s.one(kind * s.tables + table))
        return [*rows, memory], np.array(equal)
