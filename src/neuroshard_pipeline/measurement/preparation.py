"""What a campaign does before it times lookups: on a GPU, check the memory and log the plan; then draw ids."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from neuroshard_pipeline.host import usable_cores
from neuroshard_pipeline.lab.device import lookup_cost_ms, modelled_device
from neuroshard_pipeline.measurement.chunks import rounds_of
from neuroshard_pipeline.measurement.cuda import needs_cuda
from neuroshard_pipeline.measurement.device_memory import FLUSH_BYTES, memory_need, require_memory
from neuroshard_pipeline.measurement.id_files import batches_of, files_of
from neuroshard_pipeline.measurement.params import ComputeMeasureParams
from neuroshard_pipeline.tables.profile import batch_indices
from neuroshard_pipeline.tables.samples import ComputeSample

_LOGGER = logging.getLogger(__name__)

#: Patterns of the names that CUDA reports → modelled GPUs (conf/base/parameters_lab.yml); the first match counts.
_LAB_DEVICES = (
    (r"GH200", "gh200"), (r"H200", "h200"), (r"H100 PCIe", "h100-pcie"), (r"H100", "h100"), (r"B200", "b200"),
    (r"A100.*80GB PCIe|A100-PCIE-80GB", "a100-80gb-pcie"), (r"A100.*80GB", "a100-80gb"), (r"A100", "a100"),
    (r"V100", "v100"),
)  # fmt: skip
#: The duration of a campaign is estimated from the modelled costs of at least this many samples, if it has so many.
_MODELLED_SAMPLES = 200
#: Time of an iteration besides its kernels: FBGEMM's Python code, two synchronisations. It is an assumption.
_HOST_MS_PER_ITERATION = 0.6
#: Reading ids from files, copying them to the GPU and concatenating them, in 1e9 bytes per second. It is an assumption.
_IDS_GB_PER_S = 2.0


class CampaignPlan(NamedTuple):
    """What a whole campaign comprises, including what is measured and drawn already.

    Attributes:
        samples: number of samples.
        visits: number of visits (timings of a sample), without those for the noise floor.
        minutes: estimated duration of the visits, None if there is no model of the GPU.
        lab_device: the modelled GPU for which the duration is estimated, None if there is none.
        num_ids: number of ids of all batches of all tables.
        ids_bytes: size of their files; 0 if there is no folder for them and the workers draw the ids.
        missing_bytes: size of the files that do not exist yet.
    """

    samples: int
    visits: int
    minutes: float | None
    lab_device: str | None
    num_ids: int
    ids_bytes: int
    missing_bytes: int

    @property
    def text(self) -> str:
        """One sentence for the log."""
        modelled = f"about {self.minutes:.3g} minutes on {self.lab_device} (modelled)"
        duration = "of unknown duration" if self.minutes is None else modelled
        files = f"{self.ids_bytes / 1e9:.3g} GB in files, of which {self.missing_bytes / 1e9:.3g} GB are drawn first"
        return (
            f"plan of the whole campaign: {self.samples} samples, {self.visits} visits, {duration}; "
            f"{self.num_ids / 1e6:.4g} million ids, {files if self.ids_bytes else 'which the workers draw'}"
        )


def prepare(
    samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int, machine: Mapping[str, object]
) -> None:
    """Write the files of ids that are missing. On a GPU, check the memory and log the plan of the campaign first.

    Ids are drawn here, on all cores, and not by the workers: a chunk has a time limit, and a GPU would wait for them.

    Args:
        samples: samples of the campaign.
        params: its parameters; without `ids_folder`, the workers draw the ids.
        seed: seed of the ids.
        machine: `hardware.fingerprint`.

    Raises:
        MeasurementError: the GPU has too little memory, the disk too little room for the ids, or ids cannot be drawn.
    """
    if needs_cuda(params.backend):
        gpu_model, gpu_bytes = str(machine["gpu_model"]), int(str(machine["gpu_memory_bytes"]))
        # This check comes before the ids are drawn. Later, the workers compare the need with the free memory.
        require_memory(memory_need(samples, params, gpu_bytes), gpu_bytes, gpu_model)
        _LOGGER.info(campaign_plan(samples, params, seed, gpu_model).text)
    files_of(params, seed).draw_missing(batches_of(samples), len(usable_cores()))


def lab_device(gpu_model: str) -> str | None:
    """The modelled GPU for a name that CUDA reports, such as `NVIDIA H100 80GB HBM3`; None if it has no model."""
    return next((name for pattern, name in _LAB_DEVICES if re.search(pattern, gpu_model)), None)


def campaign_plan(
    samples: Sequence[ComputeSample], params: ComputeMeasureParams, seed: int, gpu_model: str
) -> CampaignPlan:
    """The plan of a campaign.

    Args:
        samples: samples of the campaign.
        params: its parameters.
        seed: seed of the ids.
        gpu_model: name of the GPU as CUDA reports it.
    """
    batches, files, device = batches_of(samples), files_of(params, seed), lab_device(gpu_model)
    step = max(len(samples) // _MODELLED_SAMPLES, 1)
    some = samples[::step]
    visits = sum(len(rounds_of(sample, params)) for sample in samples)
    minutes = None
    if device is not None and some:
        of_some = sum(len(rounds_of(sample, params)) * _visit_ms(sample, params, device) for sample in some)
        minutes = of_some * len(samples) / len(some) / params.workers / 60e3
    return CampaignPlan(
        samples=len(samples),
        visits=visits,
        minutes=minutes,
        lab_device=device,
        num_ids=sum(batch.num_ids for batch in batches),
        ids_bytes=sum(batch.num_bytes for batch in batches if files.folder is not None),
        missing_bytes=sum(batch.num_bytes for batch in files.missing(batches)),
    )


def _visit_ms(sample: ComputeSample, params: ComputeMeasureParams, device: str) -> float:
    """Modelled duration of one visit."""
    gpu = modelled_device(device)
    cost_ms = sum(lookup_cost_ms(sample.shards, sample.batch_size, sample.optimizer, gpu))
    flushes_ms = 2 * FLUSH_BYTES / gpu.device.hbm_gb_per_s / 1e6
    ids = sum(batch_indices(shard.table.pooling_factor, sample.batch_size) for shard in sample.shards)
    iterations = params.warmup_iterations + params.iterations
    return iterations * (cost_ms + flushes_ms + _HOST_MS_PER_ITERATION) + 12 * ids / _IDS_GB_PER_S / 1e6
