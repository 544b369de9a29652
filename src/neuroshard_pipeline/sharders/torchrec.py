"""TorchRec's own planner as a sharder. It imports TorchRec, an optional extra, on first use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError, NeuroShardError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.writer import COLUMN_SHARDING_TYPES, COMPUTE_KERNEL

#: Ranks per host, if this divides the world size: a host has 8 GPUs. Other worlds are assumed to be one host.
RANKS_PER_HOST = 8


@dataclass(frozen=True)
class TorchRecSharder:
    """TorchRec's `EmbeddingShardingPlanner` for GPUs, table-wise and column-wise, under the memory limits of the task.

    TorchRec compares plans by its own cost formulas and never uses the cost models. Two settings make its plans
    comparable with those of other sharders: its storage estimates come from the memory model that all sharders use, and
    `min_partition` allows it to split tables, which it never does below 128 columns by default. TorchRec splits a table
    into equal shards whose number is given. The sharder therefore tries halves first, then quarters and so on, until a
    plan fits. It is deterministic.
    """

    name: str = "torchrec"

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:  # noqa: ARG002
        """The placement that TorchRec's planner estimates to be fastest.

        Raises:
            NeuroShardError: the task has constraints.
            TorchRecMissingError: the extra `torchrec` is not installed.
            DoesNotFitError: TorchRec found no plan within the memory limits.
        """
        task = problem.task
        if task.constraints:
            raise NeuroShardError(
                f"{task.task_id}: the sharder {self.name!r} cannot respect constraints, because TorchRec's planner "
                "supports none of them; use another sharder"
            )
        require_torchrec()
        from torchrec.distributed.planner.types import PlannerError

        from neuroshard_pipeline.torchrec_plan.structures import read_sharding_plan

        # PyTorch makes modules of tables and refuses names such as `user.id` or `keys`.
        tables = {f"table_{index}": table for index, table in enumerate(task.tables)}
        widest = max(table.embedding_dim for table in task.tables)
        num_parts = 2
        while True:
            try:
                found = self._plan(tables, task, problem.memory, num_parts)
                return Placement(*read_sharding_plan(found, tables))
            except PlannerError as error:
                if COLUMN_GRANULARITY * num_parts >= widest:
                    message = " ".join(str(error).split())
                    raise DoesNotFitError(f"{task.task_id}: TorchRec's planner found no plan: {message}") from error
                num_parts *= 2

    def _plan(self, tables: Mapping[str, Table], task: ShardingTask, memory: MemoryModel, num_parts: int) -> Any:
        """TorchRec's `ShardingPlan` with column-wise tables split into about `num_parts` shards."""
        import torch
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import EmbeddingShardingPlanner
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
        from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
        from torchrec.distributed.planner.stats import NoopEmbeddingStats
        from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
        from torchrec.modules.embedding_modules import EmbeddingBagCollection

        from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_config

        topology = _topology(task, memory)
        constraints = {name: _constraint(table, num_parts) for name, table in tables.items()}
        batch_size_per_rank = -(-task.batch_size // task.world_size)
        estimators = [
            EmbeddingPerfEstimator(topology=topology, constraints=constraints),
            _storage_estimator(tables, task, memory),
        ]
        planner = EmbeddingShardingPlanner(
            topology=topology,
            batch_size=batch_size_per_rank,
            enumerator=EmbeddingEnumerator(topology, batch_size_per_rank, constraints, estimators),
            storage_reservation=FixedPercentageStorageReservation(0.0),
            stats=NoopEmbeddingStats(),
            constraints=constraints,
            debug=False,
        )
        configs = [embedding_bag_config(name, table) for name, table in tables.items()]
        model = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        return planner.plan(model, [EmbeddingBagCollectionSharder()])


def _topology(task: ShardingTask, memory: MemoryModel) -> Any:
    """TorchRec's `Topology`: GPUs with the memory limits of the task."""
    from torchrec.distributed.planner import Topology
    from torchrec.distributed.planner.types import CustomTopologyData

    return Topology(
        world_size=task.world_size,
        local_world_size=task.world_size if task.world_size % RANKS_PER_HOST else RANKS_PER_HOST,
        compute_device="cuda",
        ddr_cap=0,
        custom_topology_data=CustomTopologyData({"hbm_cap": list(memory.limits(task))}, task.world_size),
        created_by_factory=True,
    )


def _constraint(table: Table, num_parts: int) -> Any:
    """TorchRec's `ParameterConstraints`: the table may stay whole or be split into about `num_parts` shards."""
    from torchrec.distributed.planner import ParameterConstraints

    return ParameterConstraints(
        sharding_types=list(COLUMN_SHARDING_TYPES),
        compute_kernels=[COMPUTE_KERNEL],
        min_partition=max(COLUMN_GRANULARITY, -(-table.embedding_dim // num_parts)),
        pooling_factors=[table.pooling_factor],
    )


def _storage_estimator(tables: Mapping[str, Table], task: ShardingTask, memory: MemoryModel) -> Any:
    """TorchRec's `ShardEstimator` for storage, with the bytes that `memory` counts."""
    from torchrec.distributed.planner.types import ShardEstimator, Storage

    class MemoryModelEstimator(ShardEstimator):
        """Counts the same bytes for every shard as the other sharders."""

        def __init__(self) -> None:
            """TorchRec's estimators take a topology and constraints; this one needs neither."""

        def estimate(self, sharding_options: list[Any], sharder_data_map: Any = None) -> None:  # noqa: ARG002
            """Set the storage of every shard in place, as TorchRec's interface requires."""
            for option in sharding_options:
                for shard in option.shards:
                    shard.storage = Storage(hbm=memory.table_bytes(tables[option.name], shard.size[1], task), ddr=0)

    return MemoryModelEstimator()
