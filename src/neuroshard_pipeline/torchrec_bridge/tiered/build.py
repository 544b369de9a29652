"""Makes a module with tiers from an unsharded one."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.tiers import Cuts
from neuroshard_pipeline.torchrec_bridge.tiered.groups import RankGroups
from neuroshard_pipeline.torchrec_bridge.tiered.index import TieredTable, TierIndex, tiered_tables
from neuroshard_pipeline.torchrec_bridge.tiered.popular import Optimizer, PopularTiers
from neuroshard_pipeline.torchrec_bridge.tiered.sequence import TieredEmbeddingCollection
from neuroshard_pipeline.torchrec_bridge.tiered.state import TableParts


def tiered_embeddings(
    module: EmbeddingCollection,
    cuts: Mapping[str, Cuts],
    popular_rows: Mapping[str, torch.Tensor],
    cold: Mapping[str, ParameterSharding],
    groups: RankGroups,
    *,
    index_dedup: bool = False,
    device: torch.device | None = None,
) -> TieredEmbeddingCollection:
    """A sharded module that returns what `module` returns and whose tables have tiers. This is a collective.

    The module takes the place of the unsharded one in a model. It is a `ShardedModule` of TorchRec, so
    `DistributedModelParallel` leaves it as it is. Its parts run as follows.

    - Hot rows are on every rank. Their gradients are added up over all ranks.
    - Host rows are on every host, spread over its ranks. Ids and rows are exchanged inside the host, and gradients are
      added up over the hosts.
    - Cold rows, and tables without tiers, are in a module of TorchRec that is sharded as `cold` says.

    All rows are updated in the backward pass by the optimizer that `apply_optimizer_in_backward` attached to `module`:
    cold rows by FBGEMM's fused form of it, hot and host rows by its dense form. SGD and row-wise Adagrad compute the
    same in both forms. Adam does not: its dense form also updates rows that no id of the batch looks up. The
    optimizers' state is not part of `state_dict`.

    Args:
        module: the unsharded module. Its weights are taken; where they are on the meta device, `init_fn` is called.
        cuts: numbers of hot and host rows of the tables with tiers.
        popular_rows: for every table with tiers, its most popular ids, the most popular first; equal on all ranks.
        cold: TorchRec's plan of the cold rows: `cold_name(table)` for a table with tiers, the name of the table for
            one without. A table without cold rows is left out.
        groups: the process groups, from `rank_groups`.
        index_dedup: whether every distinct id of this rank's samples is looked up and exchanged once, as TorchRec's
            `use_index_dedup` does it, which runs on GPUs only.
        device: the device of this rank; None for the CPU.

    Raises:
        PlanError: the cuts, the popular ids, the plan or the optimizer do not fit the module; the message says how.
    """
    device = device or torch.device("cpu")
    optimizer = optimizer_of(module)
    configs = module.embedding_configs()
    tables = tiered_tables({config.name: config.num_embeddings for config in configs}, cuts, popular_rows)
    for config, table in zip(configs, tables, strict=True):
        if table.num_popular and config.data_type != DataType.FP32:
            raise PlanError(f"table {table.name!r} is {config.data_type.name}; tables with tiers must be FP32")
    tiers = PopularTiers(TierIndex(tables, device), module.embedding_dim(), groups, optimizer, device)
    names = [_name_of_cold_rows(table) for table in tables]
    cold_configs = [
        dataclasses.replace(config, name=name, num_embeddings=table.num_cold, feature_names=[name])
        for config, table, name in zip(configs, tables, names, strict=True)
        if name is not None
    ]
    check_cold_plan(cold_configs, cold)
    sharded = _sharded_sequences(cold_configs, cold, optimizer, groups, device) if cold_configs else None
    tiered = TieredEmbeddingCollection(module, tiers, sharded, names, index_dedup)
    tiered.parts = [
        TableParts(f"embeddings.{table.name}.weight", tiers, at, name and f"embeddings.{name}.weight")
        for at, (table, name) in enumerate(zip(tables, names, strict=True))
    ]
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
    """Refuse a plan that does not have exactly the tables with these configurations and their rows."""
    rows = {config.name: config.num_embeddings for config in configs}
    for name in sorted(rows.keys() ^ plan.keys()):
        where = "the plan of cold rows lacks" if name in rows else "the module has no cold rows for"
        raise PlanError(f"{where} the table {name!r}; the plan must have exactly the tables {', '.join(sorted(rows))}")
    for name, sharding in plan.items():
        shards = [] if sharding.sharding_spec is None else sharding.sharding_spec.shards
        planned = max((shard.shard_offsets[0] + shard.shard_sizes[0] for shard in shards), default=rows[name])
        if planned != rows[name]:
            raise PlanError(f"table {name!r} has {rows[name]} rows, but {planned} in the plan of cold rows")


def _name_of_cold_rows(table: TieredTable) -> str | None:
    if not table.num_popular:
        return table.name
    return cold_name(table.name) if table.num_cold else None


def _sharded_sequences(
    configs: Sequence[EmbeddingConfig],
    plan: Mapping[str, ParameterSharding],
    optimizer: Optimizer,
    groups: RankGroups,
    device: torch.device,
) -> Any:
    for name, sharding in plan.items():
        if sharding.sharding_type == "data_parallel":
            raise PlanError(f"TorchRec cannot train the sequence table {name!r} data_parallel; make all its rows hot")
    unsharded = EmbeddingCollection(tables=list(configs), device=torch.device("meta"))
    apply_optimizer_in_backward(optimizer[0], unsharded.parameters(), dict(optimizer[1]))
    env = ShardingEnv.from_process_group(groups.world)
    return EmbeddingCollectionSharder().shard(unsharded, dict(plan), env, device)
