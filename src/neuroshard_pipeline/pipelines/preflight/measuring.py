"""Checks whether this machine has the kernels, GPUs, memory and extras (optional dependencies) that a run needs."""

import importlib.util
from collections.abc import Callable

from neuroshard_pipeline.host import available_memory_bytes
from neuroshard_pipeline.measurement import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.cuda import ALTERNATIVES
from neuroshard_pipeline.pipelines.preflight.run import PlannedRun, Problems

#: Maps the name of a field to the name of a parameter, such as `backend` to `measure.compute.backend`.
Named = Callable[[str], str]

#: Maps each extra that `extra_problems` can check to the module that shows whether the extra is installed.
EXTRAS = {"torchrec": "torchrec", "cluster": "ray"}


def compute_problems(run: PlannedRun, named: Named, params: ComputeMeasureParams, sample_bytes: int = 0) -> Problems:
    """Problems of a campaign that runs lookups.

    The weights of a sample have at most `sample_bytes`, 0 if they are not known.
    """
    backend = run.setting(named("backend"), params.backend)
    arena = run.setting(named("arena_bytes"), params.arena_bytes)
    on_gpu = params.backend == "fbgemm_cuda"
    if importlib.util.find_spec("fbgemm_gpu") is None:
        yield f"{backend} needs fbgemm_gpu; install the project with the extra [{'cuda' if on_gpu else 'cpu'}]"
    if params.engine == "ray":
        yield from extra_problems("cluster", run.setting(named("engine"), "ray"))
    workers = params.workers if params.engine == "local" else 1
    if on_gpu:
        yield from gpu_problems(backend, params.backend, workers, params.arena_bytes)
    else:
        yield from _memory_problems(arena, f"all arenas (workers: {workers})", workers * params.arena_bytes)
    if sample_bytes > params.arena_bytes:
        yield f"{arena}: samples may have {sample_bytes} bytes of weights; use at least this number"


def comm_problems(run: PlannedRun, named: Named, params: CommMeasureParams, world_sizes: set[int]) -> Problems:
    """Problems of a campaign that runs collectives of `world_sizes` ranks."""
    backend, local = run.setting(named("backend"), params.backend), params.local_world_size
    for size in sorted(world_sizes):
        if local is not None and size > local and size % local:
            yield (
                f"{run.setting(named('local_world_size'), local)}: world size {size} is not a multiple of it; choose "
                "another local_world_size or other world sizes"
            )
    ranks = max((size if local is None else min(size, local) for size in world_sizes), default=1)
    needed = 2 * params.buffer_bytes
    if params.backend == "nccl":
        yield from gpu_problems(backend, params.backend, ranks, needed)
    else:
        buffers = run.setting(named("buffer_bytes"), params.buffer_bytes)
        yield from _memory_problems(buffers, f"all buffers (ranks: {ranks})", ranks * needed)


def extra_problems(extra: str, needed_by: str) -> Problems:
    """The problem of an extra that is not installed."""
    if importlib.util.find_spec(EXTRAS[extra]) is None:
        yield f"{needed_by} needs {EXTRAS[extra]}, which is missing; install the extra [{extra}] as the docs describe"


def gpu_problems(setting: str, backend: str, number: int, needed_bytes: int = 0) -> Problems:
    """Problems of a program that needs `number` GPUs, one per process, each with some memory."""
    import torch

    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else f" (torch {torch.__version__} lacks CUDA; install the extra [cuda])"
        yield f"{setting}: torch finds no CUDA device{build}; use {ALTERNATIVES[backend]}"
        return
    available = torch.cuda.device_count()
    if available < number:
        yield f"{setting} needs {number} CUDA devices, one per process, but there are {available}"
    for index in range(min(number, available)):
        has = torch.cuda.get_device_properties(index).total_memory
        if has < needed_bytes:
            yield f"{setting}: CUDA device {index} has {has} bytes of memory, and {needed_bytes} are needed"


def _memory_problems(setting: str, purpose: str, needed_bytes: int) -> Problems:
    available = available_memory_bytes()
    if needed_bytes > available:
        yield (
            f"{setting}: {purpose} take {needed_bytes} bytes of memory, and this machine has {available} left; lower "
            "this parameter, or use a machine with more memory"
        )
