"""The embedding tables of an unsharded model, and the optimizer that is attached to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Table
from neuroshard_pipeline.tables.task import OPTIMIZERS
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.left_out import configs_of, left_out_tables

require_torchrec()
from torchrec.distributed.planner import ParameterConstraints  # noqa: E402
from torchrec.distributed.sharding_plan import get_default_sharders  # noqa: E402
from torchrec.modules.embedding_configs import (  # noqa: E402
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection  # noqa: E402

#: Mean number of ids per sample and feature if no constraint gives it. This is TorchRec's default
#: (`planner.constants.POOLING_FACTOR`).
DEFAULT_POOLING_FACTOR = 1.0

#: The name of an optimizer in a `ShardingTask`, by the name of its class in torch or TorchRec.
_OPTIMIZER_OF_CLASS = {"SGD": "sgd", "RowWiseAdagrad": "rowwise_adagrad", "Adam": "adam"}

_SHARDED_TYPES: tuple[type[nn.Module], ...] = tuple(sharder.module_type for sharder in get_default_sharders())


@dataclass(frozen=True)
class ModuleTable:
    """A table of a model without a reuse profile, the path of its collection, and the features that look it up."""

    table: Table
    module_path: str
    feature_names: tuple[str, ...]


def embedding_bag_config(name: str, table: Table) -> EmbeddingBagConfig:
    """TorchRec's configuration of a pooled table under `name`, looked up by the features `feature_names`."""
    return EmbeddingBagConfig(**_config_values(name, table), pooling=PoolingType[table.pooling.upper()])


def embedding_config(name: str, table: Table) -> EmbeddingConfig:
    """TorchRec's configuration of a sequence table under `name`, looked up by the features `feature_names`."""
    return EmbeddingConfig(**_config_values(name, table))


def meta_collection(tables: Mapping[str, Table]) -> EmbeddingBagCollection | EmbeddingCollection:
    """A collection of tables of one kind under their names, on the meta device."""
    device, first = torch.device("meta"), next(iter(tables.values()))
    if first.pooling == "none":
        return EmbeddingCollection([embedding_config(name, table) for name, table in tables.items()], device)
    configs = [embedding_bag_config(name, table) for name, table in tables.items()]
    return EmbeddingBagCollection(configs, first.is_weighted, device)


def feature_names(name: str, table: Table) -> tuple[str, ...]:
    """Names of the features of a table that is configured under `name`. A single feature has this name itself."""
    return (name,) if table.num_features == 1 else tuple(f"{name}.{at}" for at in range(table.num_features))


def embedding_modules(
    module: nn.Module, leave_out: Collection[str] = ()
) -> dict[str, EmbeddingBagCollection | EmbeddingCollection]:
    """The `EmbeddingBagCollection`s and `EmbeddingCollection`s of an unsharded model by name, in the model's order.

    `leave_out` names modules that are planned elsewhere; all names are fully qualified.

    Raises:
        PlanError: the model holds no such module, or holds another module that TorchRec shards and that `leave_out`
            does not name.
    """
    found: dict[str, EmbeddingBagCollection | EmbeddingCollection] = {}
    for path, child in _sharded_modules(module, "", leave_out):
        if not isinstance(child, EmbeddingBagCollection | EmbeddingCollection):
            raise PlanError(
                f"module {path!r} is a {type(child).__name__}; plans are made for EmbeddingBagCollections and "
                "EmbeddingCollections only. Plan it with TorchRec's planner and name it in leave_out"
            )
        found[path] = child
    if not found:
        name = type(module).__name__
        raise PlanError(f"the {name} holds no EmbeddingBagCollection or EmbeddingCollection; give the unsharded model")
    return found


def read_module_tables(
    module: nn.Module,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    leave_out: Collection[str] = (),
    batch_size: int | None = None,
) -> list[ModuleTable]:
    """The tables of all `EmbeddingBagCollection`s and `EmbeddingCollection`s of a model.

    A feature with a pooling factor p has p ids per sample (`pooling_factors`, by default `DEFAULT_POOLING_FACTOR`). If
    it is pooled n times per sample (`num_poolings`), or has n times as many samples as others (`batch_sizes`), it costs
    as much as n features: TorchRec's estimators also count p n ids and n outputs per sample.

    Args:
        module: an unsharded model, possibly on the meta device.
        constraints: TorchRec's constraints by table.
        leave_out: fully qualified names of modules that are not planned.
        batch_size: samples per rank, in whose units `batch_sizes` are counted; None without constraints.

    Raises:
        PlanError: two modules have a table of the same name, a table has an unsupported data type, or a constraint
            names no table of the model, has another number of values than its table has features, or a number of
            outputs per sample that is not whole; or as `embedding_modules`.
        TaskError: a table is invalid, for example because its width is not a multiple of 4; the message names it.
    """
    constraints = constraints or {}
    read: dict[str, ModuleTable] = {}
    for path, collection in embedding_modules(module, leave_out).items():
        for config in configs_of(collection):
            if config.name in read:
                places = f"{read[config.name].module_path!r} and in {path!r}"
                raise PlanError(f"table {config.name!r} is in {places}; give every table of the model a unique name")
            counts = _Counts.of(config, path, constraints.get(config.name), batch_size)
            table = _table(config, collection, path, counts)
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
        for collection in embedding_modules(module, leave_out).values()
        for parameter in collection.parameters()
        for optimizer in getattr(parameter, "_optimizer_classes", [type(None)])
    }
    if len(classes) == 1 and classes <= set(_OPTIMIZER_OF_CLASS):
        return _OPTIMIZER_OF_CLASS[classes.pop()]
    found = " and ".join(sorted("no optimizer" if name == "NoneType" else name for name in classes)) or "no optimizer"
    raise PlanError(
        f"the embedding tables have {found} attached, but the memory of the optimizer must be known: call "
        f"apply_optimizer_in_backward first, or give optimizer= one of {', '.join(OPTIMIZERS)}"
    )


class _Counts(NamedTuple):
    """Ids per sample of a table, and the number of features that costs as much as its features."""

    ids: float
    features: int

    @classmethod
    def of(cls, config: EmbeddingBagConfig | EmbeddingConfig, path: str, given: Any, batch_size: int | None) -> _Counts:
        """The counts of a configuration; `given` are TorchRec's constraints on it, or None."""
        table, number = f"table {config.name!r} of {path!r}", len(config.feature_names)
        defaults = {"pooling_factors": DEFAULT_POOLING_FACTOR, "num_poolings": 1.0, "batch_sizes": batch_size or 1}
        values = {name: list(getattr(given, name, None) or [value] * number) for name, value in defaults.items()}
        for name, found in values.items():
            if len(found) != number:
                raise PlanError(f"{table} has {number} features, but its constraint has {len(found)} {name}")
        pooled, sizes = values["num_poolings"], values["batch_sizes"]
        outputs = [times * size / defaults["batch_sizes"] for times, size in zip(pooled, sizes, strict=True)]
        if round(sum(outputs)) != sum(outputs) or min(outputs) <= 0:
            raise PlanError(
                f"{table}: its constraint has num_poolings {pooled} and batch_sizes {sizes}, which make "
                f"{sum(outputs):g} outputs for each of the {defaults['batch_sizes']} samples of a rank; cost models "
                "price a whole number of outputs per sample"
            )
        ids = sum(factor * of for factor, of in zip(values["pooling_factors"], outputs, strict=True))
        return cls(float(ids), round(sum(outputs)))


def _sharded_modules(module: nn.Module, path: str, leave_out: Collection[str]) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules that `DistributedModelParallel` looks up in a plan; `path` is the name of `module`."""
    if path in leave_out:
        return
    if isinstance(module, _SHARDED_TYPES):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _sharded_modules(child, f"{path}.{name}" if path else name, leave_out)


def _config_values(name: str, table: Table) -> dict[str, Any]:
    return {
        "name": name,
        "num_embeddings": table.num_embeddings,
        "embedding_dim": table.embedding_dim,
        "feature_names": list(feature_names(name, table)),
        "data_type": DataType[table.data_type.upper()],
    }


def _table(
    config: EmbeddingBagConfig | EmbeddingConfig,
    collection: EmbeddingBagCollection | EmbeddingCollection,
    path: str,
    counts: _Counts,
) -> Table:
    """The table of a configuration."""
    data_type = config.data_type.name.lower()
    if data_type not in BYTES_PER_ELEMENT:
        known = ", ".join(BYTES_PER_ELEMENT)
        raise PlanError(f"table {config.name!r} of {path!r} is {config.data_type.name}; supported are {known}")
    is_pooled = isinstance(collection, EmbeddingBagCollection)
    return Table(
        config.name,
        config.num_embeddings,
        config.embedding_dim,
        counts.ids,
        data_type=data_type,
        pooling=config.pooling.name.lower() if is_pooled else "none",
        module=path,
        num_features=counts.features,
        is_weighted=is_pooled and collection.is_weighted(),
    )
