"""Sets and reads the number format in which TorchRec's sharders send looked-up rows and their gradients."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.task import COMM_BYTES, DEFAULT_COMM_PRECISION
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec.distributed.embedding import EmbeddingCollectionSharder  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry  # noqa: E402
from torchrec.distributed.types import CommOp, ModuleSharder  # noqa: E402

#: The number formats of `ShardingTask.comm_precision` in torch.
FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in FORMATS.items()}
#: The collectives of rows and of their gradients.
_OPERATIONS = (
    CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL,
    CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER,
    CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL,
)


def torchrec_sharders(comm_precision: str = DEFAULT_COMM_PRECISION, device: str = "cuda") -> list[ModuleSharder[Any]]:
    """The sharders of `EmbeddingBagCollection` and `EmbeddingCollection`, for `DistributedModelParallel`.

    Args:
        comm_precision: number format on the links, forward and backward, as in `ShardingTask.comm_precision`.
        device: kind of device of the ranks; on CPUs, fp16 takes the place of bf16.

    Raises:
        PlanError: the number format is unknown.
    """
    sent_as = CommType(format_on(device, comm_precision))
    config = QCommsConfig(sent_as, sent_as)
    codecs = get_qcomm_codecs_registry(config, device=torch.device(device))
    return [
        EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs),
        EmbeddingCollectionSharder(qcomm_codecs_registry=codecs),
    ]


def format_on(device: str, comm_precision: str) -> str:
    """The number format that ranks on a kind of device send for `comm_precision`; TorchRec has no bf16 on CPUs.

    Raises:
        PlanError: the number format is unknown.
    """
    if comm_precision not in COMM_BYTES:
        raise PlanError(f"comm_precision {comm_precision!r} is unknown; use one of {', '.join(COMM_BYTES)}")
    return "fp16" if device == "cpu" and comm_precision == "bf16" else comm_precision


def precision_of(sharders: Iterable[ModuleSharder[Any]]) -> str:
    """The number format on the links that TorchRec's sharders are configured with, forward and backward.

    Raises:
        PlanError: the formats of modules, collectives or directions differ, or no plan can be priced for the format.
    """
    registries = [getattr(sharder, "qcomm_codecs_registry", None) or {} for sharder in sharders]
    names = {_NAMES.get(dtype, str(dtype)) for codecs in registries for dtype in _formats(codecs)}
    if len(names) > 1 or not names <= set(COMM_BYTES):
        raise PlanError(
            f"the sharders communicate in {' and '.join(sorted(names))}; plans are priced for one of "
            f"{', '.join(COMM_BYTES)} in both directions: name the nearest one in PlannerOptions(comm_precision=...)"
        )
    return names.pop() if names else DEFAULT_COMM_PRECISION


def _formats(codecs: Mapping[str, Any]) -> Iterator[torch.dtype]:
    """The number formats of all collectives, forward and backward. Without a codec, TorchRec sends fp32."""
    for operation in _OPERATIONS:
        found = codecs.get(operation.name)
        if found is None:
            yield torch.float32
        else:
            yield from (found.forward.quantized_dtype, found.backward.quantized_dtype)
