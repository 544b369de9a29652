"""The tensors of a rank as rectangles of whole tensors, under names that do not depend on the plan.

A whole tensor is a table, a state of an optimizer, or any other tensor of the model. A state has the name of its
parameter, `/`, and the name that TorchRec's fused optimizers give it: `bags.embedding_bags.users.weight/momentum1`.
A single number, such as Adam's `step`, counts as a tensor with one element.
Row-wise Adagrad keeps a number per row of every column shard. Its state has a name for every block of columns, such as
`.../momentum1[0:64]`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.torchrec_bridge.tiered.optimizer_state import FUSED_NAMES
from neuroshard_pipeline.torchrec_bridge.tiered.state import TieredState

Optimizers = Sequence[torch.optim.Optimizer]


class Part(NamedTuple):
    """A rectangle of a whole tensor, on this rank: name and size of the whole tensor, and where the rectangle begins.

    Who writes into its values (`tensor`) changes the model or the optimizer.
    """

    name: str
    size: tuple[int, ...]
    offsets: tuple[int, ...]
    tensor: torch.Tensor


def parts_of(model: Any, optimizers: Optimizers) -> list[Part]:
    """The rectangles of this rank of what `DistributedModelParallel` returned.

    `optimizers` are those of the dense network and of replicated tables.

    Raises:
        PlanError: the model is not sharded, or has tables with tiers.
    """
    if not hasattr(model, "fused_optimizer"):
        raise PlanError(f"the {type(model).__name__} is not sharded; give what DistributedModelParallel returned")
    if any(isinstance(module, TieredState) for module in model.modules()):
        raise PlanError("the model has tables with tiers; save the whole tables that its state_dict() returns")
    weights = model.state_dict()
    found = [part for name, value in weights.items() for part in _weights(name, value)]
    for name, states in model.fused_optimizer.state_dict()["state"].items():
        for state, value in states.items():
            found += _fused_states(weights[name], f"{name}/{state.rpartition('.')[2]}", value)
    for name, parameter, optimizer in dense_parameters(model, optimizers):
        for key, value in optimizer.state[parameter].items():
            found.append(_dense_state(f"{name}/{key}", parameter, value, optimizer))
    return [part for part in found if part.tensor.numel()]


def columns_of(name: str) -> tuple[str, int, int] | None:
    """The name without its block of columns, and the block; None for tensors without one."""
    whole, _, columns = name.rstrip("]").rpartition("[")
    first, _, end = columns.partition(":")
    return (whole, int(first), int(end)) if name.endswith("]") else None


def dense_parameters(model: nn.Module, optimizers: Optimizers) -> Iterator[tuple[str, Any, torch.optim.Optimizer]]:
    """Names of the parameters of dense optimizers, the parameters, and their optimizers."""
    known = {each: of for of in optimizers for group in of.param_groups for each in group["params"]}
    for name, parameter in model.named_parameters():
        if parameter in known:
            yield name, parameter, known[parameter]


def _weights(name: str, value: Any) -> Iterator[Part]:
    if not hasattr(value, "local_shards"):
        yield _replica(name, value)
        return
    for shard in value.local_shards():
        yield Part(name, tuple(value.size()), tuple(shard.metadata.shard_offsets), shard.tensor.detach())


def _fused_states(weight: Any, name: str, state: Any) -> Iterator[Part]:
    """A state of a sharded table: per element or per row of its shards, or a single number."""
    for part, shard in zip(_weights(name, weight), state.local_shards(), strict=True):
        values = shard.tensor.detach()
        if values.shape == part.tensor.shape:
            yield part._replace(tensor=values)
        elif len(values) == len(part.tensor):
            first = part.offsets[1]
            block = f"{name}[{first}:{first + part.tensor.shape[1]}]"
            yield Part(block, part.size[:1], part.offsets[:1], values.view(-1))
        else:
            yield Part(name, (1,), (0,), values.view(1))


def _dense_state(name: str, parameter: torch.Tensor, value: Any, optimizer: torch.optim.Optimizer) -> Part:
    """A state of a dense optimizer, under the name that the fused optimizer gives it."""
    if not isinstance(value, torch.Tensor):
        raise PlanError(f"{name} is no tensor; moves and checkpoints know only states that are tensors")
    prefix, _, key = name.rpartition("/")
    name = f"{prefix}/{FUSED_NAMES.get(type(optimizer), {}).get(key, key)}"
    if isinstance(optimizer, RowWiseAdagrad) and value.dim() > 0:
        return Part(f"{name}[0:{parameter.shape[1]}]", (len(value),), (0,), value.view(-1))
    return _replica(name, value)


def _replica(name: str, value: torch.Tensor) -> Part:
    """A tensor that is not TorchRec's: the whole of it, or this rank's part if `fully_shard` sharded it."""
    if isinstance(value, DTensor):
        (chunk,) = value.__create_chunk_list__()
        return Part(name, tuple(value.shape), tuple(chunk.offsets), value.to_local().detach())
    values = value.detach().view(value.shape or (1,))
    return Part(name, tuple(values.shape), (0,) * values.dim(), values)
