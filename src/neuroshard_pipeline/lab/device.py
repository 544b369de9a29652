"""Time of one fused lookup on a modelled GPU: an explicit formula, no measurement.

The formula describes FBGEMM's table-batched lookup. The numbers of `DeviceParams` come from data sheets. The numbers of
`KernelParams` are shared by all GPUs and are fitted to published times (benchmarks/lab/fit_device.py).

Forward, one kernel that reads rows of weights, adds them up, and writes pooled outputs:

    forward = launch + max(HBM, L2, latency) + host

    HBM      bytes of rows that are not in L2 (whole 64-byte bursts), ids, offsets and outputs, divided by the bandwidth
    L2       bytes of all rows (whole 32-byte sectors), ids, offsets and outputs, divided by the bandwidth
    latency  a bag (the ids of one sample in one table) occupies a warp of 32 threads for a fixed time plus a time per
             id. Every SM runs 64 warps at once. The whole time of the last bag to finish is added.
    host     bytes of rows that cross the link to managed memory (UVM, on the host), divided by the link's bandwidth

Backward, 19 kernels:

    backward = launches + sort + max(gradients, hot rows) + update + weights + host

    sort       ids are linearised, sorted and run-length encoded: a number of bytes per id through HBM
    gradients  for every id, the gradient of its bag is read from L2, which reads from HBM what it does not hold
    hot rows   a row with more than 32 ids is reduced by one block of threads per 1024 ids; each block occupies an SM
               for a fixed time
    update     each distinct row and its optimizer state are read and written once
    weights    if ids have weights, these are sorted, too, and their gradients take a multiple of the forward time
    host       the state of each weight (Adagrad, Adam) crosses the host link if its row is in managed memory; the row
               does, too, if there is no cache. Row-wise Adagrad has its state in GPU memory.

The most frequently read rows of a table stay in L2, as many as fit.

Shapes: S shards of one fused lookup, 17 reuse bins (`tables.table.REUSE_BIN_EDGES`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import MeasurementError, did_you_mean
from neuroshard_pipeline.lab.lookups import Lookup, lookup_of_shards
from neuroshard_pipeline.lab.params import lab_values
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.table import REUSE_BIN_EDGES, Shard

ID_BYTES = 8  # FBGEMM takes int64 ids and offsets
STATE_BYTES = 4  # optimizer state is fp32
WEIGHT_BYTES = 4  # weights of ids are fp32
L2_SECTOR = 32  # bytes of the smallest transfer between L2 and an SM (CUDA programming guide)
HBM_BURST = 64  # bytes of the smallest transfer between HBM and L2 on A100 and H100
WARPS_PER_SM = 64  # resident warps of an SM of V100, A100 and H100 (CUDA programming guide, compute capabilities)
NUMBERS_PER_WARP = 128  # FBGEMM: each of the 32 threads of a warp reads 4 numbers of a row at once
IDS_PER_WARP = 32  # FBGEMM: a row with more ids is reduced by a block of threads (max_segment_length_per_warp)
IDS_PER_BLOCK = 1024  # FBGEMM: a row with more ids is reduced by several blocks (max_segment_length_per_cta)
_FIRST_HOT_BIN = REUSE_BIN_EDGES.index(IDS_PER_WARP) + 1

#: Optimizer state of a row, in numbers: for the row as a whole, and for each of its columns.
_STATES = {"none": (0, 0), "sgd": (0, 0), "rowwise_adagrad": (1, 0), "adagrad": (0, 1), "adam": (0, 2)}


class DeviceParams(Parameters):
    """A GPU, as its data sheet describes it.

    Attributes:
        hbm_gb_per_s: bandwidth of the GPU memory, in 1e9 bytes per second.
        l2_mib: size of the L2 cache for data that all SMs read. If L2 consists of two halves, this is the size of one
            half, because each half keeps a copy of such data for its own SMs.
        l2_bytes_per_clock: bytes that L2 delivers per clock.
        sms: number of streaming multiprocessors.
        clock_ghz: boost clock.
        host_gb_per_s: bandwidth of the link to the host, per direction.
    """

    hbm_gb_per_s: float = Field(gt=0)
    l2_mib: float = Field(gt=0)
    l2_bytes_per_clock: float = Field(gt=0)
    sms: int = Field(ge=1)
    clock_ghz: float = Field(gt=0)
    host_gb_per_s: float = Field(gt=0)


class KernelParams(Parameters):
    """FBGEMM's kernels on any GPU; benchmarks/lab/fit_device.py has the range of each number and its reason.

    Attributes:
        forward_launch_us: shortest time of the forward kernel.
        backward_launch_us: shortest time of all backward kernels together.
        hbm_efficiency: share of the HBM bandwidth that all transfers except the update reach.
        update_efficiency: share of the HBM bandwidth that reading and writing rows and state reaches.
        l2_efficiency: share of the L2 bandwidth that all transfers reach.
        bag_latency_us: time of a bag besides its ids.
        row_latency_us: time of one id of a bag if L2 holds its row.
        miss_latency_us: further time of one id if HBM holds its row.
        wide_row_share: share of the row latency that every further 128 numbers of a row add; a warp reads 128 numbers
            at once.
        sort_bytes_per_id: bytes that sorting moves per id.
        hot_row_us: time during which a block of threads for a hot row occupies an SM.
        weight_gradient_factor: time of the gradient of the ids' weights, divided by that of the forward kernel without
            its launch.
        host_efficiency: share of the host link's bandwidth that transfers of rows reach.
        cache_fetch_share: share of a batch's distinct rows that come from the host if the cache has room for all rows.
        cache_evict_share: what is added to `cache_fetch_share` if the cache has room for no rows; includes writing rows
            back. In between, the added share falls linearly with the share of all rows that the cache has room for.
    """

    forward_launch_us: float = Field(ge=0)
    backward_launch_us: float = Field(ge=0)
    hbm_efficiency: float = Field(gt=0, le=1)
    update_efficiency: float = Field(gt=0, le=1)
    l2_efficiency: float = Field(gt=0, le=1)
    bag_latency_us: float = Field(ge=0)
    row_latency_us: float = Field(ge=0)
    miss_latency_us: float = Field(ge=0)
    wide_row_share: float = Field(ge=0)
    sort_bytes_per_id: float = Field(ge=0)
    hot_row_us: float = Field(ge=0)
    weight_gradient_factor: float = Field(ge=0)
    host_efficiency: float = Field(gt=0, le=1)
    cache_fetch_share: float = Field(ge=0)
    cache_evict_share: float = Field(ge=0)


class LookupTime(NamedTuple):
    """Modelled times of one fused lookup in microseconds, and what they consist of."""

    forward_us: float
    backward_us: float
    forward_parts: dict[str, float]
    backward_parts: dict[str, float]


class ModelledDevice(Parameters):
    """A modelled GPU: its data sheet and the kernels that it runs."""

    device: DeviceParams
    kernels: KernelParams

    def time(self, lookup: Lookup) -> LookupTime:
        """Time of one fused lookup, forward and backward."""
        missed = missed_reads(lookup.rows_of_bin, lookup.ids_of_bin, lookup.row_bytes, self.device.l2_mib * 2**20)
        forward = self._forward_parts(lookup, missed)
        backward = self._backward_parts(lookup, forward)
        bound = max(forward["hbm"], forward["l2"], forward["latency"])
        forward_us = forward["launch"] + bound + forward["host"]
        return LookupTime(forward_us, sum(backward.values()), forward, backward)

    def _forward_parts(self, lookup: Lookup, missed: FloatArray) -> dict[str, float]:
        streamed = (ID_BYTES * (lookup.ids + lookup.bags) + lookup.bags * lookup.dims * lookup.output_bytes).sum()
        if lookup.weighted:
            streamed += (WEIGHT_BYTES * lookup.ids).sum()
        on_device = float(lookup.placement != "managed")
        hbm = streamed + on_device * (missed * _whole(lookup.row_bytes, HBM_BURST)).sum()
        l2 = streamed + (lookup.ids * _whole(lookup.row_bytes, L2_SECTOR)).sum()
        return {
            "launch": self.kernels.forward_launch_us,
            "hbm": self._hbm_us(hbm),
            "l2": self._l2_us(l2),
            "latency": self._latency_us(lookup, missed),
            "host": self.host_link_us((self._fetched_rows(lookup) * lookup.row_bytes).sum()),
        }

    def _backward_parts(self, lookup: Lookup, forward: dict[str, float]) -> dict[str, float]:
        kernels, rows = self.kernels, lookup.unique_rows
        sort_us = self._hbm_us(kernels.sort_bytes_per_id * lookup.ids.sum())
        states_of_row, states_of_weight = _STATES[lookup.optimizer]
        state_of_weights = STATE_BYTES * states_of_weight * lookup.dims
        state = STATE_BYTES * states_of_row + state_of_weights
        has_update = float(lookup.optimizer != "none")
        updated = has_update * 2 * rows * (_whole(lookup.row_bytes, L2_SECTOR) + _whole(state, L2_SECTOR))
        in_host = state_of_weights if lookup.placement == "managed_caching" else lookup.row_bytes + state_of_weights
        crossing = float(lookup.placement != "device") * has_update * rows * in_host
        weights_us = 0.0
        if lookup.weighted:
            kernel_us = max(forward["hbm"], forward["l2"], forward["latency"])
            weights_us = sort_us + kernels.weight_gradient_factor * kernel_us
        return {
            "launch": kernels.backward_launch_us,
            "sort": sort_us,
            "reduce": max(self._gradients_us(lookup), kernels.hot_row_us * hot_blocks(lookup) / self.device.sms),
            "update": self._hbm_us(updated.sum()) * kernels.hbm_efficiency / kernels.update_efficiency,
            "weights": weights_us,
            "host": self.host_link_us(crossing.sum()),
        }

    def _gradients_us(self, lookup: Lookup) -> float:
        """Time to read, for every id, the gradient of its bag. Ids are sorted by row, so bags are in random order."""
        bag_bytes = _whole(lookup.dims * lookup.output_bytes, L2_SECTOR)
        all_bytes = lookup.bags * bag_bytes
        missed_share = np.maximum(1.0 - self.device.l2_mib * 2**20 / all_bytes, 0.0)
        first = np.minimum(lookup.bags, lookup.ids)
        hbm = (bag_bytes * (first + (lookup.ids - first) * missed_share)).sum()
        return max(self._hbm_us(hbm), self._l2_us((lookup.ids * bag_bytes).sum()))

    def _latency_us(self, lookup: Lookup, missed: FloatArray) -> float:
        """Time of all bags if memory had no bandwidth limit. The rows of the last bag come from HBM."""
        kernels = self.kernels
        further_reads = np.maximum(np.ceil(lookup.dims / NUMBERS_PER_WARP) - 1.0, 0.0)
        row_us = kernels.row_latency_us * (1.0 + kernels.wide_row_share * further_reads)
        of_bags = lookup.bags * kernels.bag_latency_us + lookup.ids * row_us + missed * kernels.miss_latency_us
        last_bag = kernels.bag_latency_us + (row_us + kernels.miss_latency_us) * lookup.ids / lookup.bags
        return float(of_bags.sum()) / (WARPS_PER_SM * self.device.sms) + float(last_bag.max())

    def _fetched_rows(self, lookup: Lookup) -> FloatArray:
        """Rows that the forward pass reads from the host, or writes back to it from the cache, (S,)."""
        rows = lookup.unique_rows
        if lookup.placement == "managed":  # half of the repeated reads are merged with a read under way
            return (lookup.ids + rows) / 2
        if lookup.placement == "managed_caching":
            kernels = self.kernels
            return rows * (kernels.cache_fetch_share + (1.0 - lookup.cached_share) * kernels.cache_evict_share)
        return np.zeros(len(rows))

    def _hbm_us(self, num_bytes: float) -> float:
        return float(num_bytes) / (1e3 * self.device.hbm_gb_per_s * self.kernels.hbm_efficiency)

    def _l2_us(self, num_bytes: float) -> float:
        bandwidth = self.device.l2_bytes_per_clock * self.device.clock_ghz
        return float(num_bytes) / (1e3 * bandwidth * self.kernels.l2_efficiency)

    def streamed_us(self, num_bytes: FloatArray | float) -> FloatArray:
        """Time in microseconds in which streaming kernels read or write `num_bytes` of GPU memory."""
        return np.asarray(num_bytes / (self.device.hbm_gb_per_s * self.kernels.hbm_efficiency * 1e3))

    def host_link_us(self, num_bytes: float) -> float:
        """Time in microseconds in which `num_bytes` cross the link to the host in one direction."""
        return float(num_bytes) / (1e3 * self.device.host_gb_per_s * self.kernels.host_efficiency)


def missed_reads(rows_of_bin: FloatArray, ids_of_bin: FloatArray, row_bytes: FloatArray, l2_bytes: float) -> FloatArray:
    """Reads of rows that miss L2 if L2 keeps the most frequently read rows of the current table, (S,).

    The forward kernel works through the tables one after another, so that each table has L2 for itself. The first read
    of a row always misses.
    """
    size = rows_of_bin * row_bytes[:, None]  # (S, 17)
    hotter = np.cumsum(size[:, ::-1], axis=1)[:, ::-1] - size  # bytes of the rows of all hotter bins
    kept_share = np.clip((l2_bytes - hotter) / np.maximum(size, 1e-9), 0.0, 1.0)
    repeated = np.maximum(ids_of_bin - rows_of_bin, 0.0)
    return np.asarray((ids_of_bin - kept_share * repeated).sum(axis=1))


def hot_blocks(lookup: Lookup) -> float:
    """Blocks of threads for the gradients of rows with more than 32 ids: one per 1024 ids, at least one per row."""
    rows = lookup.rows_of_bin[:, _FIRST_HOT_BIN:]
    return float(np.maximum(rows, lookup.ids_of_bin[:, _FIRST_HOT_BIN:] / IDS_PER_BLOCK).sum())


def _whole(num_bytes: FloatArray, unit: int) -> FloatArray:
    return np.ceil(num_bytes / unit) * unit


def device_names() -> tuple[str, ...]:
    """Names of the GPUs in conf/base/parameters_lab.yml."""
    return tuple(lab_values()["devices"])


def modelled_device(name: str) -> ModelledDevice:
    """A GPU of conf/base/parameters_lab.yml.

    Raises:
        MeasurementError: there is no GPU of that name.
    """
    values = lab_values()
    if name not in values["devices"]:
        raise MeasurementError(
            f"the lab has no device {name!r}{did_you_mean(name, values['devices'])}; "
            f"lab.devices has {', '.join(values['devices'])}"
        )
    return ModelledDevice(device=DeviceParams(**values["devices"][name]), kernels=KernelParams(**values["kernels"]))


def lookup_cost_ms(
    shards: Sequence[Shard], batch_size: int, optimizer: str, device: ModelledDevice
) -> tuple[float, float]:
    """Modelled forward and backward milliseconds of the fused lookup of the shards of one rank.

    Args:
        shards: at least one shard, as for `lookup_of_shards`.
        batch_size: samples whose ids are looked up.
        optimizer: one of `tables.task.OPTIMIZERS`.
        device: the GPU, see `modelled_device`.
    """
    time = device.time(lookup_of_shards(shards, batch_size, optimizer))
    return time.forward_us / 1e3, time.backward_us / 1e3
