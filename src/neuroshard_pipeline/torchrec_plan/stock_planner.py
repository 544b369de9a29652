"""TorchRec's own planner for GPUs; the caller gives the bytes of shards and the memory limits of ranks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_config
from neuroshard_pipeline.torchrec_plan.writer import COLUMN_SHARDING_TYPES, COMPUTE_KERNEL

__all__ = ["PlannerError", "stock_plan"]

require_torchrec()
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator  # noqa: E402
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy  # noqa: E402
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator  # noqa: E402
from torchrec.distributed.planner.stats import NoopEmbeddingStats  # noqa: E402
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation  # noqa: E402
from torchrec.distributed.planner.types import CustomTopologyData, PlannerError, ShardEstimator, Storage  # noqa: E402
from torchrec.distributed.types import ShardingPlan  # noqa: E402
from torchrec.modules.embedding_modules import EmbeddingBagCollection  # noqa: E402

#: Ranks per host if the world size is a multiple of 8. Otherwise, all ranks are assumed to be on one host.
RANKS_PER_HOST = 8


class _StorageEstimator(ShardEstimator):
    """Sets the storage of every shard to `shard_bytes(table, columns)`."""

    def __init__(self, tables: Mapping[str, Table], shard_bytes: Callable[[Table, int], int]) -> None:
        self._tables = tables
        self._shard_bytes = shard_bytes

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any = None) -> None:  # noqa: ARG002
        for option in sharding_options:
            for shard in option.shards:
                shard.storage = Storage(hbm=self._shard_bytes(self._tables[option.name], shard.size[1]), ddr=0)


def stock_plan(
    tables: Mapping[str, Table],
    batch_size: int,
    memory_limits: Sequence[int],
    shard_bytes: Callable[[Table, int], int],
    num_parts: int,
    make_estimator: Callable[..., ShardEstimator] = EmbeddingPerfEstimator,
    sort_by: SortBy = SortBy.STORAGE,
) -> ShardingPlan:
    """The plan of TorchRec's `EmbeddingShardingPlanner`, restricted to table-wise and column-wise sharding.

    Args:
        tables: tables by the names that they get in the plan.
        batch_size: global batch.
        memory_limits: bytes that tables may use on each rank.
        shard_bytes: maps a table and a number of its columns to the bytes of a shard with these columns.
        num_parts: approximate number of equal shards of a table that is split.
        make_estimator: makes the performance estimator from `topology` and `constraints`.
        sort_by: the order in which TorchRec places tables, by storage or by estimated cost.

    Raises:
        PlannerError: TorchRec found no plan within the memory limits.
    """
    topology = _topology(memory_limits)
    batch_size_per_rank = -(-batch_size // topology.world_size)
    constraints = {name: _constraint(table, num_parts) for name, table in tables.items()}
    estimators = [make_estimator(topology, constraints), _StorageEstimator(tables, shard_bytes)]
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size_per_rank,
        enumerator=EmbeddingEnumerator(topology, batch_size_per_rank, constraints, estimators),
        partitioner=GreedyPerfPartitioner(sort_by),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        stats=NoopEmbeddingStats(),
        constraints=constraints,
        debug=False,
    )
    configs = [embedding_bag_config(name, table) for name, table in tables.items()]
    model = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    return planner.plan(model, [EmbeddingBagCollectionSharder()])


def _topology(memory_limits: Sequence[int]) -> Topology:
    world_size = len(memory_limits)
    return Topology(
        world_size=world_size,
        local_world_size=world_size if world_size % RANKS_PER_HOST else RANKS_PER_HOST,
        compute_device="cuda",
        ddr_cap=0,
        custom_topology_data=CustomTopologyData({"hbm_cap": list(memory_limits)}, world_size),
        created_by_factory=True,
    )


def _constraint(table: Table, num_parts: int) -> ParameterConstraints:
    return ParameterConstraints(
        sharding_types=list(COLUMN_SHARDING_TYPES),
        compute_kernels=[COMPUTE_KERNEL],
        min_partition=max(COLUMN_GRANULARITY, -(-table.embedding_dim // num_parts)),
        pooling_factors=[table.pooling_factor],
    )
