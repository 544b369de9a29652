"""TorchRec's own planner as a sharder, and the way from TorchRec's plans back to ours.

TorchRec is an optional extra: it is imported when it is used, not when this module is.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError, NeuroShardError, PlanError
from neuroshard_pipeline.search.memory import WEIGHTS_AND_OPTIMIZER, MemoryModel
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask

if TYPE_CHECKING:
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.types import ShardingPlan

#: Ranks per host that TorchRec's bandwidths assume where the world is larger: a host of 8 GPUs.
RANKS_PER_HOST = 8

#: The only forms of TorchRec's plans that are plans of column shards.
COLUMN_FORMS = ("table_wise", "column_wise")


class TorchRecMissingError(NeuroShardError):
    """The optional extra that brings TorchRec is not installed."""


@dataclass(frozen=True)
class TorchRecSharder:
    """TorchRec's `EmbeddingShardingPlanner`, table-wise and column-wise, under the memory of the task.

    TorchRec rates plans by its own cost formulas and never looks at the cost models. Two things are set so that it
    competes on the same ground: its storage estimate is the memory model that every other sharder meets, and
    `min_partition` lets it split tables, which it never does below 128 columns by itself. It splits a table evenly
    into as many shards as it is told, so it is asked with halves first, then with quarters and so on until a plan
    fits. Deterministic.

    Attributes:
        memory: what counts against the memory of a rank.
        compute_device: whose formulas TorchRec takes, `cuda` (memory is HBM) or `cpu` (memory is DDR).
        local_world_size: ranks per host, or None for `RANKS_PER_HOST` where that divides the world, else one host.
    """

    memory: MemoryModel
    compute_device: Literal["cuda", "cpu"] = "cuda"
    local_world_size: int | None = None
    name: str = "torchrec"

    def shard(self, task: ShardingTask, models: Models, rng: np.random.Generator) -> Plan:  # noqa: ARG002
        """The plan that TorchRec's planner rates best.

        Raises:
            NeuroShardError: the task has constraints.
            TorchRecMissingError: the extra `torchrec` is not installed.
            DoesNotFitError: TorchRec found no plan within the memory.
        """
        if task.constraints:
            raise NeuroShardError(
                f"{task.task_id}: the sharder {self.name!r} cannot respect constraints, as TorchRec's planner knows "
                "none of these; use another sharder"
            )
        require_torchrec()
        renamed = _renamed(task)
        largest_dim = max(table.embedding_dim for table in task.tables)
        parts = 2
        while True:
            try:
                found = plan_from_torchrec(self._plan(renamed, parts), renamed, self.name, self.memory)
                return _with_names_of(task, found)
            except _NoFitError as error:
                if COLUMN_GRANULARITY * parts >= largest_dim:
                    raise DoesNotFitError(f"{task.task_id}: TorchRec's planner found no plan: {error}") from error
                parts *= 2

    def _plan(self, task: ShardingTask, parts: int) -> ShardingPlan:
        """TorchRec's plan where column-wise means splitting into about `parts` shards."""
        import torch
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner.types import PlannerError
        from torchrec.modules.embedding_modules import EmbeddingBagCollection

        tables = [_embedding_bag_config(table) for table in task.tables]
        model = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        try:
            return self._planner(task, parts).plan(model, [EmbeddingBagCollectionSharder()])
        except PlannerError as error:
            raise _NoFitError(" ".join(str(error).split())) from error

    def _planner(self, task: ShardingTask, parts: int) -> EmbeddingShardingPlanner:
        from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
        from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
        from torchrec.distributed.planner.stats import NoopEmbeddingStats
        from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
        from torchrec.distributed.planner.types import CustomTopologyData

        kind = "hbm_cap" if self.compute_device == "cuda" else "ddr_cap"
        limits = CustomTopologyData({kind: list(self.memory.limits(task))}, task.world_size)
        topology = Topology(
            world_size=task.world_size,
            local_world_size=self._ranks_per_host(task),
            compute_device=self.compute_device,
            ddr_cap=0,
            custom_topology_data=limits,
            created_by_factory=True,
        )
        constraints = {
            table.name: ParameterConstraints(
                sharding_types=list(COLUMN_FORMS),
                compute_kernels=["fused"],
                min_partition=max(COLUMN_GRANULARITY, -(-table.embedding_dim // parts)),
                pooling_factors=[table.pooling_factor],
            )
            for table in task.tables
        }
        batch_size = -(-task.batch_size // task.world_size)
        estimators = [
            EmbeddingPerfEstimator(topology=topology, constraints=constraints),
            _task_storage_estimator(task, self.memory, self.compute_device),
        ]
        return EmbeddingShardingPlanner(
            topology=topology,
            batch_size=batch_size,
            enumerator=EmbeddingEnumerator(topology, batch_size, constraints, estimators),
            storage_reservation=FixedPercentageStorageReservation(0.0),
            stats=NoopEmbeddingStats(),
            constraints=constraints,
            debug=False,
        )

    def _ranks_per_host(self, task: ShardingTask) -> int:
        if self.local_world_size is not None:
            return self.local_world_size
        return task.world_size if task.world_size % RANKS_PER_HOST else RANKS_PER_HOST


def _renamed(task: ShardingTask) -> ShardingTask:
    """`task` with plain table names: PyTorch makes modules of tables and refuses names such as `user.id` or `keys`."""
    tables = [dataclasses.replace(table, name=f"table_{index}") for index, table in enumerate(task.tables)]
    return dataclasses.replace(task, tables=tables)


def _with_names_of(task: ShardingTask, renamed: Plan) -> Plan:
    """A plan for `_renamed(task)` as a plan for `task`."""
    original = dict(zip(renamed.task.tables, task.tables, strict=True))
    shards = (Shard(original[shard.table], shard.column_offset, shard.embedding_dim) for shard in renamed.shards)
    return dataclasses.replace(renamed, task=task, shards=tuple(shards))


class _NoFitError(Exception):
    """TorchRec's planner found no plan."""


def require_torchrec() -> None:
    """Import TorchRec, without the warnings that it and FBGEMM give while they are imported.

    Raises:
        TorchRecMissingError: TorchRec cannot be imported; the message names the extra that brings it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("torchrec.distributed")
        except (ImportError, OSError) as error:
            raise TorchRecMissingError(
                f"TorchRec cannot be imported ({error}); install the extra 'torchrec', which sharding for TorchRec "
                "needs: see the README"
            ) from error


def plan_from_torchrec(
    plan: ShardingPlan, task: ShardingTask, sharder: str = "torchrec", memory: MemoryModel = WEIGHTS_AND_OPTIMIZER
) -> Plan:
    """Our plan of a plan in TorchRec's structures, with the tables of all its modules.

    Args:
        plan: table-wise and column-wise throughout.
        task: the task that it answers; its tables have the names of TorchRec's.
        sharder: the name that the plan is to carry.
        memory: what counts against the memory of a rank.

    Raises:
        PlanError: another sharding type, a table that the task does not know or that has other rows, or whatever
            `Plan` refuses.
    """
    tables = {table.name: table for table in task.tables}
    shards: list[Shard] = []
    ranks: list[int] = []
    for module in plan.plan.values():
        for name, parameter in module.items():
            if name not in tables:
                raise PlanError(f"{task.task_id}: TorchRec's plan has the table {name!r}, which the task does not know")
            placed = _shards_of(tables[name], parameter)
            shards += [shard for shard, _ in placed]
            ranks += [rank for _, rank in placed]
    return Plan(task, tuple(shards), tuple(ranks), sharder, None, memory)


def _shards_of(table: Table, parameter: Any) -> Sequence[tuple[Shard, int]]:
    """Shards and ranks of one table's `ParameterSharding`."""
    if parameter.sharding_type not in COLUMN_FORMS:
        raise PlanError(
            f"table {table.name!r} is sharded {parameter.sharding_type}; only {' and '.join(COLUMN_FORMS)} are plans "
            "of column shards"
        )
    placed = []
    for shard, rank in zip(parameter.sharding_spec.shards, parameter.ranks, strict=True):
        rows, columns = shard.shard_sizes
        if shard.shard_offsets[0] or rows != table.num_embeddings:
            raise PlanError(f"table {table.name!r} has {table.num_embeddings} rows, but TorchRec's plan has {rows}")
        placed.append((Shard(table, shard.shard_offsets[1], columns), rank))
    return placed


def _embedding_bag_config(table: Table) -> Any:
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig

    return EmbeddingBagConfig(
        name=table.name,
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        feature_names=[table.name],
        data_type=DataType[table.data_type.upper()],
    )


def _task_storage_estimator(task: ShardingTask, memory: MemoryModel, compute_device: str) -> Any:
    """TorchRec's storage estimator with the bytes of `memory`."""
    from torchrec.distributed.planner.types import ShardEstimator, Storage

    tables = {table.name: table for table in task.tables}

    class TaskStorageEstimator(ShardEstimator):
        """Gives every shard the bytes that the other sharders count too."""

        def __init__(self) -> None:
            """It needs neither topology nor constraints."""

        def estimate(self, sharding_options: list[Any], sharder_data_map: Any = None) -> None:  # noqa: ARG002
            """Set the storage of every shard, as TorchRec's interface asks."""
            for option in sharding_options:
                for shard in option.shards:
                    used = memory.table_bytes(tables[option.name], shard.size[1], task)
                    shard.storage = Storage(hbm=used, ddr=0) if compute_device == "cuda" else Storage(hbm=0, ddr=used)

    return TaskStorageEstimator()
