"""Modules of a model that are planned elsewhere, and its dense part: the memory that they take on every rank."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import nn

from neuroshard_pipeline.errors import PlanError

#: Bytes of optimizer state of a parameter, by the class of the optimizer that `apply_optimizer_in_backward` attached:
#: fp32 numbers, none for SGD, one per row for row-wise Adagrad, two per weight for Adam. Other classes: one per weight.
_STATE_BYTES = {
    "SGD": lambda _: 0,
    "RowWiseAdagrad": lambda shape: 4 * shape[0],
    "Adam": lambda shape: 8 * math.prod(shape),
    "AdamW": lambda shape: 8 * math.prod(shape),
}


def left_out_tables(module: nn.Module, leave_out: Collection[str]) -> set[str]:
    """Names of the tables in the modules that `leave_out` names.

    Raises:
        PlanError: the model has no module of such a name.
    """
    children = [child for path in leave_out for child in _submodule(module, path).modules()]
    return {config.name for child in children for config in configs_of(child)}


def configs_of(module: nn.Module) -> list[Any]:
    """TorchRec's configurations of the tables of a collection, sharded or not; empty for any other module."""
    return list(getattr(module, "embedding_bag_configs", getattr(module, "embedding_configs", list))())


def unplanned_bytes(
    tensors: Iterable[tuple[str, Any]], world_size: int, plan: Any | None, optimizer: str = "SGD"
) -> list[int]:
    """Bytes that parameters and buffers with these names take on every rank, without activations.

    For a table with shards in `plan`, TorchRec's plan of other modules, each shard counts on its rank, with weights and
    optimizer state. All other parameters and buffers are data parallel: every rank holds them as a whole, and
    parameters have gradients of the same size, and the state of `optimizer` unless another one is attached.
    """
    taken = [0] * world_size
    for name, tensor in tensors:
        sharding = _sharding_of(name, plan)
        if sharding is None or sharding.sharding_spec is None:
            trained = tensor.nbytes if tensor.requires_grad else 0
            replicated = _bytes(tensor, tensor.shape, optimizer if trained else "SGD") + trained
            taken = [total + replicated for total in taken]
            continue
        for shard in sharding.sharding_spec.shards:
            taken[shard.placement.rank()] += _bytes(tensor, shard.shard_sizes)
    return taken


def _submodule(module: nn.Module, path: str) -> nn.Module:
    try:
        return module.get_submodule(path)
    except AttributeError as error:
        raise PlanError(f"leave_out names the module {path!r}, which the model does not have ({error})") from error


def _sharding_of(name: str, plan: Any | None) -> Any | None:
    """The `ParameterSharding` of a parameter such as `<module>.embeddings.<table>.weight`."""
    *path, table, _ = ["", "", *name.split(".")]
    return None if plan is None else plan.plan.get(".".join(path[2:-1]), {}).get(table)


def _bytes(tensor: Any, shape: Sequence[int], optimizer: str = "SGD") -> int:
    """Weights and optimizer state of a tensor, or of a shard of it with this shape."""
    numbers, attached = math.prod(shape), [each.__name__ for each in getattr(tensor, "_optimizer_classes", ())]
    state = sum(_STATE_BYTES.get(name, lambda _: 4 * numbers)(shape) for name in attached or [optimizer])
    return tensor.element_size() * numbers + state
