"""A lower bound on the cost of a step by the lab's formulas (`lab.step`), which holds for every plan of a task.

A step takes at least as long as its ranks work and send on average, without waiting. For a set of sharding types that a
plan may use, every part of this mean is at least a constant plus a number per shard. A table costs at least the
smallest sum of such numbers that any type of the set and any column split give. The bound is the smallest of any set.

- Lookups: a kernel takes the maximum of sums over its shards (bandwidth of HBM, of L2, latency; likewise backward). It
  is at least any weighted mean of these sums. Some weights are tried, the same for all kernels; the best ones count.
- Copies and input dist: they are linear in the shards of a rank, apart from launches.
- All-to-alls: on one host, every rank exchanges data with the busiest one, and therefore needs at least the time of the
  mean volume. Across hosts, a rank needs at least the time in which its own volume crosses its network card.
- All-to-alls on one host, and reductions: they cost at least the minimum of several lines, each a constant plus a rate
  times the bytes. Every choice of lines is tried, and the smallest result counts.
- Without `table_row_wise` and `grid_shard` tables, the mean is that of the ranks that launch all kernels: those with
  column shards, if any. With such tables, the mean is that of all ranks, and a kernel that not all ranks launch counts
  as if only one rank or one host launched it.

In a plan of cost C, no shard alone costs more than C or exceeds the memory of every rank. The result is the smallest C
that is not below the bound for plans without such shards. Waiting, imbalance, the memory that the shards of a rank take
together, and the reordering of outputs are ignored; each of them can only raise the cost.

Shapes: T tables, K types of `KINDS`, M widths in steps of 4 columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from lab_reductions import gradient_passes, reduction_lines
from lab_terms import COLUMN_WISE, DATA_PARALLEL, GRID_SHARD, KINDS, ROW_WISE, TABLE_ROW_WISE, Terms

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.network import BYTES_PER_US, collective_us
from neuroshard_pipeline.lab.step_groups import Job
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY

_PRECISION = 1e-3
_NUM_WEIGHTS = 6
_BYTES = 4
_ON_HOSTS = (TABLE_ROW_WISE, GRID_SHARD)


@dataclass(frozen=True)
class Line:
    """A lower bound in us on the mean cost of a type's tables: a constant, and a number per table or column block.

    Attributes:
        full_us: constant if every rank takes part; 0 for table_row_wise and grid_shard, which use `least_us` only.
        least_us: constant if as few ranks take part as the type allows: one, those of one host, or all.
        blocks_us: us (T, M + 1) of a block of 4 * i columns at index i; in the results of `_lines`, us (T,) of a table,
            or infinity if no block is possible.
    """

    full_us: float
    least_us: float
    blocks_us: FloatArray


class LabBound:
    """Bounds for one task.

    Args:
        terms: the terms of its tables.
        job: the task on modelled hardware.
    """

    def __init__(self, terms: Terms, job: Job) -> None:
        self._terms, self._job = terms, job
        width = COLUMN_GRANULARITY * np.arange(terms.bytes.shape[2])
        self._columns = terms.features[:, None] * width  # (T, M + 1)
        joined_us = float(self._stream_us(2 * _BYTES * job.local_batch * terms.features @ (4 * terms.widths)))
        self._joined_us = 2 * (job.device.kernels.forward_launch_us + joined_us)
        self._too_large = terms.bytes.max(axis=-1) > terms.limits.max()  # (T, K, M + 1)
        self._alone_us = np.stack([self._alone(kind) for kind in range(len(KINDS))], axis=1)

    def step_ms(self, most_ms: float) -> float:
        """The bound in ms; `most_ms` is the cost of some plan, which the bound cannot exceed."""
        simplex = [np.array(w) / sum(w) for w in itertools.product((0, 1), repeat=3) if 0 < sum(w) < len(w)]
        pairs = sorted(itertools.product(simplex, repeat=2), key=lambda pair: -self._mean_us(*pair, np.inf))
        best, low, high = pairs[:_NUM_WEIGHTS], 0.0, most_ms * 1e3
        while high - low > _PRECISION * high:
            middle = (low + high) / 2
            if max(self._mean_us(*pair, middle) for pair in best) > middle:
                low = middle
            else:
                high = middle
        return low / 1e3

    def _mean_us(self, forward: FloatArray, backward: FloatArray, limit_us: float) -> float:
        lines = [self._lines(kind, forward, backward, limit_us) for kind in range(len(KINDS))]
        found = [np.inf]
        for count in range(1, len(KINDS) + 1):
            for used in itertools.combinations([kind for kind in range(len(KINDS)) if lines[kind]], count):
                on_hosts = any(kind in _ON_HOSTS for kind in used)
                fixed = self._fixed_us(used)
                for chosen in itertools.product(*(lines[kind] for kind in used)):
                    constant = sum(line.least_us if on_hosts else line.full_us for line in chosen)
                    per_table = np.min([line.blocks_us for line in chosen], axis=0)
                    found.append(fixed + constant + float(per_table.sum()))
        return min(found)

    def _fixed_us(self, used: Sequence[int]) -> float:
        """Joining the outputs of several types, and putting ids into the order of the groups."""
        launch, sync = self._job.device.kernels.forward_launch_us, self._job.host.host_sync_us
        is_exchanged = any(kind != DATA_PARALLEL for kind in used)
        return self._joined_us * (len(used) > 1) + (4 * launch + sync + self._job.host.lookup_host_us) * is_exchanged

    def _lines(self, kind: int, forward: FloatArray, backward: FloatArray, limit_us: float) -> list[Line]:
        possible = self._possible(kind) & (self._alone_us[:, kind] <= limit_us)
        if not possible.any():
            return []
        weights = np.array([*forward, 1.0, *backward, 1.0, 0.0])
        found = []
        for line in self._of_kind(kind, self._terms.lookups[:, kind] @ weights):
            blocks = np.where(possible, line.blocks_us, np.inf)
            found.append(Line(line.full_us, line.least_us, _cheapest(blocks, self._terms.widths)))
        return found

    def _possible(self, kind: int) -> np.ndarray:
        """(T, M + 1) whether a table may have blocks of a width."""
        terms = self._terms
        numbers = np.arange(terms.bytes.shape[2])
        cuts = kind in (COLUMN_WISE, GRID_SHARD)
        fits = (numbers <= terms.widths[:, None]) if cuts else (numbers == terms.widths[:, None])
        return np.asarray(terms.usable[:, kind, None] & fits & (numbers > 0) & ~self._too_large[:, kind])

    def _of_kind(self, kind: int, lookups: FloatArray) -> list[Line]:
        """Lines of a type; `lookups` are us of the lookups of the first and the last block of rows, (T, M + 1, 2)."""
        if kind == COLUMN_WISE:
            return self._column_lines(lookups[..., 0])
        if kind == DATA_PARALLEL:
            return self._replica_lines(lookups[..., 0])
        return self._row_lines(lookups.min(axis=-1)) if kind == ROW_WISE else self._host_lines(lookups)

    def _alone(self, kind: int) -> FloatArray:
        """(T, M + 1) us that a rank with a shard needs at least, without all-to-alls and reductions."""
        kernels, of = self._job.device.kernels, self._terms.lookups[:, kind, :, 0]
        forward = np.maximum(np.maximum(of[..., 0], of[..., 1]), of[..., 2] + of[..., 8])
        backward = of[..., 3] + np.maximum(np.maximum(of[..., 4], of[..., 5]), of[..., 6]) + of[..., 7]
        alone = kernels.forward_launch_us + kernels.backward_launch_us + forward + backward
        if kind == DATA_PARALLEL:
            return np.asarray(alone + self._stream_us(gradient_passes(self._job.task) * self._terms.gradients)[:, None])
        ids = self._terms.ids * self._terms.row_share[:, kind].min(axis=-1)
        return np.asarray(alone + self._received_us(ids)[:, None] + self._own_copies_us() * (kind == COLUMN_WISE))

    def _column_lines(self, lookups: FloatArray) -> list[Line]:
        job, world, terms = self._job, self._job.world_size, self._terms
        launch = job.device.kernels.forward_launch_us
        own = lookups + self._own_copies_us() + self._received_us(terms.ids)[:, None]
        shared = self._sent_us()[:, None] + 2 * self._stream_us(2 * _BYTES * job.local_batch * self._columns)
        outputs, numbers = _BYTES * job.local_batch * self._columns, 2 * _BYTES * job.local_batch * terms.ids[:, None]
        lengths = _BYTES * job.local_batch * terms.features[:, None]
        found = []
        for out, of_ids in itertools.product(self._exchange_lines(), repeat=2):
            blocks = own / world + shared + self._per_peer(2 * out[1] * outputs + of_ids[1] * numbers)
            blocks = blocks + self._per_peer(min(slope for _, slope in self._exchange_lines()) * lengths)
            exchanges = 4 * self._exchange_us(1.0) + 2 * out[0] + of_ids[0]
            least = 4 * self._exchange_us((world - job.ranks_per_host + 1) / world) + 2 * out[0] + of_ids[0]
            every, nonempty = 2 * launch + self._splits_us(), 8 * launch + self._launches_us()
            found.append(Line(every + nonempty + exchanges, every + nonempty / world + least, blocks))
        return found

    def _replica_lines(self, lookups: FloatArray) -> list[Line]:
        launch, passes = self._job.device.kernels.forward_launch_us, gradient_passes(self._job.task)
        each = self._sent_us()[:, None] + lookups + self._stream_us(passes * self._terms.gradients)[:, None]
        fixed = 3 * launch + self._launches_us()
        return [
            Line(fixed + constant, fixed + constant, each + slope * self._terms.gradients[:, None])
            for constant, slope in reduction_lines(self._job.network, True, self._job.world_size, self._job.num_hosts)
        ]

    def _row_lines(self, lookups: FloatArray) -> list[Line]:
        job, terms, world = self._job, self._terms, self._job.world_size
        launch, share = job.device.kernels.forward_launch_us, terms.row_share[:, ROW_WISE].min(axis=-1)
        slope = min(slope for _, slope in self._exchange_lines())
        volume = _BYTES * job.local_batch * (terms.features + 2 * terms.ids * share)
        of_ids = self._sent_us() + self._received_us(terms.ids * share) + self._sorted_us(world)
        copies = self._stream_us(2 * _BYTES * (job.local_batch + job.task.batch_size) * self._columns)
        each = lookups + copies + (of_ids + slope * volume * self._peers())[:, None]
        fixed = (
            self._launches_us() + 12 * launch + job.host.host_sync_us + self._splits_us() + 2 * self._exchange_us(1.0)
        )
        size = _BYTES * job.task.batch_size
        return [
            Line(fixed + 2 * constant, fixed + 2 * constant, each + 2 * rate * size * self._columns)
            for constant, rate in reduction_lines(job.network, False, world, job.num_hosts, 4.0 * size)
        ]

    def _host_lines(self, lookups: FloatArray) -> list[Line]:
        """Lines of table_row_wise and grid_shard tables. On average, a rank works for 1 / hosts of their blocks."""
        job, terms, world, local = self._job, self._terms, self._job.world_size, self._job.ranks_per_host
        launch, hosts, batch = job.device.kernels.forward_launch_us, job.num_hosts, job.task.batch_size
        rows = ((local - 1) * lookups[..., 0] + lookups[..., 1]) / world
        copies = self._stream_us(2 * _BYTES * batch * (1 + 2 / local) * self._columns) / hosts
        copies = copies + 2 * self._stream_us(2 * _BYTES * job.local_batch * self._columns)
        sorted_bytes = job.local_batch * (_BYTES * local * terms.features + 2 * _BYTES * terms.ids)
        received = local * self._received_us(terms.ids / local) / world
        of_ids = self._sent_us() + self._stream_us(2 * sorted_bytes) + self._sorted_us(local) + received
        per_byte = self._exchange_lines()[0][1]
        numbers = _BYTES * job.local_batch * (local * terms.features + 2 * terms.ids)
        each = rows + copies + (of_ids + self._per_peer(per_byte * numbers))[:, None]
        each = each + 2 * per_byte * (hosts - 1) * _BYTES * job.local_batch * self._columns / hosts
        fixed = 10 * launch + job.host.host_sync_us + self._splits_us() + 2 * self._exchange_us(1.0)
        fixed += 2 * (job.network.host.launch_us + job.network.fabric.hop_us + job.network.fabric.peer_us)
        own = (self._launches_us() + 9 * launch) / hosts
        return [
            Line(0.0, fixed + own + 2 * constant / hosts, each + 2 * rate * _BYTES * batch * self._columns / hosts)
            for constant, rate in reduction_lines(job.network, False, local, 1)
        ]

    def _sent_us(self) -> FloatArray:
        numbers = self._job.local_batch * (_BYTES * self._terms.features + 2 * _BYTES * self._terms.ids)
        return self._stream_us(2 * numbers) + self._segments_us(self._job.local_batch)

    def _segments_us(self, samples: float) -> FloatArray:
        """(T,) us to permute the segments of this number of samples, besides their bytes."""
        return np.asarray(self._job.host.permute_segment_ns / 1e3 * samples * self._terms.features)

    def _sorted_us(self, ranks: int) -> FloatArray:
        """(T,) us to sort ids into the buckets of this number of ranks, without launches."""
        lengths = _BYTES * self._job.local_batch * ranks * self._terms.features
        sort_us = self._job.host.pooled_sort_ns / 1e3 * self._job.local_batch * self._terms.ids
        return np.asarray(self._stream_us(3 * lengths) + sort_us)

    def _received_us(self, ids: FloatArray) -> FloatArray:
        """(T,) us to put received ids into the order of features, and to compute offsets; `ids` are per sample."""
        features, batch = self._terms.features, self._job.task.batch_size
        us = self._stream_us(batch * (2 * (_BYTES * features + 2 * _BYTES * ids) + 5 * _BYTES * features))
        return us + self._segments_us(batch)

    def _own_copies_us(self) -> FloatArray:
        return self._stream_us(4 * _BYTES * self._job.task.batch_size * self._columns)

    def _launches_us(self) -> float:
        return self._job.device.kernels.forward_launch_us + self._job.device.kernels.backward_launch_us

    def _splits_us(self) -> float:
        """The all-to-all that announces the sizes of messages, and the waits for it and for the ids."""
        job = self._job
        us = collective_us("alltoall", 24.0 * job.world_size, job.world_size, job.num_hosts, job.network)
        return float(us) + 2 * job.host.host_sync_us

    def _exchange_us(self, share: float) -> float:
        """Constant of an all-to-all if this share of the ranks exchange data with ranks of other hosts."""
        host, fabric, local = self._job.network.host, self._job.network.fabric, self._job.ranks_per_host
        if self._job.num_hosts == 1:
            return host.launch_us + host.rank_us * (local - 1)
        return host.launch_us + share * (fabric.hop_us + fabric.peer_us * (self._job.world_size - local))

    def _exchange_lines(self) -> list[tuple[float, float]]:
        """Lines (us, us per byte) of an all-to-all; the bytes are all that a rank sends to `_peers()` ranks."""
        host, fabric = self._job.network.host, self._job.network.fabric
        if self._job.num_hosts > 1:
            factor = fabric.alltoall_share ** np.log2(self._job.num_hosts)
            return [(0.0, 1 / (fabric.card_gb_per_s * BYTES_PER_US * factor))]
        per_byte = 1 / (host.link_gb_per_s * BYTES_PER_US)
        return [(0.0, per_byte / host.low_latency_share), (host.fill_us * self._peers(), per_byte)]

    def _peers(self) -> int:
        """Number of ranks on other hosts; with one host, of all other ranks."""
        job = self._job
        return job.world_size - job.ranks_per_host if job.num_hosts > 1 else job.world_size - 1

    def _per_peer(self, us: FloatArray) -> FloatArray:
        return us * self._peers() / self._job.world_size

    def _stream_us(self, num_bytes: FloatArray) -> FloatArray:
        device = self._job.device
        return np.asarray(num_bytes / (device.device.hbm_gb_per_s * device.kernels.hbm_efficiency * BYTES_PER_US))


def _cheapest(blocks: FloatArray, widths: np.ndarray) -> FloatArray:
    """(T,) least sum of blocks (T, M + 1) whose widths add up to the table's."""
    least = np.zeros_like(blocks)
    for width in range(1, blocks.shape[1]):
        least[:, width] = (blocks[:, 1 : width + 1] + least[:, :width][:, ::-1]).min(axis=1)
    return np.asarray(least[np.arange(len(widths)), widths])
