"""Proves a lower bound on the cost of every plan on several hosts by the lab's formulas: a branch-and-bound search.

A case is a set of plans (`lab_expressions.Case`), and `lab_program` bounds its cost. At first there is one case for
every set of sharding types that a plan may use. The case with the lowest bound is divided. The finest cases are solved
again, and then no table may be divided among types. The result is the lowest bound of any case that is left.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from lab_expressions import CUT, ON_HOSTS, Case, Range
from lab_plans import Machine
from lab_program import Program
from lab_segments import Segments
from lab_terms import COLUMN_WISE, DATA_PARALLEL, KINDS, ROW_WISE, Terms

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.network import NetworkParams

#: The range of a reduction's bytes is divided if the line for its cost lies below the cost by more than a share of the
#: bound. As long as anything else can be divided, this share is the first number, and afterwards the second one.
_COARSE, _PRECISION = 2e-2, 1e-3
_NEAR = 1.05


class Found(NamedTuple):
    """A bound in us, the case and the variables that have it, and whether every table had to have a single type."""

    least_us: float
    case: Case
    variables: FloatArray
    is_integer: bool = False


class Branching:
    """Bounds for one task.

    Args:
        terms: terms of the tables.
        machine: numbers of the job, with several hosts.
        network: the cluster.
    """

    def __init__(self, terms: Terms, machine: Machine, network: NetworkParams) -> None:
        self._terms, self._machine, self._network = terms, machine, network

    def least(self, seconds: float, most_us: float = math.inf) -> Found:
        """The bound after about `seconds`; cases above `most_us`, the cost of some plan, are not divided."""
        end, serial = time.perf_counter() + seconds, itertools.count()
        left = [(found.least_us, next(serial), found) for found in map(self._solved, self._first(most_us))]
        closed = Found(most_us, left[0][2].case, np.zeros(0))
        heapq.heapify(left)
        while left and time.perf_counter() < end and left[0][0] < closed.least_us * (1 - _PRECISION):
            found = heapq.heappop(left)[2]
            parts = self._divided(found)
            is_last = not parts or (parts[0].reduced != found.case.reduced and _is_fine(found.case))
            if is_last and not found.is_integer:
                parts = [found.case]
            elif not parts:
                closed = min(closed, found, key=lambda entry: entry.least_us)
            for case in parts:
                part = self._solved(case, is_last)
                least = max(part.least_us, found.least_us)
                heapq.heappush(left, (least, next(serial), part._replace(least_us=least)))
        return min([closed, *(found for *_, found in left)], key=lambda entry: entry.least_us)

    def _solved(self, case: Case, is_integer: bool = False) -> Found:
        least_us, variables = Program(case, self._terms, self._machine, self._network).least_us(is_integer)
        return Found(least_us, case, variables, is_integer)

    def _first(self, most_us: float) -> Iterator[Case]:
        """Cases of all plans that cost at most `most_us`, one for every set of sharding types."""
        terms, m = self._terms, self._machine
        possible = [kind for kind in range(len(KINDS)) if terms.usable[:, kind].any()]
        ranges = dict.fromkeys(ON_HOSTS, (1.0, m.world / m.local)) | {COLUMN_WISE: (1.0, float(m.world))}
        of_gradients = terms.gradients[terms.usable[:, DATA_PARALLEL]]
        columns = 4.0 * (terms.widths * terms.features)[terms.usable[:, ROW_WISE]]
        reduced = {DATA_PARALLEL: of_gradients, ROW_WISE: 4 * m.batch * columns}
        for used in itertools.chain(*(itertools.combinations(possible, n) for n in range(1, len(possible) + 1))):
            sharded = [kind for kind in used if kind != DATA_PARALLEL]
            yield Case(
                used,
                {kind: ranges[kind] for kind in used if kind in ranges},
                {kind: self._bytes_within(sizes, most_us) for kind, sizes in reduced.items() if kind in used},
                {},
                sharded[0] if len(sharded) == 1 else -1,
            )

    def _bytes_within(self, sizes: FloatArray, most_us: float) -> Range:
        """Least and most bytes of a reduction of any tables.

        At least half of them cross the network cards of a host, which must not take longer than `most_us`.
        """
        most = 2 * self._machine.card * self._machine.local * most_us
        return float(sizes.min()), max(min(float(sizes.sum()), most), float(sizes.min()))

    def _divided(self, found: Found) -> list[Case]:
        """The cases that a case consists of; none if it is fine enough."""
        case = found.case
        segments = Segments(case, self._terms, self._machine, self._network)
        lost = {kind: segments.lost_us(kind, found.variables) for kind in case.reduced}
        for share in (_COARSE, _PRECISION):
            for kind, (size, lost_us) in lost.items():
                if lost_us > share * found.least_us:
                    parts = _halves(case.reduced[kind], size)
                    return [case._replace(reduced={**case.reduced, kind: part}) for part in parts]
            if case.last < 0:
                return [case._replace(last=kind) for kind in case.used if kind != DATA_PARALLEL]
            for kind in CUT:
                if kind in case.used and kind not in case.cut:
                    return [case._replace(cut={**case.cut, kind: is_cut}) for is_cut in (False, True)]
            for kind in (*ON_HOSTS, COLUMN_WISE):
                low, high = case.spread.get(kind, (1.0, 1.0))
                if low < high:
                    middle = math.floor(math.sqrt(low * high))
                    parts = [(low, float(middle)), (middle + 1.0, high)]
                    return [case._replace(spread={**case.spread, kind: part}) for part in parts]
        return []


def _is_fine(case: Case) -> bool:
    """Whether only the ranges of bytes can be divided."""
    is_cut_known = all(kind in case.cut for kind in CUT if kind in case.used)
    return is_cut_known and case.last >= 0 and all(low == high for low, high in case.spread.values())


def _halves(limits: Range, size: float) -> list[Range]:
    """Two ranges that meet at `size`, or at the geometric mean if `size` is near an end."""
    low, high = limits
    middle = size if low * _NEAR < size < high / _NEAR else math.sqrt(low * high)
    return [(low, middle), (middle, high)]
