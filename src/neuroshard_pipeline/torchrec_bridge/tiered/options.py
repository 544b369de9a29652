"""Options of embedding modules whose tables are cut into tiers."""

from dataclasses import dataclass, field

import torch

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.task import DEFAULT_COMM_PRECISION

_FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class TierOptions:
    """Options of a module with tiers.

    Attributes:
        index_dedup: whether every distinct id of this rank's samples is looked up and exchanged once, as with
            TorchRec's `use_index_dedup`, which runs on GPUs only. Only an `EmbeddingCollection` may have it.
        comm_precision: number format in which ranks exchange cold rows, host rows and the gradients of both: a value of
            `ShardingTask.comm_precision`. On CPUs, bf16 is replaced by fp16, because TorchRec has no bf16 there. The
            all_reduce that adds up gradients of hot rows over ranks, or of host rows over hosts, is in fp32.
        device: the device of this rank.

    Raises:
        PlanError: the number format is unknown.
    """

    index_dedup: bool = False
    comm_precision: str = DEFAULT_COMM_PRECISION
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if self.comm_precision not in _FORMATS:
            known = ", ".join(_FORMATS)
            raise PlanError(f"comm_precision {self.comm_precision!r} is unknown; use one of {known}")

    @property
    def sent_as(self) -> torch.dtype:
        """Number format of exchanged rows."""
        is_on_cpu = self.device.type == "cpu"
        return _FORMATS["fp16" if is_on_cpu and self.comm_precision == "bf16" else self.comm_precision]
