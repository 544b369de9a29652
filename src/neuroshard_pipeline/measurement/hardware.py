"""The machine that a campaign ran on."""

import platform
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import psutil

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.host import usable_cores
from neuroshard_pipeline.measurement.costs import CampaignSummary
from neuroshard_pipeline.measurement.cuda import device_facts, needs_cuda, require_devices
from neuroshard_pipeline.measurement.modelled import modelled_hardware, require_device
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.recording import RecordingParams, open_recording
from neuroshard_pipeline.measurement.topology import TopologyParams, require_topology

#: Where Linux describes the caches of the first core.
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_KIB_OR_MIB = re.compile(r"(\d+)([KM])")
_UNIT_BYTES = {"K": 2**10, "M": 2**20}

#: The arena (a worker's memory for weights) must be this many times as large as the last-level cache, so that a pass
#: over the arena evicts its first rows.
_COLD_ARENA = 4

#: Bytes of an array that a core copies, more than caches hold; most cores that copy at once; times that they copy.
_COPIED_BYTES, _COPYING_CORES, _COPIES = 2**27, 4, 9

_LIBRARIES = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy")


def fingerprint(backend: str) -> dict[str, object]:
    """Properties of this machine that affect a measurement: device, processor, cores, operating system and software.

    Args:
        backend: backend of the campaign; a GPU backend adds the GPU's model and memory and the CUDA version.

    Raises:
        MeasurementError: the backend needs a CUDA device and there is none.
    """
    facts = {
        "device": "cpu",
        "cpu_model": _cpu_model(),
        "cores": len(usable_cores()),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "libraries": _library_versions(),
    }
    if needs_cuda(backend):
        require_devices(backend, 1)
        facts |= device_facts()
    return facts


def require_same_machine(backend: str, machine: Mapping[str, object]) -> None:
    """Refuse to measure on a host that differs from the host that runs the campaign.

    Raises:
        MeasurementError: the hosts differ; the message names every difference.
    """
    here = fingerprint(backend)
    unlike = [f"{fact} {here.get(fact)}, not {there}" for fact, there in machine.items() if here.get(fact) != there]
    if unlike:
        raise MeasurementError(f"a host of this campaign has {'; '.join(unlike)}: measure with hosts of one kind only")


def describe_hardware(
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    compute_summary: CampaignSummary,
    comm_summary: CampaignSummary,
    recording: RecordingParams | None = None,
    topology: TopologyParams | None = None,
) -> dict[str, object]:
    """The content of the dataset `measure.hardware`, from the parameters and summaries of both campaigns.

    With the backend `recorded`, it includes the recording's card and hardware; with `modelled`, the recording's GPU;
    and with `topology`, the topology.
    """
    summaries = {"compute": compute_summary, "comm": comm_summary}
    facts: dict[str, object] = {
        **describe_machine(compute.backend),
        "compute_backend": compute.backend,
        "comm_backend": comm.backend,
        "comm_costs_are": comm.costs_are,
        **({"copy_ms_per_gib": copy_ms_per_gib()} if compute.backend == "fbgemm_cpu" else {}),
        "date": max((each.date for each in summaries.values() if each.date), default=None),
        "noise_floor": {name: each.noise_floor for name, each in summaries.items()},
        "other_programs": {name: each.other_programs for name, each in summaries.items()},
    }
    if comm.backend == "topology":
        facts["topology"] = require_topology(topology).facts
    elif comm.local_world_size is not None:
        facts["comm_local_world_size"] = comm.local_world_size
    if compute.backend == "recorded":
        card = open_recording(recording).card
        facts |= {**card["hardware"], "recording": card}
    elif compute.backend == "modelled":
        facts |= modelled_hardware(require_device(recording))
    return facts


def copy_ms_per_gib() -> float:
    """How long PyTorch on a core copies a GiB while other cores copy, too: the lower quartile of some times."""
    import torch

    threads, seconds = torch.get_num_threads(), []
    torch.set_num_threads(1)
    pairs = [torch.ones(2, _COPIED_BYTES // 4) for _ in range(min(len(usable_cores()), _COPYING_CORES))]
    with ThreadPoolExecutor(len(pairs)) as pool:
        for _ in range(_COPIES):
            start = time.perf_counter()
            list(pool.map(lambda pair: pair[0].copy_(pair[1]), pairs))
            seconds.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    return round(1000 * float(np.quantile(seconds, 0.25)) * 2**30 / _COPIED_BYTES, 1)


def describe_machine(backend: str) -> dict[str, object]:
    """The `fingerprint` of this machine, and the size of its last-level cache and of its memory in bytes."""
    memory_bytes = psutil.virtual_memory().total
    return {**fingerprint(backend), "last_level_cache_bytes": last_level_cache_bytes(), "memory_bytes": memory_bytes}


def last_level_cache_bytes(folder: Path = _CACHES) -> int | None:
    """Size of the largest cache of the first core, None if the system does not report it.

    On a virtual machine this is the size of the whole processor's cache, which all guests share. Linux describes the
    caches of a core in `folder`, in one file `index*/size` each.
    """
    sizes = [_KIB_OR_MIB.fullmatch(path.read_text().strip()) for path in folder.glob("index*/size")]
    return max((int(size[1]) * _UNIT_BYTES[size[2]] for size in sizes if size), default=None)


def cache_too_large(params: ComputeMeasureParams, cache_bytes: int | None) -> str | None:
    """A warning if the arena is too small for the cache treatment `cold_rows`, otherwise None."""
    cold = params.backend == "fbgemm_cpu" and params.cache_treatment == "cold_rows"
    if not cold or cache_bytes is None or params.arena_bytes >= _COLD_ARENA * cache_bytes:
        return None
    return (
        f"cache_treatment is cold_rows, but arena_bytes {params.arena_bytes} is less than {_COLD_ARENA} times the "
        f"last-level cache of this machine, {cache_bytes} bytes: an iteration may find rows of an earlier iteration in "
        f"the cache. If no other machine shares this cache, set arena_bytes to {_COLD_ARENA * cache_bytes} or more "
        "in every stage that sets it"
    )


def _cpu_model() -> str:
    """Name of the processor, from /proc on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _library_versions() -> dict[str, str]:
    versions = {}
    for library in _LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue  # only one of the CPU and CUDA builds is installed
    return versions
