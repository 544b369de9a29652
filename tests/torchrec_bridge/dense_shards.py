"""Jobs of ranks with the models of a training check; a module of its own, because ranks import it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge import moving
from neuroshard_pipeline.torchrec_bridge.train_check.params import DenseMode, ModelName, TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.sharding import dense_optimizer, shard_model
from neuroshard_pipeline.torchrec_bridge.train_check.steppers import rank_batch

#: Of the dense network, where checkpoints have states of its optimizer.
MOMENTUM = 0.9
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


def losses_with_checkpoints(
    _: int,
    __: int,
    forms: Sequence[tuple[Plan, DenseMode]],
    params: TrainingParams,
    batches: Sequence[Any],
    folder: str,
) -> list[float]:
    """Losses of this rank if DLRM trains a step in every form, and goes on in the next form from a checkpoint.

    In the last form it trains two steps, so that the loaded state of the optimizer has an effect there, too.
    """
    losses, device, last = [], torch.device("cpu"), len(forms) - 1
    for at, (plan, mode) in enumerate(forms):
        model = shard_model(plan, "dlrm", mode, params, device)
        optimizer = dense_optimizer(model, params)
        optimizer.param_groups[0]["momentum"] = MOMENTUM
        if at > 0:
            moving.load(f"{folder}/{at - 1}", model, [optimizer])
        for number in (at, at + 1) if at == last else (at,):
            optimizer.zero_grad()
            loss, _ = model(rank_batch(plan.task, batches[number % len(batches)], device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if at < last:
            moving.save(f"{folder}/{at}", model, [optimizer])
    return losses
