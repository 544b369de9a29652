"""Makes a module with tiers from an unsharded one.

The module takes the place of the unsharded one in a model. It is a `ShardedModule` of TorchRec, so
`DistributedModelParallel` leaves it as it is, and `TrainPipelineSparseDist` exchanges its ids ahead of time.

- Hot rows are on every rank. Their gradients are added up over all ranks.
- Host rows are on every host, spread over its ranks. Ids and rows are exchanged inside the host, and gradients are
  added up over the hosts.
- Cold rows, and tables without tiers, are in a sharded module of TorchRec.

Outputs of an `EmbeddingBagCollection` are sums over the tiers. Outputs of an `EmbeddingCollection` are put into the
order of the ids.

All rows are updated in the backward pass by the optimizer that `apply_optimizer_in_backward` attached to the unsharded
module: cold rows by its fused form in FBGEMM, hot and host rows by its dense form. SGD, Adagrad and row-wise Adagrad
compute the same in both forms; but row-wise Adagrad of a column shard averages its own columns only. Adam differs: its
dense form also updates rows that no id of the batch looks up. The module `optimizer_state` saves and loads the
states of the first three, but not of Adam.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.tiers import Cuts
from neuroshard_pipeline.torchrec_bridge.tiered.base import TieredModule
from neuroshard_pipeline.torchrec_bridge.tiered.groups import RankGroups
from neuroshard_pipeline.torchrec_bridge.tiered.index import PopularRows, TieredTable, TierIndex, tiered_tables
from neuroshard_pipeline.torchrec_bridge.tiered.options import TierOptions
from neuroshard_pipeline.torchrec_bridge.tiered.pooled import PooledFeature, TieredEmbeddingBagCollection
from neuroshard_pipeline.torchrec_bridge.tiered.popular import Optimizer, PopularTiers
from neuroshard_pipeline.torchrec_bridge.tiered.sequence import TieredEmbeddingCollection
from neuroshard_pipeline.torchrec_bridge.tiered.state import TableParts
from neuroshard_pipeline.torchrec_plan.comm_precision import torchrec_sharders


def tiered_embeddings(
    module: EmbeddingCollection | EmbeddingBagCollection,
    cuts: Mapping[str, Cuts],
    popular_rows: Mapping[str, PopularRows],
    cold: Mapping[str, ParameterSharding],
    groups: RankGroups,
    options: TierOptions | None = None,
) -> TieredModule:
    """A sharded module that returns what `module` returns and whose tables have tiers. This is a collective.

    Args:
        module: the unsharded module. Its weights are taken; if any of them is on the meta device, `init_fn` fills all.
        cuts: numbers of hot and host rows of the tables with tiers.
        popular_rows: for every table with tiers, its most popular ids, the most popular first; equal on all ranks.
        cold: TorchRec's plan of the cold rows and of the tables without tiers. The cold rows of a table have the name
            `cold_name(table)`. A table without cold rows is left out.
        groups: the process groups, from `rank_groups`.
        options: deduplication of ids, number format between ranks, and device; None for the defaults.

    Raises:
        PlanError: the cuts, popular ids, plan, optimizer or options do not fit the module; the message says how.
    """
    options = options or TierOptions()
    is_pooled = isinstance(module, EmbeddingBagCollection)
    if is_pooled and options.index_dedup:
        raise PlanError("index_dedup is for EmbeddingCollections only; set it to false for an EmbeddingBagCollection")
    configs = module.embedding_bag_configs() if is_pooled else module.embedding_configs()
    tables = tiered_tables({config.name: config.num_embeddings for config in configs}, cuts, popular_rows)
    _check_tables(configs, tables, groups)
    work = _Work(list(zip(configs, tables, strict=True)), cold, groups, optimizer_of(module), options)
    tiered = _pooled(module, work) if is_pooled else _sequences(module, work)
    if any(weight.is_meta for weight in module.parameters()):
        tiered.initialise([config.init_fn for config in configs])
    else:
        tiered.load_state_dict(module.state_dict())
    return tiered


def cold_name(table: str) -> str:
    """Name of the table that holds the cold rows of a table with tiers."""
    return f"{table}/cold"


def optimizer_of(module: torch.nn.Module) -> Optimizer:
    """The optimizer that `apply_optimizer_in_backward` attached to the tables of an unsharded module.

    Raises:
        PlanError: there is no optimizer, or not the same for all tables.
    """
    found: list[Optimizer] = []
    for weight in module.parameters():
        classes, arguments = getattr(weight, "_optimizer_classes", []), getattr(weight, "_optimizer_kwargs", [])
        own = list(zip(classes, arguments, strict=True))
        if len(own) != 1 or (found and own != found):
            raise PlanError(
                "a module with tiers needs the same optimizer for all its tables; call once before: "
                "apply_optimizer_in_backward(class of the optimizer, module.parameters(), arguments)"
            )
        found = own
    return found[0]


def check_cold_plan(configs: Sequence[Any], plan: Mapping[str, ParameterSharding]) -> None:
    """Refuse a plan that replicates a table, or whose tables or numbers of rows differ from those in `configs`."""
    rows = {config.name: config.num_embeddings for config in configs}
    for name in sorted(rows.keys() ^ plan.keys()):
        where = "the plan of cold rows lacks" if name in rows else "the module has no cold rows for"
        raise PlanError(f"{where} the table {name!r}; the plan must have exactly the tables {', '.join(sorted(rows))}")
    for name, sharding in plan.items():
        if sharding.sharding_type == "data_parallel":
            raise PlanError(f"table {name!r} is data_parallel in the plan of cold rows; make all its rows hot instead")
        shards = [] if sharding.sharding_spec is None else sharding.sharding_spec.shards
        planned = max((shard.shard_offsets[0] + shard.shard_sizes[0] for shard in shards), default=rows[name])
        if planned != rows[name]:
            raise PlanError(f"table {name!r} has {rows[name]} rows, but {planned} in the plan of cold rows")


def _check_tables(configs: Sequence[Any], tables: Sequence[TieredTable], groups: RankGroups) -> None:
    """Refuse tables with tiers that are not FP32, and popular ids or cuts that differ between ranks."""
    for config, table in zip(configs, tables, strict=True):
        if table.num_popular and config.data_type != DataType.FP32:
            raise PlanError(f"table {table.name!r} is {config.data_type.name}; tables with tiers must be FP32")
    ids = {table.name: torch.cat([table.hot, table.host]).numpy().tobytes() for table in tables}
    digests = {table.name: (len(table.hot), hashlib.sha256(ids[table.name]).hexdigest()) for table in tables}
    of_ranks: list[Any] = [None] * groups.world.size()
    dist.all_gather_object(of_ranks, digests, group=groups.world)
    for rank, other in enumerate(of_ranks):
        for name in sorted(digests.keys() | other.keys()):
            if of_ranks[0].get(name) != other.get(name):
                raise PlanError(
                    f"rank {rank} has other popular_rows or cuts of table {name!r} than rank 0; give all ranks the same"
                )


def _name_of_cold_rows(table: TieredTable) -> str | None:
    if not table.num_popular:
        return table.name
    return cold_name(table.name) if table.num_cold else None


@dataclasses.dataclass(frozen=True)
class _Work:
    """What a module is made from: configurations and tables, the plan of cold rows, and the arguments of all parts."""

    tables: list[tuple[Any, TieredTable]]
    plan: Mapping[str, ParameterSharding]
    groups: RankGroups
    optimizer: Optimizer
    options: TierOptions

    def popular(self, tables: Sequence[TieredTable], width: int) -> PopularTiers:
        """The module of the hot and host rows of tables of one width."""
        index = TierIndex(tables, self.options.device)
        return PopularTiers(index, width, self.groups, self.optimizer, self.options)

    def cold(self, make: type[Any], configs: Sequence[Any], **arguments: Any) -> Any:
        """TorchRec's sharded module of the cold tables with these configurations, or None if there are none.

        `make` is the type of the unsharded module, and `arguments` are further arguments of it.
        """
        check_cold_plan(configs, self.plan)
        if not configs:
            return None
        unsharded = make(tables=list(configs), device=torch.device("meta"), **arguments)
        apply_optimizer_in_backward(self.optimizer[0], unsharded.parameters(), dict(self.optimizer[1]))
        env = ShardingEnv.from_process_group(self.groups.world)
        device = self.options.device
        sharders = torchrec_sharders(self.options.comm_precision, device.type)
        (sharder,) = [each for each in sharders if each.module_type is make]
        return sharder.shard(unsharded, dict(self.plan), env, device)


def _sequences(module: EmbeddingCollection, work: _Work) -> TieredEmbeddingCollection:
    tables = [table for _, table in work.tables]
    names = [_name_of_cold_rows(table) for table in tables]
    configs = [
        dataclasses.replace(config, name=name, num_embeddings=table.num_cold, feature_names=[name])
        for (config, table), name in zip(work.tables, names, strict=True)
        if name is not None
    ]
    tiers = work.popular(tables, module.embedding_dim())
    cold = work.cold(EmbeddingCollection, configs)
    tiered = TieredEmbeddingCollection(module, tiers, cold, names, work.options.index_dedup)
    tiered.parts = [
        TableParts(f"embeddings.{table.name}.weight", tiers, at, name and f"embeddings.{name}.weight")
        for at, (table, name) in enumerate(zip(tables, names, strict=True))
    ]
    return tiered


def _pooled(module: EmbeddingBagCollection, work: _Work) -> TieredEmbeddingBagCollection:
    configs = [config for config, _ in work.tables]
    weighs_means = any(config.pooling == PoolingType.MEAN and table.num_popular for config, table in work.tables)
    widths = list(dict.fromkeys(config.embedding_dim for config in configs))
    of_width = [[table for config, table in work.tables if config.embedding_dim == width] for width in widths]
    tiers = [work.popular(tables, width) for tables, width in zip(of_width, widths, strict=True)]
    outputs = get_embedding_names_by_table(configs)
    features, parts = [], []
    for (config, table), names in zip(work.tables, outputs, strict=True):
        width, cold = widths.index(config.embedding_dim), _name_of_cold_rows(table)
        place = width, of_width[width].index(table)
        features.append(_pooled_features(config, table, names, place, weighs_means))
        cold_key = cold and f"embedding_bags.{cold}.weight"
        parts.append(TableParts(f"embedding_bags.{table.name}.weight", tiers[width], place[1], cold_key))
    tiered = TieredEmbeddingBagCollection(
        tiers,
        _cold_bags(work, features, weighs_means, module.is_weighted() or weighs_means),
        sorted((each for own in features for each in own), key=lambda each: each.width),
        [name for names in outputs for name in names],
        is_weighted=module.is_weighted(),
        weighs_cold=module.is_weighted() or weighs_means,
    )
    tiered.parts = parts
    return tiered


def _pooled_features(
    config: EmbeddingBagConfig, table: TieredTable, outputs: Sequence[str], place: tuple[int, int], weighs_means: bool
) -> list[PooledFeature]:
    """The features of a table. If `weighs_means`, a mean is a sum in which ids weigh 1 / (number in the bag)."""
    cold = _name_of_cold_rows(table)
    is_mean = weighs_means and config.pooling == PoolingType.MEAN
    return [
        PooledFeature(name, output, *place, is_mean, cold and f"{cold}/{number}", table.num_popular > 0)
        for number, (name, output) in enumerate(zip(config.feature_names, outputs, strict=True))
    ]


def _cold_bags(work: _Work, features: Sequence[Sequence[PooledFeature]], weighs_means: bool, is_weighted: bool) -> Any:
    configs = []
    for (config, table), own in zip(work.tables, features, strict=True):
        name = _name_of_cold_rows(table)
        if name is not None:
            names = [each.cold_feature for each in own]
            pooling = PoolingType.SUM if weighs_means else config.pooling
            changes = {"num_embeddings": table.num_cold, "feature_names": names, "pooling": pooling}
            configs.append(dataclasses.replace(config, name=name, **changes))
    return work.cold(EmbeddingBagCollection, configs, is_weighted=is_weighted)
