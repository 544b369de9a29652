"""Computes the cost of a step by the lab's formulas (`lab.step`) in compiled code, fast enough for millions of plans.

`evaluate` computes the same cost as `lab.step.step_cost_ms`, up to rounding, for tasks that `lab_terms.terms_of`
accepts; `search_ceiling` compares the two.

A plan consists of the sharding type of every table, `kinds` (T,), and of blocks of columns, `blocks` (N, 3), each with
the number of its table, columns / 4, and place. A place is a rank for column_wise, a host for table_row_wise and
grid_shard, else 0. Tables with other types than column_wise and grid_shard have one block.

Shapes: T tables, K types of `KINDS`, N blocks, W ranks, Q quantities of a shard (`lab_terms.QUANTITIES`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from lab_exchanges import exchange
from lab_terms import COLUMN_WISE, DATA_PARALLEL, GRID_SHARD, KINDS, ROW_WISE, TABLE_ROW_WISE
from numba import njit

from neuroshard_pipeline.arrays import FloatArray

_K, _Q = len(KINDS), 9


class Machine(NamedTuple):
    """Numbers of a job; times in us, rates in bytes per us. `search_ceiling.machine_of` names their sources."""

    world: int
    local: int
    batch: float
    launch: float
    backward_launch: float
    memory_rate: float
    sync: float
    lookup_host: float
    sort_per_byte: float
    segment_per_byte: float
    gradient_passes: float
    start: float
    rank: float
    link: float
    switch_reduction: float
    fill: float
    host_share: float
    hop: float
    peer: float
    card: float
    alltoall_card: float
    tree_fill: float
    ring_fill: float
    fabric_share: float
    has_trees: bool
    splits: float


class Sums(NamedTuple):
    """Sums over shards by type and rank, (K, W, ...); `memory` is by rank, the last two are by type.

    Of the quantity `last_bag` in `lookups`, the largest counts. `is_cut`: whether any block is narrower than its table.
    """

    lookups: FloatArray
    features: FloatArray
    ids: FloatArray
    columns: FloatArray
    whole_columns: FloatArray
    memory: FloatArray
    whole_features: FloatArray
    is_cut: np.ndarray


@njit(cache=True)
def _stream(num_bytes, kernels, m):
    return kernels * m.launch + num_bytes / m.memory_rate if num_bytes > 0 else 0.0


@njit(cache=True)
def _reduction(is_all_reduce, size, ranks, hosts, m):
    """`lab.network.collective_us` of all_reduce, reduce_scatter or all_gather."""
    if size <= 0 or ranks < 2:
        return 0.0
    local, levels, passes = ranks / hosts, np.log2(hosts), 2.0 if is_all_reduce else 1.0
    ring = passes * size * (ranks - 1) / ranks
    link = ring / m.link * (1 + 0.5 / local) if local > 1 else 0.0
    cards = min(local, 8.0) * m.card
    share, fill = (m.fabric_share if hosts > 1 else m.host_share), m.fill * (local - 1)
    busy = max(link, ring / cards) if hosts > 1 else link
    us = min(busy / share, fill + m.ring_fill * passes * (hosts - 1) + busy)
    if is_all_reduce and (m.has_trees or hosts == 1):
        reduction = m.switch_reduction if local >= 8 else 1.0
        tree = max(link / reduction, 2 * size * (hosts - 1) / hosts / cards)
        us = min(us, min(tree / share, fill + m.tree_fill * levels + tree))
    hops = m.hop * (1 + size / (size + 8192)) * (levels if is_all_reduce else hosts - 1)
    return m.start + m.rank * (local - 1) + hops + us


@njit(cache=True)
def _sums(kinds, blocks, tables, m):
    shape = (_K, m.world)
    sums = Sums(
        np.zeros((_K, m.world, _Q)),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(m.world),
        np.zeros(_K),
        np.zeros(_K, np.bool_),
    )
    for n in range(len(blocks)):
        table, width, place = blocks[n]
        kind = kinds[table]
        first, end = (place, place + 1) if kind == COLUMN_WISE else (0, m.world)
        if kind in (TABLE_ROW_WISE, GRID_SHARD):
            first, end = place * m.local, (place + 1) * m.local
        sums.is_cut[kind] |= width < tables.widths[table]
        features = tables.features[table]
        for rank in range(first, end):
            last = 1 if rank == end - 1 else 0
            share = tables.row_share[table, kind, last]
            of, own = tables.lookups[table, kind, width, last], sums.lookups[kind, rank]
            own[: _Q - 1] += of[: _Q - 1]
            own[_Q - 1] = max(own[_Q - 1], of[_Q - 1])
            sums.memory[rank] += tables.bytes[table, kind, width, last]
            sums.features[kind, rank] += features
            sums.ids[kind, rank] += tables.ids[table] * share
            sums.columns[kind, rank] += 4 * width * features
            sums.whole_columns[kind, rank] += 4 * width * features * share
            sums.whole_features[kind] += features * share
    return sums


@njit(cache=True)
def _on_host(columns, m):
    of_host = np.zeros(m.world)
    for rank in range(m.world):
        first = rank // m.local * m.local
        of_host[rank] = columns[first : first + m.local].sum()
    return of_host


@njit(cache=True)
def _reduce_in_hosts(clock, sizes, m):
    for first in range(0, m.world, m.local):
        us = _reduction(False, sizes[first], m.local, 1.0, m)
        if us > 0:
            clock[first : first + m.local] = clock[first : first + m.local].max() + us


@njit(cache=True)
def _output_dist(clock, kind, is_forward, sums, m):
    """`lab.exchange.output_dist` of one group."""
    local_batch = m.batch / m.world
    if kind == ROW_WISE:
        width = sums.whole_columns[kind].sum()
        own, back = _stream(8 * m.batch * width, 1, m), _stream(8 * local_batch * width, 1, m)
        clock += 0.0 if is_forward else back
        clock[:] = clock.max() + _reduction(False, 4 * m.batch * width, m.world, m.world / m.local, m)
        clock += 0.0 if is_forward else own
        return
    returned = local_batch * sums.whole_columns[kind].sum()
    cat = _stream(8 * returned, 1, m)
    reorder = cat if sums.is_cut[kind] else 0.0
    if kind == COLUMN_WISE:
        own = np.array([_stream(8 * m.batch * number, 1, m) for number in sums.columns[kind]])
        clock += own if is_forward else np.full(m.world, 2 * cat + reorder)
        exchange(clock, 4 * local_batch * sums.columns[kind], False, m)
        clock += np.full(m.world, cat + reorder) if is_forward else own
        return
    of_host = _on_host(sums.whole_columns[kind], m)
    across = np.array([_stream(8 * m.batch / m.local * number, 1, m) for number in of_host])
    if is_forward:
        _reduce_in_hosts(clock, 4 * m.batch * of_host, m)
        clock += across
        exchange(clock, 4 * local_batch * of_host, True, m)
        clock += cat + reorder
        return
    clock += 2 * cat + reorder
    exchange(clock, 4 * local_batch * of_host, True, m)
    clock += across
    _reduce_in_hosts(clock, 4 * m.batch * of_host, m)
    clock += np.array([_stream(8 * m.batch * number, 1, m) for number in of_host])


@njit(cache=True)
def _input_dist(clock, order, sums, m):
    """`lab.exchange.input_dist` of one module."""
    local_batch, sent, sent_lengths = m.batch / m.world, 0.0, 0.0
    for kind in order:
        copies = m.world if kind == DATA_PARALLEL else 1
        sent += local_batch * (4 * sums.whole_features[kind] + 8 * sums.ids[kind].sum()) / copies
        sent_lengths += local_batch * 4 * sums.whole_features[kind] / copies
    if (order == DATA_PARALLEL).all():
        return
    clock += _stream(2 * sent, 4, m) + m.segment_per_byte * sent_lengths + m.sync
    for kind in order:
        if kind == DATA_PARALLEL:
            continue
        lengths, ids = 4 * local_batch * sums.features[kind], 8 * local_batch * sums.ids[kind]
        if kind != COLUMN_WISE:
            clock += _stream(3 * lengths.sum(), 4, m) + m.sort_per_byte * ids.sum() + m.sync
        if kind in (TABLE_ROW_WISE, GRID_SHARD):
            clock += _stream(2 * (lengths + ids).sum(), 4, m) + m.segment_per_byte * lengths.sum()
        clock[:] = clock.max() + m.splits + m.sync
        exchange(clock, lengths, False, m)
        exchange(clock, ids, False, m)
        for rank in range(m.world):
            clock[rank] += _stream(2 * m.world * (lengths[rank] + ids[rank]), 4, m)
            clock[rank] += _stream(5 * m.world * lengths[rank], 2, m) + m.sync
            clock[rank] += m.segment_per_byte * m.world * lengths[rank]
    clock += m.lookup_host


@njit(cache=True)
def evaluate(kinds, blocks, tables, m):
    """Cost of a step in ms, mean time of the ranks in ms, and sum over ranks of (memory above the limit) / limit."""
    sums, clock = _sums(kinds, blocks, tables, m), np.zeros(m.world)
    order = np.array([kind for n, kind in enumerate(kinds) if kind not in kinds[:n]])
    joined = 8 * m.batch / m.world * (4 * tables.widths * tables.features).sum()
    sides = _stream(joined, 1, m) if len(order) > 1 else 0.0
    clock += sides
    for kind in order:
        if kind != DATA_PARALLEL:
            _output_dist(clock, kind, False, sums, m)
    forward = np.zeros(m.world)
    for kind in order:
        for rank in range(m.world):
            if sums.features[kind, rank]:
                q = sums.lookups[kind, rank]
                forward[rank] += m.launch + max(q[0], q[1], q[2] + q[8])
                clock[rank] += m.backward_launch + q[3] + max(q[4], q[5], q[6]) + q[7]
    gradients = tables.gradients[kinds == DATA_PARALLEL].sum()
    clock += _stream(m.gradient_passes * gradients, 3, m)
    if gradients > 0:
        clock[:] = clock.max() + _reduction(True, gradients, m.world, m.world / m.local, m)
    _input_dist(clock, order, sums, m)
    clock += forward
    for kind in order:
        if kind != DATA_PARALLEL:
            _output_dist(clock, kind, True, sums, m)
    clock += sides
    return clock.max() / 1e3, clock.mean() / 1e3, np.maximum(sums.memory / tables.limits - 1, 0).sum()
