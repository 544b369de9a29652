"""Times collectives of torch.distributed between real processes: forward and backward all-to-all, and reductions.

Reductions are reduce_scatter, all_gather and all_reduce. A visit is one measurement of a sample; it repeats the
collective several times.

Shapes: W ranks, B global batch size, b[r] number of samples that rank r trains on, D[r] total width of r's shards.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import final

import torch
import torch.distributed as dist

from neuroshard_pipeline.measurement.collective_start import DeviceStart, HostStart
from neuroshard_pipeline.measurement.cuda import require_devices
from neuroshard_pipeline.measurement.host_clock import HostClock, Place
from neuroshard_pipeline.measurement.params import CommMeasureParams
from neuroshard_pipeline.measurement.timing import Timing
from neuroshard_pipeline.tables.samples import CollectiveSample, CommSample, Reduction, ReductionSample
from neuroshard_pipeline.workers import settle_on_core

_BYTES_PER_FLOAT = 4
#: Backend of the campaign → backend of the process group. With `nccl`, tensors on the CPU go through gloo.
GROUP_BACKENDS = {"gloo": "gloo", "nccl": "cpu:gloo,cuda:nccl"}


def batch_split(batch_size: int, world_size: int) -> tuple[int, ...]:
    """Number of samples per rank; the first ranks get one more if `batch_size` does not divide evenly."""
    share, rest = divmod(batch_size, world_size)
    return tuple(share + (rank < rest) for rank in range(world_size))


def forward_splits(sample: CommSample, rank: int) -> tuple[list[int], list[int]]:
    """Numbers of floats that `rank` sends to every rank, and receives from every rank, in the forward all-to-all.

    The rank has pooled its own D[rank] columns for the whole batch and sends each rank j the b[j] samples that j trains
    on. It receives all D[j] columns of its own b[rank] samples. The backward all-to-all is the transpose.
    """
    split = batch_split(sample.batch_size, sample.world_size)
    send = [size * sample.dim_sums[rank] for size in split]
    receive = [split[rank] * dim_sum for dim_sum in sample.dim_sums]
    return send, receive


def reduction(collective: Reduction, buffer: torch.Tensor, share: torch.Tensor) -> Callable[[], object]:
    """The call of a reduction, as TorchRec and DistributedDataParallel make it.

    Args:
        collective: which one.
        buffer: the whole buffer: the input of reduce_scatter, the output of all_gather, both for all_reduce.
        share: the rank's share of it: the output of reduce_scatter, the input of all_gather.
    """
    calls: dict[Reduction, Callable[[], object]] = {
        "reduce_scatter": partial(dist.reduce_scatter_single, share, buffer),
        "all_gather": partial(dist.all_gather_single, buffer, share),
        "all_reduce": partial(dist.all_reduce, buffer),
    }
    return calls[collective]


@final
class CollectiveBench:
    """One rank of the bench of collectives; all ranks must measure the same samples together.

    The ranks agree on a common start on rank 0's monotonic clock (`HostClock`), wait until that start plus their start
    skew, and enter the collective. The cost of a rank is the time from its own start, after its skew, to the end of the
    collective (`collective_start`). With `nccl`, a rank uses the GPU whose number is its local rank; the agreement on
    the start still goes through gloo.

    Raises:
        MeasurementError: `nccl` finds fewer GPUs than ranks on this host.
    """

    def __init__(
        self, rank: int, world_size: int, params: CommMeasureParams, store: dist.Store, place: Place | None = None
    ) -> None:
        place = place or Place(rank, world_size)
        self._device = _settle(params.backend, place)
        torch.set_num_threads(params.threads)
        self._params = params
        self._rank = rank
        self._hosts = -(-world_size // place.ranks_here)
        timeout = timedelta(seconds=params.timeout_s)
        group = GROUP_BACKENDS[params.backend]
        dist.init_process_group(group, store=store, rank=rank, world_size=world_size, timeout=timeout)
        floats = params.buffer_bytes // _BYTES_PER_FLOAT
        # An all_reduce overwrites its buffer with the sums; other values than zeros would grow from call to call.
        # `torch.zeros` alone may get its memory from the system only when the first collective uses it.
        self._send = torch.empty(floats, device=self._device).zero_()
        self._receive = torch.empty(floats, device=self._device).zero_()
        self._clock = HostClock(rank, world_size, store)
        self._start = DeviceStart(self._device) if self._device.type == "cuda" else HostStart()

    def measure(self, samples: Sequence[CollectiveSample]) -> list[Timing]:
        """Measure every sample once, in the given order. A sample that these ranks cannot run gets an error instead."""
        timings = []
        self._clock.synchronise()
        self._start.calibrate()
        for sample in samples:
            start = time.perf_counter()
            error = self._problem(sample)
            if error:
                forward_ms, backward_ms = float("nan"), float("nan")
            elif isinstance(sample, ReductionSample):
                forward_ms, backward_ms = self._visit_reduction(sample)
            else:
                forward_ms, backward_ms = self._visit(sample)
            seconds = time.perf_counter() - start
            timings.append(Timing(forward_ms, backward_ms, seconds, error, permanent=error is not None))
        return timings

    def _visit(self, sample: CommSample) -> tuple[float, float]:
        """Forward and backward cost of one visit, ms.

        The times at which ranks leave one collective affect the cost of the next one. The start skew of the forward
        collective must not affect the backward cost, because the backward cost of a plan is measured before its start
        skew is known. All backward iterations therefore come first, after an untimed one that absorbs earlier skews.
        """
        skew_ms = sample.start_skew_ms[self._rank]
        iterations = range(self._params.warmup_iterations + self._params.iterations)
        self._timed(sample, backward=True, skew_ms=0.0)
        backward_ms = [self._timed(sample, backward=True, skew_ms=0.0) for _ in iterations]
        forward_ms = [self._timed(sample, backward=False, skew_ms=skew_ms) for _ in iterations]
        timed = list(zip(forward_ms, backward_ms, strict=True))
        return self._params.of_visit(timed[self._params.warmup_iterations :])

    def _visit_reduction(self, sample: ReductionSample) -> tuple[float, float]:
        """Cost of one visit in ms, returned as the forward cost; the backward cost is 0."""
        floats = sample.size_bytes // _BYTES_PER_FLOAT
        buffer, share = self._receive[:floats], self._send[: floats // sample.world_size]
        exchange = reduction(sample.collective, buffer, share)
        iterations = range(self._params.warmup_iterations + self._params.iterations)
        timed = [(self._start.timed_ms(exchange, self._agree_on_start(), 0.0), 0.0) for _ in iterations]
        return self._params.of_visit(timed[self._params.warmup_iterations :])

    def _timed(self, sample: CommSample, backward: bool, skew_ms: float) -> float:
        """Cost of one all-to-all, ms from this rank's intended start."""
        outgoing, incoming = self._splits(sample, backward)
        send, receive = self._send[: sum(outgoing)], self._receive[: sum(incoming)]
        start_ns = self._agree_on_start()
        exchange = partial(dist.all_to_all_single, receive, send, incoming, outgoing)
        return self._start.timed_ms(exchange, start_ns, skew_ms)

    def _splits(self, sample: CommSample, backward: bool) -> tuple[list[int], list[int]]:
        send, receive = forward_splits(sample, self._rank)
        return (receive, send) if backward else (send, receive)

    def _agree_on_start(self) -> int:
        """A common start shortly after the last rank has called this, in ns of this host's clock."""
        now = torch.tensor([time.monotonic_ns() + self._clock.behind_ns])
        dist.all_reduce(now, op=dist.ReduceOp.MAX)
        return int(now.item()) - self._clock.behind_ns + round(self._params.start_margin_ms * 1e6)

    def _problem(self, sample: CollectiveSample) -> str | None:
        """Why the sample cannot run, or None. All ranks get the same answer, as a missing rank would block the rest."""
        if isinstance(sample, ReductionSample):
            needed = sample.size_bytes
            if sample.hosts != self._hosts:
                return f"the sample needs {sample.hosts} hosts, and {sample.world_size} ranks run on {self._hosts}"
            if needed % (sample.world_size * _BYTES_PER_FLOAT):
                return f"{needed} bytes cannot be split into {sample.world_size} equal shares of whole floats"
        else:
            split = batch_split(sample.batch_size, sample.world_size)
            largest = max(sample.batch_size * max(sample.dim_sums), max(split) * sum(sample.dim_sums))
            needed = _BYTES_PER_FLOAT * largest
        if needed <= self._params.buffer_bytes:
            return None
        return f"out of memory: a rank's buffer needs {needed} bytes, buffer_bytes is {self._params.buffer_bytes}"


def set_up_rank(
    rank: int, world_size: int, samples: Sequence[CollectiveSample], params: CommMeasureParams, store_file: str
) -> Callable[[Sequence[int]], list[Timing]]:
    """Build the bench of one local rank; the returned function measures samples by index."""
    bench = CollectiveBench(rank, world_size, params, dist.FileStore(store_file, world_size))
    return lambda indices: bench.measure([samples[index] for index in indices])


def _settle(backend: str, place: Place) -> torch.device:
    """The device of a rank. A rank on a GPU is not pinned to a core, because it also runs other threads."""
    if backend == "nccl":
        require_devices(backend, place.ranks_here)
        torch.cuda.set_device(place.local_rank)
        return torch.device("cuda", place.local_rank)
    settle_on_core(place.local_rank, place.ranks_here)
    return torch.device("cpu")
