"""Cases of plans, and linear expressions of a plan's variables, for `lab_segments`.

Variables are y (K, T), the share of a table that has a type; x (T, M + 1) for types that may cut columns, the numbers
of a table's blocks per width; the times of the segments of a step; and the times of lookups. The times of lookups are
sums over all ranks, but those of `data_parallel` and `row_wise` are times of one rank. The last variables, three of
each type (`Expressions.spare`), serve `_block_rows` of `lab_program`.
An expression is an array (V + 1,): the coefficients of the variables and a constant. Its value is in us or bytes, or a
number, for example of blocks or ids.

Shapes: T tables, K types of `KINDS`, M widths in steps of 4 columns, V variables.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from lab_plans import Machine
from lab_terms import COLUMN_WISE, DATA_PARALLEL, GRID_SHARD, KINDS, ROW_WISE, TABLE_ROW_WISE, Terms

from neuroshard_pipeline.arrays import FloatArray

ON_HOSTS, CUT = (TABLE_ROW_WISE, GRID_SHARD), (COLUMN_WISE, GRID_SHARD)
#: Numbers stand for sets of ranks. `EVERY`: all ranks. A type: the ranks with shards of it. A type + `_K`: any one of
#: these ranks. A type of `ON_HOSTS` + 2 `_K`: a rank with column_wise shards on the host where that type costs most.
EVERY = -1
_K = len(KINDS)
Range = tuple[float, float]


class Case(NamedTuple):
    """A set of plans.

    Attributes:
        used: types of the plans.
        spread: range of the number of ranks (column_wise) or hosts (table_row_wise, grid_shard) with shards, by type.
        reduced: range of the bytes of the all_reduce of replicas, and of the reduction of row_wise tables, by type.
        cut: whether a table is cut by columns, for column_wise and grid_shard; a missing type may be either.
        last: type whose ids are exchanged last; -1 if it may be any.
    """

    used: tuple[int, ...]
    spread: dict[int, Range]
    reduced: dict[int, Range]
    cut: dict[int, bool]
    last: int


class Expressions:
    """Expressions for the plans of a case.

    Args:
        case: which plans.
        terms: terms of the tables.
        m: numbers of the job, with several hosts.

    Attributes:
        sharded: types of the plans except data_parallel.
        plan: number of y and x, which are the first variables.
        size: number of variables; after the plan come the segments gradients and outputs, and by type the segments ids,
            the forward lookups, the backward lookups and three spare variables.
    """

    def __init__(self, case: Case, terms: Terms, m: Machine) -> None:
        self.case, self.terms, self.m = case, terms, m
        self.tables, self.widths = len(terms.widths), terms.bytes.shape[2]
        self.plan = self.tables * (_K + len(CUT) * self.widths)
        self.size = self.plan + 2 + 3 * _K + 3 * _K
        self.sharded = [kind for kind in case.used if kind != DATA_PARALLEL]

    def ranks_of(self) -> list[int]:
        """The sets of ranks whose means bound the segments."""
        return [EVERY, *(kind for kind in self.sharded if kind != ROW_WISE), *self._both()]

    def _both(self) -> list[int]:
        """The sets type + 2 `_K`; none if a host may be without column_wise shards."""
        if self.case.spread.get(COLUMN_WISE, (0.0, 0.0))[0] <= self.m.world - self.m.local:
            return []
        return [kind + 2 * _K for kind in ON_HOSTS if kind in self.case.used]

    def spare(self, kind: int, segment: int) -> int:
        """Place of a spare variable of a type and a segment."""
        return self.plan + 2 + 3 * _K + 3 * kind + min(segment - self.plan, 2)

    def one(self, place: int) -> FloatArray:
        """Expression of one variable."""
        found = np.zeros(self.size + 1)
        found[place] = 1.0
        return found

    def constant(self, us: float) -> FloatArray:
        """Expression without variables."""
        return us * self.one(self.size)

    def each(self, values: FloatArray) -> FloatArray:
        """(T, M + 1) the same value for a block of any width."""
        return np.repeat(np.asarray(values, dtype=float)[:, None], self.widths, axis=1)

    def total(self, kind: int, values: FloatArray) -> FloatArray:
        """Expression of the sum over the blocks of a type; `values` are by table and width (T, M + 1)."""
        found = np.zeros(self.size + 1)
        if kind in CUT:
            first = self.first_block(kind)
            found[first : first + values.size] = values.ravel()
        else:
            found[kind * self.tables : (kind + 1) * self.tables] = values[np.arange(self.tables), self.terms.widths]
        return found

    def first_block(self, kind: int) -> int:
        """Place of the first x of a type that may cut columns."""
        return self.tables * (_K + CUT.index(kind) * self.widths)

    def stream(self, num_bytes: FloatArray, kernels: float) -> FloatArray:
        """Time of kernels that move bytes. If only some ranks launch them, `kernels` is the mean number per rank."""
        return self.constant(kernels * self.m.launch) + num_bytes / self.m.memory_rate

    def means(self, kind: int, ranks: int) -> tuple[float, float]:
        """The least share of `ranks` with shards of `kind`, and a factor.

        A sum over the shards of `kind` of all ranks, times the factor, is at most the mean over `ranks`.
        """
        world, local = self.m.world, self.m.local
        if kind in (DATA_PARALLEL, ROW_WISE):
            return 1.0, 1.0 / world
        each = 1 if kind == COLUMN_WISE else local
        low, high = (each * number for number in self.case.spread[kind])
        if ranks == EVERY:
            return low / world, 1.0 / world
        if ranks % _K == kind:
            return 1.0, 0.0 if ranks // _K == 1 else 1.0 / high
        if ranks >= 2 * _K and kind == COLUMN_WISE:
            return 1.0, 0.0
        least = self.case.spread[ranks % _K][0] * (1 if ranks % _K == COLUMN_WISE else local)
        return max(1.0 - (world - low) / (1 if ranks >= _K else least), 0.0), 0.0

    def possible(self, kind: int) -> np.ndarray:
        """(T, M + 1) whether a table may have blocks of a width."""
        terms, numbers = self.terms, np.arange(self.widths)
        cuts = kind in CUT and self.case.cut.get(kind, True)
        fits = (numbers <= terms.widths[:, None]) if cuts else (numbers == terms.widths[:, None])
        small = terms.bytes[:, kind].max(axis=-1) <= terms.limits.max()
        return np.asarray(terms.usable[:, kind, None] & fits & (numbers > 0) & small)
