"""The segments of a step on several hosts, by the lab's formulas, as linear expressions of a plan (`lab_expressions`).

The all_reduce of replicas, and the all-to-all of message sizes before the ids of each type, divide a step into segments
that all ranks start at the same time:

- gradients: output dists and lookups of the backward pass
- ids, one per sharded type except the last: what follows the all-to-all of sizes, up to that of the next type
- outputs: the exchange of the last type's ids (of all ids if the case leaves the last type open), then lookups and
  output dists of the forward pass

A segment takes at least as long as the mean, over a set of ranks, of their work and transfers. The set is all ranks, or
the ranks with shards of one type, or a single one of these; each of them launches all kernels of this type. All other
work is the same on all ranks (`equal_for_all`). The formulas are those of `lab_plans.evaluate`.

Shapes: T tables, M widths in steps of 4 columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from lab_expressions import CUT, EVERY, ON_HOSTS, Case, Expressions
from lab_plans import Machine
from lab_reductions import reduction_lines
from lab_terms import COLUMN_WISE, DATA_PARALLEL, KINDS, ROW_WISE, Terms

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.network import Collective, NetworkParams, collective_us

_K = len(KINDS)


class Segments(Expressions):
    """Expressions for the plans of a case.

    Args:
        case: which plans.
        terms: terms of the tables.
        m: numbers of the job, which has several hosts.
        network: the cluster.
    """

    def __init__(self, case: Case, terms: Terms, m: Machine, network: NetworkParams) -> None:
        super().__init__(case, terms, m)
        self._network, self._hosts, self._batch = network, m.world // m.local, m.batch / m.world
        columns = 4.0 * terms.features[:, None] * np.arange(self.widths)
        shares = {kind: terms.row_share[:, kind].min(axis=-1) if kind == ROW_WISE else 1.0 for kind in case.used}
        self._columns = {kind: self.total(kind, columns) for kind in case.used}
        self._features = {kind: self.total(kind, self.each(terms.features)) for kind in case.used}
        self._ids = {kind: self.total(kind, self.each(terms.ids * shares[kind])) for kind in case.used}
        self._all_ids = sum(self.total(kind, self.each(terms.ids)) for kind in case.used)

    def _exchange(self, kind: int, ranks: int, total: FloatArray) -> FloatArray:
        """Mean of an all-to-all with messages of one size per rank; `total` is the sum of these sizes over ranks."""
        m, peers = self.m, self.m.world - self.m.local
        share, factor = 1.0, self.means(kind, ranks)[1]
        if (kind == COLUMN_WISE and ranks % _K != kind) or ranks == EVERY:
            share, factor = self._partners(kind, ranks)
        return self.constant(m.start + share * (m.hop + m.peer * peers)) + factor * peers / m.alltoall_card * total

    def _partners(self, kind: int, ranks: int) -> tuple[float, float]:
        """Share of `ranks` that exchange data with shards on other hosts, and the factor of `total` in `_exchange`."""
        m, peers = self.m, self.m.world - self.m.local
        low = self.case.spread[kind][0] if kind == COLUMN_WISE else float(m.world)
        on_one_host = low <= m.local
        if ranks == EVERY:
            return (peers + low) / m.world if on_one_host else 1.0, 1.0 / m.world
        if ranks >= 2 * _K:
            return 1.0, 0.0
        hosts = 1.0 if ranks >= _K else self.case.spread[ranks][0]
        others = 1.0 - 1.0 / hosts  # messages between ranks of the same host use no cards
        return others if on_one_host else 1.0, others / peers

    def _exchange_at_places(self, kind: int, ranks: int) -> FloatArray:
        """Mean of an all-to-all between the ranks at the same position on their hosts."""
        m, others = self.m, self._hosts - 1
        factor = others / self._hosts if ranks == EVERY else others * m.local * self.means(kind, ranks)[1]
        total = 4 * self._batch * self._columns[kind]
        return self.constant(m.start + m.hop + m.peer * others) + factor / m.alltoall_card * total

    def _reduced_in_hosts(self, kind: int, ranks: int) -> FloatArray:
        """Mean of a reduction inside hosts."""
        least_us, slope = self._least_in_host(kind)
        share, factor = self.means(kind, ranks)
        total = factor * self.m.local * 4 * self.m.batch * self._columns[kind]
        return self.constant(share * least_us) + slope * total

    def _least_in_host(self, kind: int) -> tuple[float, float]:
        """A line in us and us per byte that the time of a reduction on a host does not fall below."""
        columns = 4 * self.terms.features[:, None] * np.arange(self.widths)
        possible = self.possible(kind)
        largest = np.where(possible, columns, 0).max(axis=1)
        if kind in CUT:
            largest = 4 * self.terms.features * self.terms.widths
        size = 4 * self.m.batch
        return chord(self._in_host_us, size * float(columns[possible].min()), size * float(largest.sum()))

    def _in_host_us(self, size: float) -> float:
        lines = reduction_lines(self._network, False, self.m.local, 1)
        return min(constant + rate * size for constant, rate in lines)

    def _reduced(self, kind: int) -> FloatArray:
        """An all_reduce of replicas, or a reduce_scatter or all_gather of row-wise tables."""
        constant, slope = chord(lambda size: self._reduced_us(kind, size), *self.case.reduced[kind])
        return self.constant(constant) + slope * self.reduced_bytes(kind)

    def _reduced_us(self, kind: int, size: float) -> float:
        name: Collective = "all_reduce" if kind == DATA_PARALLEL else "reduce_scatter"
        return float(collective_us(name, size, self.m.world, self._hosts, self._network))

    def lost_us(self, kind: int, variables: FloatArray) -> tuple[float, float]:
        """Bytes of a reduction in a plan, and the us by which the line of `_reduced` lies below its cost."""
        plan = np.append(variables, 1.0)
        size = float(self.reduced_bytes(kind) @ plan)
        return size, self._reduced_us(kind, size) - float(self._reduced(kind) @ plan)

    def reduced_bytes(self, kind: int) -> FloatArray:
        """Expression of the bytes of a reduction."""
        if kind == DATA_PARALLEL:
            return self.total(kind, self.each(self.terms.gradients))
        return 4 * self.m.batch * self._columns[kind]

    def equal_for_all(self) -> FloatArray:
        """Work that takes all ranks the same time, and the collectives that divide the step into segments."""
        m, found = self.m, self.constant(0.0)
        if len(self.case.used) > 1:
            outputs = 8 * self._batch * float((4 * self.terms.widths * self.terms.features).sum())
            found = found + 2 * self.stream(self.constant(outputs), 1)
        if DATA_PARALLEL in self.case.used:
            gradients = self.total(DATA_PARALLEL, self.each(self.terms.gradients))
            found = found + self.stream(m.gradient_passes * gradients, 3) + self._reduced(DATA_PARALLEL)
        if not self.sharded:
            return found
        numbers = 4 * sum(self._features.values()) + 8 * self._all_ids
        found = found + self.stream(2 * self._batch * numbers, 4) + self.constant(m.sync + m.lookup_host)
        found = found + m.segment_per_byte * 4 * self._batch * sum(self._features.values())
        for kind in self.sharded:
            found = found + self.constant(m.splits + 2 * m.sync)
            if kind == COLUMN_WISE:
                continue
            ranks = m.world if kind == ROW_WISE else m.local
            whole_ids = self.total(kind, self.each(self.terms.ids))
            lengths, of_ids = 4 * self._batch * ranks * self._features[kind], 8 * self._batch * whole_ids
            found = found + self.stream(3 * lengths, 4) + m.sort_per_byte * of_ids + self.constant(m.sync)
            if kind in ON_HOSTS:
                found = found + self.stream(2 * (lengths + of_ids), 4) + m.segment_per_byte * lengths
        return found

    def ids_after(self, kind: int, ranks: int) -> FloatArray:
        """Mean of the exchange of lengths and ids, which follows that of sizes, and of the kernels that order them."""
        m = self.m
        each = {COLUMN_WISE: 1, ROW_WISE: m.world}.get(kind, m.local)
        lengths = 4 * self._batch * each * self._features[kind]
        of_ids = 8 * self._batch * (m.world if kind == ROW_WISE else 1) * self._ids[kind]
        share, factor = self.means(kind, ranks)
        found = self._exchange(kind, ranks, lengths) + self._exchange(kind, ranks, of_ids)
        found = found + self.stream(2 * m.world * factor * (lengths + of_ids), 4 * share)
        found = found + m.segment_per_byte * m.world * factor * lengths
        return found + self.stream(5 * m.world * factor * lengths, 2 * share)

    def gradients(self, ranks: int) -> FloatArray:
        """Mean of the backward output dists and lookups."""
        m, found = self.m, self.constant(0.0)
        for kind in self.case.used:
            share, factor = self.means(kind, ranks)
            if kind == ROW_WISE:
                for samples in (self._batch, m.batch):
                    found = found + self.stream(8 * samples * self._columns[kind], 1)
                found = found + self._reduced(kind)
            elif kind != DATA_PARALLEL:
                found = found + self._returned(kind) + self._sent(kind, ranks)
                if kind in ON_HOSTS:
                    of_host = 8 * m.batch * factor * m.local * self._columns[kind]
                    found = found + self.stream(of_host, share)
            lookups = self.one(self.plan + 2 + 2 * _K + kind)
            found = found + self.constant(share * m.backward_launch) + self._scaled(kind, factor) * lookups
        return found

    def outputs(self, ranks: int) -> FloatArray:
        """Mean of the last exchange of ids, and of the forward lookups and output dists."""
        m, found = self.m, self.constant(0.0)
        for kind in self.case.used:
            share, factor = self.means(kind, ranks)
            if kind in self.sharded and self.case.last in (-1, kind):
                found = found + self.ids_after(kind, ranks)
            if kind == ROW_WISE:
                found = found + self._reduced(kind)
            elif kind != DATA_PARALLEL:
                found = found + self._returned(kind) + self._sent(kind, ranks)
            lookups = self.one(self.plan + 2 + _K + kind)
            found = found + self.constant(share * m.launch) + self._scaled(kind, factor) * lookups
        return found

    def _scaled(self, kind: int, factor: float) -> float:
        """Factor of a lookup's variable; for types that lie on all ranks, the variable is the time of one rank."""
        return 1.0 if kind in (DATA_PARALLEL, ROW_WISE) else factor

    def _returned(self, kind: int) -> FloatArray:
        """Time in which a rank puts a type's outputs side by side and, if a table is cut, into the model's order."""
        returned = 8 * self._batch * self._columns[kind]
        return (1 + self.case.cut.get(kind, False)) * self.stream(returned, 1)

    def _sent(self, kind: int, ranks: int) -> FloatArray:
        """Mean of the exchange of outputs or their gradients, and of the copy and the reduction on the shards' side."""
        share, factor = self.means(kind, ranks)
        if kind == COLUMN_WISE:
            copy = self.stream(8 * self.m.batch * factor * self._columns[kind], share)
            return copy + self._exchange(kind, ranks, 4 * self._batch * self._columns[kind])
        copy = self.stream(8 * self.m.batch * factor * self._columns[kind], share)
        return copy + self._reduced_in_hosts(kind, ranks) + self._exchange_at_places(kind, ranks)

    def alone(self, kind: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(T, M + 1) what a block adds to its rank, or to the ranks of its host: exchange of ids, gradients, outputs.

        Launches and the least times of collectives are not included.
        """
        m, terms, of = self.m, self.terms, self.terms.lookups[:, kind, :, 0]
        numbers = 4.0 * terms.features[:, None] * np.arange(self.widths)
        lengths = 4 * self._batch * terms.features
        numbers_of_ids = lengths + 8 * self._batch * terms.ids * terms.row_share[:, kind, 0]
        came = (m.world - m.local) / m.alltoall_card * numbers_of_ids
        came = came + m.world * (2 * numbers_of_ids + 5 * lengths) / m.memory_rate
        came = came + m.world * m.segment_per_byte * lengths
        peers = self._hosts - 1 if kind in ON_HOSTS else m.world - m.local
        sent = 8 * m.batch * numbers / m.memory_rate
        both = peers * 4 * self._batch / m.alltoall_card * numbers
        if kind in ON_HOSTS:
            size = 4 * m.batch * numbers
            both = both + sent / m.local + np.vectorize(self._in_host_us)(size) - self._least_in_host(kind)[0]
        backward = sent + both + of[..., 3] + of[..., 4:7].max(axis=-1) + of[..., 7]
        forward = both + np.maximum(of[..., :2].max(axis=-1), of[..., 2] + of[..., 8])
        forward = forward if kind in ON_HOSTS else forward + sent
        return self.each(came), backward, forward

    def lookups(self, kind: int) -> FloatArray:
        """(T, M + 1, Q) `lab_terms.QUANTITIES` summed over a block's row shards; for row_wise, the least of a shard."""
        lookups = self.terms.lookups[:, kind]
        if kind in ON_HOSTS:
            return (self.m.local - 1) * lookups[:, :, 0] + lookups[:, :, 1]
        return lookups.min(axis=2) if kind == ROW_WISE else lookups[:, :, 0]


def chord(cost: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Constant and slope of a line that a concave function does not fall below between `low` and `high`."""
    if high <= low:
        return cost(low), 0.0
    slope = (cost(high) - cost(low)) / (high - low)
    return cost(low) - slope * low, slope
