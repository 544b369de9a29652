"""Makes a module with tiers from an unsharded `EmbeddingCollection`.

The module takes the place of the unsharded one in a model. It is a `ShardedModule` of TorchRec, so
`DistributedModelParallel` leaves it as it is, and `TrainPipelineSparseDist` exchanges its ids ahead of time.

- Hot rows are on every rank. Their gradients are added up over all ranks.
- Host rows are on every host, spread over its ranks. Ids and rows are exchanged inside the host, and gradients are
  added up over the hosts.
- Cold rows, and tables without tiers, are in a sharded module of TorchRec.

All rows are updated in the backward pass by the optimizer that `apply_optimizer_in_backward` attached to the unsharded
module: cold rows by its fused form in FBGEMM, hot and host rows by its dense form. SGD, Adagrad and row-wise Adagrad
compute the same in both forms; but row-wise Adagrad of a column shard averages its own columns only. Adam differs: its
dense form also updates rows that no id of the batch looks up. The module `optimizer_state` saves and loads the
states of the first three, but not of Adam.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import DataType
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.tiers import Cuts
from neuroshard_pipeline.torchrec_bridge.tiered.groups import RankGroups
from neuroshard_pipeline.torchrec_bridge.tiered.index import PopularRows, TieredTable, TierIndex, tiered_tables
from neuroshard_pipeline.torchrec_bridge.tiered.popular import Optimizer, PopularTiers, TierOptions
from neuroshard_pipeline.torchrec_bridge.tiered.sequence import TieredEmbeddingCollection
from neuroshard_pipeline.torchrec_plan.comm_precision import torchrec_sharders


def tiered_embeddings(
    module: nn.Module,
    cuts: Mapping[str, Cuts],
    popular_rows: Mapping[str, PopularRows],
    cold: Mapping[str, ParameterSharding],
    groups: RankGroups,
    options: TierOptions | None = None,
) -> TieredEmbeddingCollection:
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
        PlanError: the module is no `EmbeddingCollection`, or the cuts, popular ids, plan or optimizer do not fit it.
    """
    if not isinstance(module, EmbeddingCollection):
        raise PlanError(f"only the tables of an EmbeddingCollection have tiers, not those of {type(module).__name__}")
    options, configs = options or TierOptions(), module.embedding_configs()
    tables = tiered_tables({config.name: config.num_embeddings for config in configs}, cuts, popular_rows)
    _check_tables(configs, tables, groups)
    optimizer, names = optimizer_of(module), [_name_of_cold_rows(table) for table in tables]
    tiers = PopularTiers(TierIndex(tables, options.device), module.embedding_dim(), groups, optimizer, options)
    cold_configs = [
        replace(config, name=name, num_embeddings=table.num_cold, feature_names=[name])
        for config, table, name in zip(configs, tables, names, strict=True)
        if name is not None
    ]
    sharded = _sharded(cold_configs, cold, optimizer, groups, options)
    tiered = TieredEmbeddingCollection(module, tiers, sharded, names, options.index_dedup)
    tiered.take_weights(module, [config.init_fn for config in configs])
    return tiered


def cold_name(table: str) -> str:
    """Name of the table that holds the cold rows of a table with tiers."""
    return f"{table}/cold"


def optimizer_of(module: nn.Module) -> Optimizer:
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


def _sharded(
    configs: Sequence[Any],
    plan: Mapping[str, ParameterSharding],
    optimizer: Optimizer,
    groups: RankGroups,
    options: TierOptions,
) -> Any:
    """TorchRec's sharded module of the cold tables; None if there are none."""
    check_cold_plan(configs, plan)
    if not configs:
        return None
    unsharded = EmbeddingCollection(list(configs), torch.device("meta"))
    apply_optimizer_in_backward(optimizer[0], unsharded.parameters(), dict(optimizer[1]))
    sharders = torchrec_sharders(options.comm_precision, options.device.type)
    (sharder,) = [each for each in sharders if each.module_type is EmbeddingCollection]
    return sharder.shard(unsharded, dict(plan), ShardingEnv.from_process_group(groups.world), options.device)
