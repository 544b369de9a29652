"""Checkpoints that load under any plan and any number of ranks, with torch.distributed.checkpoint."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.torchrec_bridge.moving.parts import Optimizers, Part, parts_of
from neuroshard_pipeline.torchrec_bridge.moving.wanted import Whole, check, described, prepared, wanted

#: The file that torch.distributed.checkpoint writes last.
_METADATA = ".metadata"


class _Tensor:
    """A rank's rectangles of one tensor, in the form that torch.distributed.checkpoint asks for."""

    def __init__(self, parts: Collection[Part]) -> None:
        self.parts = {torch.Size(part.offsets): part for part in parts}

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(name, offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(offsets, part.tensor.size()),
                    TensorProperties.create_from_tensor(part.tensor),
                    torch.Size(part.size),
                ),
            )
            for offsets, part in self.parts.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, part.tensor.size()) for offsets, part in self.parts.items()]


class _SavePlanner(DefaultSavePlanner):
    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        return self.state_dict[index.fqn].parts[index.offset].tensor


class _LoadPlanner(DefaultLoadPlanner):
    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        """Keep the tensors: the default planner replaces objects that are no tensors by None."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self.state_dict[index.fqn].parts[index.offset].tensor


def save(folder: str | Path, model: Any, optimizers: Optimizers = ()) -> None:
    """Write weights and optimizer states. Every rank calls it, with a folder that all ranks can write to.

    The checkpoint counts as written only when all ranks have written their tensors. If the job is killed before, `load`
    refuses the folder; checkpoints in other folders stay as they are.

    Args:
        folder: a folder that holds no checkpoint yet.
        model: what `DistributedModelParallel` returned.
        optimizers: the optimizers of the dense network and of replicated tables.

    Raises:
        PlanError: the folder holds a checkpoint; or as for `parts_of`.
    """

    def parts() -> list[Part]:
        if (Path(folder) / _METADATA).exists():
            raise PlanError(f"{folder} holds a checkpoint; give every checkpoint a folder of its own")
        return parts_of(model, optimizers)

    own, _ = described(parts)
    dcp.save(_tensors(own), checkpoint_id=folder, planner=_SavePlanner(flatten_state_dict=False))


@torch.no_grad()
def load(folder: str | Path, model: Any, optimizers: Optimizers = (), new: bool = False) -> None:
    """Fill a model and its optimizers from a checkpoint of `save`. Every rank calls it.

    The job may have another plan, and another number of ranks, than the one that wrote the checkpoint.

    Args:
        folder: the folder of the checkpoint.
        model: what `DistributedModelParallel` returned.
        optimizers: the optimizers of the dense network and of replicated tables.
        new: whether tables and rows that the checkpoint lacks keep their initial values.

    Raises:
        PlanError: the folder holds no whole checkpoint; or as for `parts_of` and `wanted.check`.
    """
    if not (Path(folder) / _METADATA).exists():
        raise PlanError(f"{folder} holds no checkpoint, or its job was killed before all ranks had written it")
    saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    stored = {name: of for name, of in saved.items() if isinstance(of, TensorStorageMetadata)}
    theirs = {name: Whole(tuple(of.size), of.properties.dtype) for name, of in stored.items()}
    own, ours = described(lambda: prepared(model, optimizers, theirs))
    check(ours.wholes, theirs, new, str(folder))
    needed, blends = wanted(own, theirs)
    dcp.load(_tensors(needed), checkpoint_id=folder, planner=_LoadPlanner(flatten_state_dict=False))
    for blend in blends:
        blend.mix()


def _tensors(parts: Collection[Part]) -> dict[str, _Tensor]:
    by_name: dict[str, list[Part]] = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)
    return {name: _Tensor(of) for name, of in by_name.items()}
