"""Times FBGEMM's fused lookup on a CUDA device with CUDA events."""

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


@final
class FbgemmCudaBench(LookupBench):
    """Times lookups on one GPU; see `LookupBench`.

    With `cold_rows`, the L2 cache is filled with other data before the forward and before the backward pass, and every
    iteration moves the weights to the next part of the arena. With `warm`, neither happens.

    The GPU is idle when a timed part starts. A cost therefore includes the launch of the first kernel, and gaps if the
    host launches kernels more slowly than they run. This overhead is a constant of the host and matters for small
    samples only. `benchmarks/gpu/gpu_check.py` measures it (launch floor).

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
        cold = self._params.cache_treatment == "cold_rows"
        if cold:
            self._place(operator, sample, self._at)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self._prepare(cold)
        events[0].record()
        output = operator(ids, offsets)  # (B, D)
        events[1].record()
        gradient = self._gradient(output.shape)
        self._prepare(cold)
        events[2].record()
        output.backward(gradient)
        events[3].record()
        torch.cuda.synchronize(self._device)
        return events[0].elapsed_time(events[1]), events[2].elapsed_time(events[3])

    def _prepare(self, cold: bool) -> None:
        """Wait until the GPU is idle, and before that replace the content of the L2 cache if `cold`.

        To replace it, the GPU reads other data. If it wrote other data, it would have to move them from the cache to
        memory while the lookup is timed.
        """
        if cold:
            torch.sum(self._other_data, dim=0, out=self._sum)
        torch.cuda.synchronize(self._device)
