"""What a campaign ran on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.cuda import device_facts, needs_cuda, require_devices
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams
from neuroshard_pipeline.measurement.recording import RecordingParams, open_recording
from neuroshard_pipeline.measurement.topology import TopologyParams, require_topology

#: Where Linux describes the caches of the first core.
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_KIB_OR_MIB = re.compile(r"(\d+)([KM])")
_UNIT_BYTES = {"K": 2**10, "M": 2**20}

#: An arena of so many last-level caches has no row left there when the arena has been gone through.
_COLD_ARENA = 4

_LIBRARIES = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy")


def fingerprint(backend: str) -> dict[str, object]:
    """What decides a measurement besides its parameters: device, cores, operating system, library versions.

    Args:
        backend: of the campaign; those on GPUs add the GPU's model and memory and the CUDA version.

    Raises:
        MeasurementError: the backend needs a CUDA device and there is none.
    """
    facts = {
        "device": "cpu",
        "cpu_model": _cpu_model(),
        "cores": _usable_cores(),
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
    """Refuse to measure on a host that differs from the others of a campaign.

    Args:
        backend: backend of the campaign.
        machine: `fingerprint` of the host that runs the campaign.

    Raises:
        MeasurementError: names every difference.
    """
    here = fingerprint(backend)
    unlike = [f"{fact} {here.get(fact)}, not {there}" for fact, there in machine.items() if here.get(fact) != there]
    if unlike:
        raise MeasurementError(f"a host of this campaign has {'; '.join(unlike)}: measure with hosts of one kind only")


def describe_hardware(
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    compute_noise_floor: dict[str, object],
    comm_noise_floor: dict[str, object],
    date: str | None,
    recording: RecordingParams | None = None,
    topology: TopologyParams | None = None,
) -> dict[str, object]:
    """The content of `measure.hardware`.

    Args:
        compute: of the compute campaign.
        comm: of the communication campaign.
        compute_noise_floor: as `campaign.noise_floor` returns it; so also
        comm_noise_floor: of communication.
        date: when the last of both campaigns was over (`campaign.campaign_date`), None if nothing was measured.
        recording: needed by the backend `recorded`.
        topology: needed by the backend `topology`.

    Returns:
        Device, processor, cores, last-level cache and memory in bytes, backends, library versions, the date, both
        noise floors, and whether communication costs are modelled rather than measured. Where compute costs were
        recorded, the device is the one they were recorded on and `recording` holds the card; where communication is
        modelled, `topology` holds the model's parameters; where it was measured across hosts, `comm_local_world_size`
        holds the ranks per host.
    """
    facts: dict[str, object] = {
        **describe_machine(compute.backend),
        "compute_backend": compute.backend,
        "comm_backend": comm.backend,
        "comm_costs_are": comm.costs_are,
        "date": date,
        "noise_floor": {"compute": compute_noise_floor, "comm": comm_noise_floor},
    }
    if comm.backend == "topology":
        facts["topology"] = require_topology(topology).model_dump()
    elif comm.local_world_size is not None:
        facts["comm_local_world_size"] = comm.local_world_size
    if compute.backend == "recorded":
        card = open_recording(recording).card
        facts |= {**card["hardware"], "recording": card}
    return facts


def describe_machine(backend: str) -> dict[str, object]:
    """Device, processor, cores, last-level cache and memory in bytes, and library versions, as `backend` sees them."""
    memory_bytes = psutil.virtual_memory().total
    return {**fingerprint(backend), "last_level_cache_bytes": last_level_cache_bytes(), "memory_bytes": memory_bytes}


def last_level_cache_bytes(folder: Path = _CACHES) -> int | None:
    """Size of the largest cache that the first core sees, None where the system does not tell.

    A hypervisor tells that of the whole processor, which its guests share.

    Args:
        folder: where Linux describes the caches of a core, one `index*/size` each.
    """
    sizes = [_KIB_OR_MIB.fullmatch(path.read_text().strip()) for path in folder.glob("index*/size")]
    return max((int(size[1]) * _UNIT_BYTES[size[2]] for size in sizes if size), default=None)


def cache_too_large(params: ComputeMeasureParams, cache_bytes: int | None) -> str | None:
    """What is wrong if the arena is too small for `cold_rows`, None if nothing is.

    Args:
        params: of a compute campaign.
        cache_bytes: of the processor (`last_level_cache_bytes`).
    """
    cold = params.backend == "fbgemm_cpu" and params.cache_treatment == "cold_rows"
    if not cold or cache_bytes is None or params.arena_bytes >= _COLD_ARENA * cache_bytes:
        return None
    return (
        f"cache_treatment is cold_rows, but arena_bytes {params.arena_bytes} is less than {_COLD_ARENA} times the "
        f"last-level cache that this machine tells of, {cache_bytes} bytes: what an iteration looks up may still be "
        f"there from one before. If the cache is yours alone, set arena_bytes to {_COLD_ARENA * cache_bytes} or more, "
        "for plans as for samples"
    )


def _cpu_model() -> str:
    """The processor's name, from Linux's /proc where there is one."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _library_versions() -> dict[str, str]:
    versions = {}
    for library in _LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue  # cpu and cuda builds are alternatives
    return versions
