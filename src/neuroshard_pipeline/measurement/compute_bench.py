"""The bench that times FBGEMM lookups on the CPU, and the set-up of compute workers for every backend."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.cuda import needs_cuda
from neuroshard_pipeline.measurement.cuda_bench import FbgemmCudaBench
from neuroshard_pipeline.measurement.hardware import require_same_machine
from neuroshard_pipeline.measurement.lookup_bench import LookupBench
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.measurement.timing import Timing
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.workers import settle_on_core, settle_on_free_core

#: Maximum size, in bytes, of the ids that are kept between visits. It is enough for all tables of the default pool.
ID_CACHE_BYTES = 2**30


@final
class FbgemmCpuBench(LookupBench):
    """Times lookups on the CPU by the wall clock; see `LookupBench`."""

    def __init__(self, params: ComputeMeasureParams, seed: int) -> None:
        super().__init__(params, seed, torch.device("cpu"), ID_CACHE_BYTES)

    def _iterate(
        self, operator: Any, sample: ComputeSample, ids: torch.Tensor, offsets: torch.Tensor
    ) -> tuple[float, float]:
        if self._params.cache_treatment == "cold_rows":
            self._place(operator, sample, self._at)
        start = time.perf_counter_ns()
        output = operator(ids, offsets)  # (B, D)
        middle = time.perf_counter_ns()
        gradient = self._gradient(output.shape)
        resumed = time.perf_counter_ns()
        output.backward(gradient)
        end = time.perf_counter_ns()
        return (middle - start) / 1e6, (end - resumed) / 1e6


def make_bench(params: ComputeMeasureParams, seed: int, worker: int) -> LookupBench:
    """The bench of a backend; `worker` is the number of the GPU for `fbgemm_cuda`.

    Raises:
        MeasurementError: the backend measures nothing, or the device, FBGEMM or memory for the arena is missing.
    """
    if params.backend == "fbgemm_cuda":
        return FbgemmCudaBench(params, seed, worker)
    if params.backend == "fbgemm_cpu":
        return FbgemmCpuBench(params, seed)
    raise MeasurementError(f"backend {params.backend} measures nothing; use fbgemm_cpu or fbgemm_cuda")


def set_up_worker(
    _: int,
    worker: int,
    samples: Sequence[ComputeSample],
    params: ComputeMeasureParams,
    seed: int,
    machine: Mapping[str, object],
) -> Callable[[Sequence[int]], list[Timing]]:
    """Build the bench of one worker process; the returned function measures samples of the campaign by index.

    With the engine `local`, the number of the worker selects the core or the GPU. `machine` is the fingerprint of the
    host that runs the campaign; on a cluster, the worker's host must have the same one.

    Raises:
        MeasurementError: the host differs, or the bench cannot be built.
    """
    on_cluster = params.engine == "ray"
    if on_cluster:
        require_same_machine(params.backend, machine)
        params, gpu = params.model_copy(update={"workers": 1}), 0  # Ray shows a worker only its own GPU
    else:
        gpu = worker
    if not needs_cuda(params.backend):  # a GPU worker has several threads, which need several cores
        settle_on_free_core() if on_cluster else settle_on_core(worker)
    bench = make_bench(params, seed, gpu)
    gc.freeze()  # objects that live as long as the worker need not be collected between chunks
    return lambda indices: bench.measure([samples[index] for index in indices])
