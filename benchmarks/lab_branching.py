"""Proves a lower bound on the cost in the lab of every plan on several hosts, by branching over cases (`lab_program`).

The first cases are the sets of sharding types that a plan may use. The case with the lowest bound is divided in the way
that raises the bound most if tables may have several types; the parts are solved with one type per table. The result is
the lowest bound of any case that is left.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from lab_plans import Machine
from lab_program import Program
from lab_segments import CUT, ON_HOSTS, Case, Range, Segments
from lab_terms import COLUMN_WISE, DATA_PARALLEL, KINDS, ROW_WISE, Terms

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.network import NetworkParams

#: Ranges of bytes are divided while their ends differ by more than this factor.
_NEAR = 1.05
_PRECISION = 1e-3


class Found(NamedTuple):
    """A bound in us, and the case and the variables that have it."""

    least_us: float
    case: Case
    variables: FloatArray


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
        left = [(found.least_us, next(serial), found) for found in map(self._solved, self._first())]
        closed = Found(most_us, left[0][2].case, np.zeros(0))
        heapq.heapify(left)
        while left and time.perf_counter() < end and left[0][0] < closed.least_us * (1 - _PRECISION):
            found = heapq.heappop(left)[2]
            children = [self._solved(child.case, is_integer=True) for child in self._divided(found)]
            if not children:
                closed = min(closed, found, key=lambda entry: entry.least_us)
            for child in children:
                least = max(child.least_us, found.least_us)
                heapq.heappush(left, (least, next(serial), child._replace(least_us=least)))
        return min([closed, *(found for *_, found in left)], key=lambda entry: entry.least_us)

    def _solved(self, case: Case, is_integer: bool = False) -> Found:
        least_us, variables = Program(case, self._terms, self._machine, self._network).least_us(is_integer)
        return Found(least_us, case, variables)

    def _first(self) -> Iterator[Case]:
        """Cases of all plans, one for every set of sharding types."""
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
                {kind: (float(sizes.min()), float(sizes.sum())) for kind, sizes in reduced.items() if kind in used},
                {},
                sharded[0] if len(sharded) == 1 else -1,
            )

    def _divided(self, found: Found) -> list[Found]:
        """The cases that a case consists of, divided in the way with the highest lowest bound."""
        best: list[Found] = []
        highest = -1.0
        for cases in self._ways(found):
            children = [child for child in map(self._solved, cases) if np.isfinite(child.least_us)]
            lowest = min((child.least_us for child in children), default=math.inf)
            if lowest > highest:
                best, highest = children, lowest
        return best

    def _ways(self, found: Found) -> Iterator[list[Case]]:
        """All ways to divide a case."""
        case = found.case
        if case.last < 0:
            yield [case._replace(last=kind) for kind in case.used if kind != DATA_PARALLEL]
        for kind in case.used:
            if kind in CUT and kind not in case.cut:
                yield [case._replace(cut={**case.cut, kind: is_cut}) for is_cut in (False, True)]
            if kind in case.spread and case.spread[kind][0] < case.spread[kind][1]:
                low, high = case.spread[kind]
                middle = math.floor(math.sqrt(low * high))
                yield [
                    case._replace(spread={**case.spread, kind: part}) for part in ((low, middle), (middle + 1, high))
                ]
            if kind in case.reduced and case.reduced[kind][1] > _NEAR * case.reduced[kind][0]:
                size = Segments(case, self._terms, self._machine, self._network).reduced_bytes(kind)
                parts = _halves(case.reduced[kind], float(size[:-1] @ found.variables + size[-1]))
                yield [case._replace(reduced={**case.reduced, kind: part}) for part in parts]


def _halves(limits: Range, size: float) -> list[Range]:
    """Two ranges that meet at `size`, or at the geometric mean if `size` is near an end."""
    low, high = limits
    middle = size if low * _NEAR < size < high / _NEAR else math.sqrt(low * high)
    return [(low, middle), (middle, high)]
