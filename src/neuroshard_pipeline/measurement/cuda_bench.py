"""Times FBGEMM's fused lookup on a CUDA device with CUDA events."""

from collections.abc import Callable
from typing import Any, final

import torch

from neuroshard_pipeline.measurement.cuda import require_devices
from neuroshard_pipeline.measurement.lookup_bench import LookupBench
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.tables.samples import ComputeSample

#: Bytes of the buffer whose reading replaces the content of the L2 cache: four times the largest one (B200: 126 MB).
FLUSH_BYTES = 2**29
#: Share of the GPU's memory for ids that are kept between visits. All other ids are read from files or drawn again.
KEPT_IDS_SHARE = 1 / 16
#: Clock cycles for which the GPU spins before a timed part: a millisecond.
SPIN_CYCLES = 2**21


@final
class FbgemmCudaBench(LookupBench):
    """Times lookups on one GPU; see `LookupBench`.

    With `cold_rows`, the L2 cache is filled with other data before the forward and before the backward pass, and every
    iteration moves the weights to the next part of the arena. With `warm`, neither happens.

    A cost is the time from the start of the first kernel to the end of the last one. Before a timed part, the GPU spins
    for a millisecond, so that the host has launched all kernels when the first one starts. The time of the host's
    calls, which a GPU without other work would wait for, is no part of a cost; `benchmarks/gpu/gpu_check.py` measures
    it (launch floor).

    Raises:
        MeasurementError: there are too few GPUs for all workers; see also `LookupBench`.
    """

    def __init__(self, params: ComputeMeasureParams, seed: int, index: int) -> None:
        require_devices(params.backend, max(params.workers, index + 1))
        torch.cuda.set_device(index)
        device = torch.device("cuda", index)
        _, device_bytes = torch.cuda.mem_get_info(device)
        super().__init__(params, seed, device, round(KEPT_IDS_SHARE * device_bytes))
        self._other_data = torch.zeros(FLUSH_BYTES // 4, device=device)
        self._sum = torch.zeros((), device=device)

    def _iterate(
        self, operator: Any, sample: ComputeSample, ids: torch.Tensor, offsets: torch.Tensor
    ) -> tuple[float, float]:
        if self._params.cache_treatment == "cold_rows":
            self._place(operator, sample, self._at)
        output, forward_ms = self._timed(lambda: operator(ids, offsets))  # (B, D)
        gradient = self._gradient(output.shape)
        _, backward_ms = self._timed(lambda: output.backward(gradient))
        return forward_ms, backward_ms

    def _timed(self, launch: Callable[[], Any]) -> tuple[Any, float]:
        """The result of `launch`, and the time of the kernels that it launches, ms.

        With `cold_rows`, the GPU first reads other data, which replace the content of the L2 cache. If it wrote other
        data, it would have to move them from the cache to memory while the lookup is timed.
        """
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self._device)
        if self._params.cache_treatment == "cold_rows":
            torch.sum(self._other_data, dim=0, out=self._sum)
        torch.cuda._sleep(SPIN_CYCLES)
        begin.record()
        result = launch()
        end.record()
        torch.cuda.synchronize(self._device)
        return result, begin.elapsed_time(end)
