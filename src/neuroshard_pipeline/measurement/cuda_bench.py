"""Times FBGEMM's fused lookup on a CUDA device with CUDA events."""

from typing import Any, final

import torch

from neuroshard_pipeline.measurement.cuda import require_devices
from neuroshard_pipeline.measurement.lookup_bench import LookupBench
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.tables.samples import ComputeSample

#: Bytes written before every timed part of an iteration: twenty times the L2 cache of an H200, so that no weights stay
#: in the cache. The write keeps the device busy for a fifth of a millisecond. Meanwhile the host launches the lookup,
#: as in training, where the host runs ahead of the device.
FLUSH_BYTES = 2**30
_MAX_ID_CACHE_BYTES = 2**34


@final
class FbgemmCudaBench(LookupBench):
    """Times lookups on one GPU; see `LookupBench`.

    With `cold_rows` the L2 cache is flushed before the forward and before the backward pass, and every iteration moves
    the weights to the next part of the arena. With `warm` neither happens, and the measured costs include the time
    that the device waits for the launch of a kernel.

    Raises:
        MeasurementError: the device does not exist; see also `LookupBench`.
    """

    def __init__(self, params: ComputeMeasureParams, seed: int, index: int) -> None:
        require_devices(params.backend, max(params.workers, index + 1))
        torch.cuda.set_device(index)
        device = torch.device("cuda", index)
        # Kept ids must leave memory free: FBGEMM allocates an operator's weights before the arena replaces them.
        free_bytes, _ = torch.cuda.mem_get_info(device)
        id_cache_bytes = min(_MAX_ID_CACHE_BYTES, free_bytes // 8)
        super().__init__(params, seed, device, id_cache_bytes)
        self._flushed = torch.zeros(FLUSH_BYTES // 4, device=device)

    def _iterate(
        self, operator: Any, sample: ComputeSample, ids: torch.Tensor, offsets: torch.Tensor
    ) -> tuple[float, float]:
        cold = self._params.cache_treatment == "cold_rows"
        if cold:
            self._place(operator, sample, self._at)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        torch.cuda.synchronize(self._device)
        self._flush(cold)
        events[0].record()
        output = operator(ids, offsets)  # (B, D)
        events[1].record()
        gradient = self._gradient(output.shape)
        self._flush(cold)
        events[2].record()
        output.backward(gradient)
        events[3].record()
        torch.cuda.synchronize(self._device)
        return events[0].elapsed_time(events[1]), events[2].elapsed_time(events[3])

    def _flush(self, cold: bool) -> None:
        """Overwrite the L2 cache if `cold`."""
        if cold:
            self._flushed.zero_()
