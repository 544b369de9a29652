"""What an unsharded model says of its embedding tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.sharders.torchrec import require_torchrec
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Table
from neuroshard_pipeline.tables.task import OPTIMIZERS

require_torchrec()
from torchrec.distributed.planner import ParameterConstraints  # noqa: E402
from torchrec.distributed.sharding_plan import get_default_sharders  # noqa: E402
from torchrec.modules.embedding_configs import EmbeddingBagConfig  # noqa: E402
from torchrec.modules.embedding_modules import EmbeddingBagCollection  # noqa: E402

#: Mean ids per sample where nobody says: TorchRec's own default (`planner.constants.POOLING_FACTOR`).
DEFAULT_POOLING_FACTOR = 1.0

#: Optimizer classes of torch and TorchRec by the name that a `ShardingTask` has for them.
_OPTIMIZER_OF_CLASS = {"SGD": "sgd", "RowWiseAdagrad": "rowwise_adagrad", "Adam": "adam"}


@dataclass(frozen=True)
class ModuleTable:
    """A table of a model.

    Attributes:
        table: rows, columns, pooling factor; no reuse profile.
        module_path: fully qualified name of its `EmbeddingBagCollection`.
        feature_names: the features whose ids look it up.
        is_weighted: whether its ids carry weights.
    """

    table: Table
    module_path: str
    feature_names: tuple[str, ...]
    is_weighted: bool


def embedding_bag_collections(module: nn.Module, leave_out: Collection[str] = ()) -> dict[str, EmbeddingBagCollection]:
    """Every `EmbeddingBagCollection` of a model by its fully qualified name, in the model's order.

    Args:
        module: an unsharded model.
        leave_out: fully qualified names of modules whose sharding is somebody else's business.

    Raises:
        PlanError: the model holds no `EmbeddingBagCollection`, or another module that TorchRec shards and that is
            not left out.
    """
    found = {}
    for path, child in _shardable(module, "", frozenset(leave_out)):
        if not isinstance(child, EmbeddingBagCollection):
            raise PlanError(
                f"module {path!r} is a {type(child).__name__}; plans are made for EmbeddingBagCollections only. Plan "
                "it with TorchRec's planner and name it in leave_out"
            )
        found[path] = child
    if not found:
        raise PlanError(f"the {type(module).__name__} holds no EmbeddingBagCollection; give the unsharded model")
    return found


def read_module_tables(
    module: nn.Module,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    leave_out: Collection[str] = (),
) -> list[ModuleTable]:
    """The tables of all `EmbeddingBagCollection`s of a model, weighted ones too.

    The pooling factor of a table is the sum of its features' `pooling_factors` in the constraints, as it answers
    the ids of all of them, or else `DEFAULT_POOLING_FACTOR` per feature.

    Args:
        module: an unsharded model; it may stand on the meta device.
        constraints: TorchRec's, by table.
        leave_out: fully qualified names of modules that are not planned.

    Raises:
        PlanError: a table stands in two modules, has a storage type that is not supported, or a constraint names
            no table of the model.
        TaskError: a table is impossible, such as a width that is not a multiple of 4; the message says which.
    """
    constraints = constraints or {}
    read: dict[str, ModuleTable] = {}
    for path, collection in embedding_bag_collections(module, leave_out).items():
        for config in collection.embedding_bag_configs():
            if config.name in read:
                raise PlanError(
                    f"table {config.name!r} stands in {read[config.name].module_path!r} and in {path!r}; give every "
                    "table of the model a name of its own"
                )
            table = _table(config, path, constraints.get(config.name))
            read[config.name] = ModuleTable(table, path, tuple(config.feature_names), collection.is_weighted())
    unknown = sorted(set(constraints) - set(read))
    if unknown:
        raise PlanError(f"a constraint names the table {unknown[0]!r}, which the model does not have")
    return list(read.values())


def read_optimizer(module: nn.Module, leave_out: Collection[str] = ()) -> str:
    """The optimizer that `apply_optimizer_in_backward` attached to the tables, in a `ShardingTask`'s words.

    Raises:
        PlanError: none is attached, several are, or the task knows no such optimizer.
    """
    classes = {
        optimizer.__name__
        for collection in embedding_bag_collections(module, leave_out).values()
        for parameter in collection.parameters()
        for optimizer in getattr(parameter, "_optimizer_classes", [type(None)])
    }
    if len(classes) == 1 and classes <= set(_OPTIMIZER_OF_CLASS):
        return _OPTIMIZER_OF_CLASS[classes.pop()]
    found = " and ".join(sorted(classes - {"NoneType"})) or "no optimizer"
    raise PlanError(
        f"the embedding tables have {found} attached, but the optimizer's memory must be known: call "
        f"apply_optimizer_in_backward first, or give optimizer= one of {', '.join(OPTIMIZERS)}"
    )


def _shardable(module: nn.Module, path: str, leave_out: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
    """The modules that `DistributedModelParallel` would look up in a plan, found as it finds them."""
    if path in leave_out:
        return
    if isinstance(module, _SHARDED_TYPES):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _shardable(child, f"{path}.{name}" if path else name, leave_out)


_SHARDED_TYPES: tuple[type[nn.Module], ...] = tuple(sharder.module_type for sharder in get_default_sharders())


def _table(config: EmbeddingBagConfig, path: str, constraint: Any) -> Table:
    data_type = config.data_type.name.lower()
    if data_type not in BYTES_PER_ELEMENT:
        raise PlanError(
            f"table {config.name!r} of {path!r} stores {config.data_type.name}; supported are "
            f"{', '.join(BYTES_PER_ELEMENT)}"
        )
    factors = [DEFAULT_POOLING_FACTOR] * len(config.feature_names)
    if constraint is not None and constraint.pooling_factors:
        factors = list(constraint.pooling_factors)
    if len(factors) != len(config.feature_names):
        raise PlanError(
            f"table {config.name!r} of {path!r} has {len(config.feature_names)} features, but its constraint has "
            f"{len(factors)} pooling_factors"
        )
    return Table(config.name, config.num_embeddings, config.embedding_dim, float(sum(factors)), data_type=data_type)
