"""This module defines what `gpu_check.py` checks, the protocol of the checks, and the rows of their table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from neuroshard_pipeline.measurement import ComputeMeasureParams

SEED = 0

#: Patterns of the names that CUDA reports → modelled GPUs (conf/base/parameters_lab.yml); the first match counts.
_LAB_DEVICES = (
    (r"GH200", "gh200"), (r"H200", "h200"), (r"H100 PCIe", "h100-pcie"), (r"H100", "h100"), (r"B200", "b200"),
    (r"A100.*80GB PCIe|A100-PCIE-80GB", "a100-80gb-pcie"), (r"A100.*80GB", "a100-80gb"), (r"A100", "a100"),
    (r"V100", "v100"),
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One row of the table.

    Attributes:
        name: name of the check.
        passed: the verdict, None if there is none on this machine.
        found: what was found, with numbers.
        remedy: what to do if the check failed.
        vital: whether a campaign is useless if the check failed.
    """

    name: str
    passed: bool | None
    found: str
    remedy: str = ""
    vital: bool = False


class Setup(NamedTuple):
    """What is checked.

    Attributes:
        params: the protocol of the checks, with the backend and the arena of the campaign that is to follow.
        batch_size: batch size of the campaign's samples.
        row_scale: divides the rows of the published pool.
        copy_mib: size of the copies that measure the copy bandwidth.
    """

    params: ComputeMeasureParams
    batch_size: int
    row_scale: float
    copy_mib: int

    @property
    def on_gpu(self) -> bool:
        """Whether the campaign runs on a GPU."""
        return self.params.backend == "fbgemm_cuda"

    @property
    def device(self) -> str:
        """Name of the device for torch."""
        return "cuda" if self.on_gpu else "cpu"

    @property
    def lab_device(self) -> str | None:
        """The name under which the lab models this GPU; None on a CPU, or if the lab does not model this GPU."""
        return lab_device(torch.cuda.get_device_name(0)) if self.on_gpu else None


def lab_device(gpu_model: str) -> str | None:
    """The modelled GPU for a name that CUDA reports, such as `NVIDIA H100 80GB HBM3`; None if it has no model."""
    return next((name for pattern, name in _LAB_DEVICES if re.search(pattern, gpu_model)), None)


def campaign_params(backend: str, arena_bytes: int) -> ComputeMeasureParams:
    """The protocol of the checks: the default of `gpu_campaign.py`, but with one visit and no second measurement."""
    return ComputeMeasureParams(
        backend=backend,
        engine="local",
        cluster_address=None,
        visits=1,
        warmup_iterations=1,
        iterations=5,
        iteration_statistic="median",
        visit_statistic="median",
        cache_treatment="cold_rows",
        shuffle="samples",
        workers=1,
        threads=1,
        arena_bytes=arena_bytes,
        thorough_lookup_bytes=None,
        least_visits=1,
        ids_folder=None,
        chunk_samples=100,
        noise_floor_share=0.0,
        time_budget_s=None,
        timeout_s=600.0,
    )


def small(params: ComputeMeasureParams, **changes: Any) -> ComputeMeasureParams:
    """The same parameters with a small arena, in which the weights of small samples can still change their place."""
    return params.model_copy(update={"arena_bytes": min(params.arena_bytes, 2**25), **changes})
