"""The CUDA devices of this host. Functions import torch, because many modules need `needs_cuda` only."""

from neuroshard_pipeline.errors import MeasurementError

#: Backends that need CUDA, and what error messages recommend in their place.
ALTERNATIVES = {"fbgemm_cuda": "fbgemm_cpu, recorded or modelled", "nccl": "gloo or topology"}


def needs_cuda(backend: str) -> bool:
    """Whether a backend runs on a CUDA device."""
    return backend in ALTERNATIVES


def require_devices(backend: str, number: int) -> None:
    """Check that there are enough CUDA devices for a backend.

    Raises:
        MeasurementError: there are fewer than `number`; the message names the alternatives.
    """
    import torch

    if not torch.cuda.is_available():
        raise MeasurementError(f"backend {backend}: no CUDA device; use {ALTERNATIVES[backend]}")
    available = torch.cuda.device_count()
    if available < number:
        raise MeasurementError(
            f"backend {backend} needs {number} CUDA devices, one per process, but there are {available}; "
            f"use at most {available} processes, or use {ALTERNATIVES[backend]}"
        )


def device_facts() -> dict[str, object]:
    """Model and memory of the first device, and the CUDA version of the torch build."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": "cuda",
        "gpu_model": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "cuda": str(torch.version.cuda),
    }
