"""Jobs of ranks with the models of a training check; a module of its own, because ranks import it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.train_check.params import DenseMode, ModelName, TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.sharding import shard_model

#: Per dense parameter: the first and the last value that this rank holds, its elements, and all elements.
Held = list[tuple[float, float, int, int]]


def dense_sizes(
    _rank: int, _world_size: int, plan: Plan, params: TrainingParams, modes: Sequence[DenseMode]
) -> dict[tuple[ModelName, DenseMode], Held]:
    """The dense parameters of every model and mode on this rank."""
    return {
        (name, mode): [_held(parameter) for parameter in _dense(plan, name, mode, params).parameters()]
        for name, mode in itertools.product(params.models, modes)
    }


def _dense(plan: Plan, name: ModelName, mode: DenseMode, params: TrainingParams) -> torch.nn.Module:
    return shard_model(plan, name, mode, params, torch.device("cpu")).module.dense


def _held(parameter: torch.Tensor) -> tuple[float, float, int, int]:
    own = parameter.detach()
    own = own.to_local() if isinstance(own, DTensor) else own
    flat = own.flatten()
    ends = (float(flat[0]), float(flat[-1])) if len(flat) else (0.0, 0.0)
    return *ends, own.numel(), parameter.numel()
