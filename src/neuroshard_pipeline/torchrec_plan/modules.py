"""The embedding tables of an unsharded model, and the optimizer that is attached to them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Table
from neuroshard_pipeline.tables.task import OPTIMIZERS
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.left_out import left_out_tables

require_torchrec()
from torchrec.distributed.planner import ParameterConstraints  # noqa: E402
from torchrec.distributed.sharding_plan import get_default_sharders  # noqa: E402
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig  # noqa: E402
from torchrec.modules.embedding_modules import EmbeddingBagCollection  # noqa: E402

#: Mean number of ids per sample and feature if no constraint gives it. This is TorchRec's default
#: (`planner.constants.POOLING_FACTOR`).
DEFAULT_POOLING_FACTOR = 1.0

#: The name of an optimizer in a `ShardingTask`, by the name of its class in torch or TorchRec.
_OPTIMIZER_OF_CLASS = {"SGD": "sgd", "RowWiseAdagrad": "rowwise_adagrad", "Adam": "adam"}

_SHARDED_TYPES: tuple[type[nn.Module], ...] = tuple(sharder.module_type for sharder in get_default_sharders())


@dataclass(frozen=True)
class ModuleTable:
    """A table of a model.

    Attributes:
        table: rows, columns and pooling factor, without a reuse profile.
        module_path: fully qualified name of the `EmbeddingBagCollection` that holds the table.
        feature_names: the features whose ids look up this table.
    """

    table: Table
    module_path: str
    feature_names: tuple[str, ...]


def embedding_bag_config(name: str, table: Table) -> EmbeddingBagConfig:
    """TorchRec's configuration of `table` under `name`, looked up by one feature of the same name."""
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        feature_names=[name],
        data_type=DataType[table.data_type.upper()],
    )


def embedding_bag_collections(module: nn.Module, leave_out: Collection[str] = ()) -> dict[str, EmbeddingBagCollection]:
    """Every `EmbeddingBagCollection` of a model by its fully qualified name, in the model's order.

    Args:
        module: an unsharded model.
        leave_out: fully qualified names of modules that are planned elsewhere.

    Raises:
        PlanError: the model holds no `EmbeddingBagCollection`, or holds another module that TorchRec shards and that
            `leave_out` does not name.
    """
    found = dict(_sharded_modules(module, "", leave_out))
    for path, child in found.items():
        if not isinstance(child, EmbeddingBagCollection):
            raise PlanError(
                f"module {path!r} is a {type(child).__name__}; plans are made for EmbeddingBagCollections only. Plan "
                "it with TorchRec's planner and name it in leave_out"
            )
    if not found:
        raise PlanError(f"the {type(module).__name__} holds no EmbeddingBagCollection; give the unsharded model")
    return found


def read_module_tables(
    module: nn.Module,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    leave_out: Collection[str] = (),
) -> list[ModuleTable]:
    """The tables of all `EmbeddingBagCollection`s of a model, weighted and unweighted.

    A table's pooling factor is the sum of the `pooling_factors` of its features in the constraints, or
    `DEFAULT_POOLING_FACTOR` times the number of its features.

    Args:
        module: an unsharded model, possibly on the meta device.
        constraints: TorchRec's constraints by table.
        leave_out: fully qualified names of modules that are not planned.

    Raises:
        PlanError: two modules have a table of the same name, a table has an unsupported data type, or a constraint
            names no table of the model or has another number of pooling factors than its table has features.
        TaskError: a table is invalid, for example because its width is not a multiple of 4; the message names it.
    """
    constraints = constraints or {}
    read: dict[str, ModuleTable] = {}
    for path, collection in embedding_bag_collections(module, leave_out).items():
        for config in collection.embedding_bag_configs():
            if config.name in read:
                raise PlanError(
                    f"table {config.name!r} is in {read[config.name].module_path!r} and in {path!r}; give every table "
                    "of the model a unique name"
                )
            table = _table(config, path, constraints.get(config.name))
            read[config.name] = ModuleTable(table, path, tuple(config.feature_names))
    unknown = sorted(set(constraints) - set(read) - left_out_tables(module, leave_out))
    if unknown:
        raise PlanError(f"a constraint names the table {unknown[0]!r}, which the model does not have")
    return list(read.values())


def read_optimizer(module: nn.Module, leave_out: Collection[str] = ()) -> str:
    """The optimizer that `apply_optimizer_in_backward` attached to the tables, as `ShardingTask` names it.

    Raises:
        PlanError: no optimizer, several optimizers or an unsupported optimizer is attached.
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
        f"the embedding tables have {found} attached, but the memory of the optimizer must be known: call "
        f"apply_optimizer_in_backward first, or give optimizer= one of {', '.join(OPTIMIZERS)}"
    )


def _sharded_modules(module: nn.Module, path: str, leave_out: Collection[str]) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules that `DistributedModelParallel` looks up in a plan; `path` is the name of `module`."""
    if path in leave_out:
        return
    if isinstance(module, _SHARDED_TYPES):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _sharded_modules(child, f"{path}.{name}" if path else name, leave_out)


def _table(config: EmbeddingBagConfig, path: str, constraint: Any) -> Table:
    data_type = config.data_type.name.lower()
    if data_type not in BYTES_PER_ELEMENT:
        raise PlanError(
            f"table {config.name!r} of {path!r} has the data type {config.data_type.name}; supported are "
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
