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

Bytes and counts are those of `lab.lookup_work`, which do not depend on the kernels' numbers.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import MeasurementError, did_you_mean
from neuroshard_pipeline.lab.lookup_work import LookupWork, lookup_work
from neuroshard_pipeline.lab.lookups import Lookup, lookup_of_shards
from neuroshard_pipeline.lab.params import lab_values
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.table import Shard

WARPS_PER_SM = 64  # resident warps of an SM of V100, A100 and H100 (CUDA programming guide, compute capabilities)


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
    """Modelled times of a fused lookup in microseconds, and what they consist of; of several lookups, arrays (...)."""

    forward_us: Any
    backward_us: Any
    forward_parts: dict[str, Any]
    backward_parts: dict[str, Any]


class ModelledDevice(Parameters):
    """A modelled GPU: its data sheet and the kernels that it runs."""

    device: DeviceParams
    kernels: KernelParams

    def time(self, lookup: Lookup) -> LookupTime:
        """Time of one fused lookup, forward and backward."""
        return self.time_of_work(lookup_work(lookup, self.device.l2_mib * 2**20))

    def time_of_work(self, work: LookupWork) -> LookupTime:
        """Times (...) of any number of fused lookups, from their work on this GPU (`lookup_work`)."""
        forward = self._forward_parts(work)
        kernel = np.maximum(np.maximum(forward["hbm"], forward["l2"]), forward["latency"])
        backward = self._backward_parts(work, kernel)
        return LookupTime(forward["launch"] + kernel + forward["host"], sum(backward.values()), forward, backward)

    def _forward_parts(self, work: LookupWork) -> dict[str, Any]:
        kernels = self.kernels
        rows = work.cached_row_bytes * (kernels.cache_fetch_share + work.uncached_share * kernels.cache_evict_share)
        return {
            "launch": kernels.forward_launch_us,
            "hbm": self._hbm_us(work.hbm_bytes),
            "l2": self._l2_us(work.l2_bytes),
            "latency": self._latency_us(work),
            "host": self.host_link_us(work.host_row_bytes + rows),
        }

    def _backward_parts(self, work: LookupWork, kernel_us: Any) -> dict[str, Any]:
        """`kernel_us` is the time of the forward kernel without its launch."""
        kernels = self.kernels
        sort_us = self._hbm_us(kernels.sort_bytes_per_id * work.ids)
        gradients_us = np.maximum(self._hbm_us(work.gradient_hbm_bytes), self._l2_us(work.gradient_l2_bytes))
        return {
            "launch": kernels.backward_launch_us,
            "sort": sort_us,
            "reduce": np.maximum(gradients_us, kernels.hot_row_us * work.hot_blocks / self.device.sms),
            "update": self._hbm_us(work.updated_bytes) * kernels.hbm_efficiency / kernels.update_efficiency,
            "weights": work.is_weighted * (sort_us + kernels.weight_gradient_factor * kernel_us),
            "host": self.host_link_us(work.updated_host_bytes),
        }

    def _latency_us(self, work: LookupWork) -> Any:
        """Time of all bags if memory had no bandwidth limit. The rows of the last bag come from HBM."""
        kernels = self.kernels
        of_ids = work.ids + kernels.wide_row_share * work.further_reads
        of_bags = work.bags * kernels.bag_latency_us + of_ids * kernels.row_latency_us
        of_bags = of_bags + work.missed_reads * kernels.miss_latency_us
        row_us = kernels.row_latency_us * (1.0 + kernels.wide_row_share * work.reads_per_row)
        last_us = ((row_us + kernels.miss_latency_us) * work.ids_per_bag).max(axis=-1) + kernels.bag_latency_us
        return of_bags / (WARPS_PER_SM * self.device.sms) + last_us

    def _hbm_us(self, num_bytes: Any) -> Any:
        return num_bytes / (1e3 * self.device.hbm_gb_per_s * self.kernels.hbm_efficiency)

    def _l2_us(self, num_bytes: Any) -> Any:
        bandwidth = self.device.l2_bytes_per_clock * self.device.clock_ghz
        return num_bytes / (1e3 * bandwidth * self.kernels.l2_efficiency)

    def streamed_us(self, num_bytes: FloatArray | float) -> FloatArray:
        """Time in microseconds in which streaming kernels read or write `num_bytes` of GPU memory."""
        return np.asarray(num_bytes / (self.device.hbm_gb_per_s * self.kernels.hbm_efficiency * 1e3))

    def host_link_us(self, num_bytes: Any) -> Any:
        """Time in microseconds in which `num_bytes` cross the link to the host in one direction."""
        return num_bytes / (1e3 * self.device.host_gb_per_s * self.kernels.host_efficiency)


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
