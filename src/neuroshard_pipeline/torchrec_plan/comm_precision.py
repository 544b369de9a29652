"""Gives TorchRec's modules the number format of looked-up rows and their gradients on the links between ranks."""

from typing import Any

import torch

from neuroshard_pipeline.tables.task import COMM_BYTES, DEFAULT_COMM_PRECISION
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec.distributed.embedding import EmbeddingCollectionSharder  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry  # noqa: E402
from torchrec.distributed.types import ModuleSharder  # noqa: E402


def torchrec_sharders(comm_precision: str = DEFAULT_COMM_PRECISION, device: str = "cuda") -> list[ModuleSharder[Any]]:
    """The sharders of `EmbeddingBagCollection` and `EmbeddingCollection`, for `DistributedModelParallel`.

    Args:
        comm_precision: number format on the links, forward and backward, such as `ShardingTask.comm_precision`.
        device: kind of device of the ranks. TorchRec has no bf16 on CPUs; it is fp16 there.

    Raises:
        ValueError: the number format is unknown.
    """
    if comm_precision not in COMM_BYTES:
        raise ValueError(f"comm_precision {comm_precision!r} is unknown; use one of {', '.join(COMM_BYTES)}")
    of_device = "fp16" if device == "cpu" and COMM_BYTES[comm_precision] == COMM_BYTES["fp16"] else comm_precision
    config = QCommsConfig(CommType(of_device), CommType(of_device))
    codecs = get_qcomm_codecs_registry(config, device=torch.device(device))
    return [
        EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs),
        EmbeddingCollectionSharder(qcomm_codecs_registry=codecs),
    ]
