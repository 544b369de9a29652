"""What a campaign ran on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams

_LIBRARIES = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy")


def fingerprint() -> dict[str, object]:
    """What decides a measurement besides its parameters: processor, cores, operating system, library versions."""
    return {
        "device": "cpu",
        "cpu_model": _cpu_model(),
        "cores": _usable_cores(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "libraries": _library_versions(),
    }


def describe_hardware(
    compute: ComputeMeasureParams,
    comm: CommMeasureParams,
    compute_noise_floor: dict[str, object],
    comm_noise_floor: dict[str, object],
) -> dict[str, object]:
    """The content of `measure.hardware`.

    Returns:
        Device, processor, cores, memory in bytes, backends, library versions, the date (ISO 8601, UTC) and both
        noise floors as `campaign.compute_noise_floor` and `campaign.comm_noise_floor` return them.
    """
    return {
        **fingerprint(),
        "memory_bytes": psutil.virtual_memory().total,
        "compute_backend": compute.backend,
        "comm_backend": comm.backend,
        "optimizer": compute.optimizer,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "noise_floor": {"compute": compute_noise_floor, "comm": comm_noise_floor},
    }


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
