"""What each rank of a training check holds of the dense network; a module of its own, because ranks import it."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.train_check.model import shard_model
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams


def dense_sizes(_rank: int, _world_size: int, plan: Plan, params: TrainingParams) -> list[tuple[int, int, bool]]:
    """Per dense parameter: its elements, those that this rank holds, and whether it is a sharded tensor."""
    model = shard_model(plan, params, torch.device("cpu")).module
    sizes = []
    for part in model.dense_modules:
        for parameter in part.parameters():
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            sizes.append((parameter.numel(), own.numel(), isinstance(parameter, DTensor)))
    return sizes
