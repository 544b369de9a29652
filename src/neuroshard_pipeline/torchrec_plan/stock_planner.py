"""TorchRec's own planner for GPUs; the caller gives the bytes of shards, and the types and kernels of each table."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_plan.comm_precision import torchrec_sharders
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.modules import meta_collection
from neuroshard_pipeline.torchrec_plan.structures import with_compute_kernel
from neuroshard_pipeline.torchrec_plan.writer import COLUMN_SHARDING_TYPES, COMPUTE_KERNEL, REPLICA_KERNEL

__all__ = ["GreedyPerfPartitioner", "PlannerError", "SortBy", "TableChoice", "stock_plan", "topology_of"]

require_torchrec()
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator  # noqa: E402
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy  # noqa: E402
from torchrec.distributed.planner.perf_models import NoopPerfModel  # noqa: E402
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator  # noqa: E402
from torchrec.distributed.planner.stats import NoopEmbeddingStats  # noqa: E402
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation  # noqa: E402
from torchrec.distributed.planner.types import Enumerator, PlannerError, ShardEstimator, Storage  # noqa: E402
from torchrec.distributed.types import ShardingPlan  # noqa: E402


@dataclass(frozen=True)
class TableChoice:
    """What TorchRec's planner may do with a table: sharding types by TorchRec's names, and some of `COMPUTE_KERNELS`.

    A column block has at least `min_partition` columns.
    """

    table: Table
    sharding_types: Sequence[str]
    min_partition: int
    compute_kernels: Sequence[str] = (COMPUTE_KERNEL,)


class Memory(Protocol):
    """Bytes of a shard (`search.memory.MemoryModel`)."""

    def shard_bytes(self, shard: Shard, task: ShardingTask) -> int:
        """Bytes of GPU memory."""
        ...

    def host_bytes(self, shard: Shard, task: ShardingTask) -> int:
        """Bytes of host memory."""
        ...


class _StorageEstimator(ShardEstimator):
    """Sets the storage of every shard to the bytes of a memory model; a shard without rows takes none."""

    def __init__(self, tables: Mapping[str, Table], task: ShardingTask, memory: Memory) -> None:
        self._tables = tables
        self._task = task
        self._memory = memory

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any = None) -> None:  # noqa: ARG002
        for option in sharding_options:
            table = with_compute_kernel(self._tables[option.name], option.compute_kernel, option.cache_load_factor)
            name = option.sharding_type
            sharding_type: Any = "column_wise" if name in COLUMN_SHARDING_TYPES else name
            for shard in option.shards:
                (row, column), (rows, width) = shard.offset, shard.size
                shard.storage = Storage(hbm=0, ddr=0)
                if rows:
                    ours = Shard(table, column, width, row, rows, sharding_type)
                    hbm, ddr = self._memory.shard_bytes(ours, self._task), self._memory.host_bytes(ours, self._task)
                    shard.storage = Storage(hbm=hbm, ddr=ddr)


class _OrderedEnumerator(Enumerator):
    """The options of another enumerator in a fixed order.

    TorchRec keeps the sharding types of a table in a set of strings. Their order differs from process to process, and
    TorchRec's planner takes the first of several options with equal estimates.
    """

    def __init__(self, enumerator: EmbeddingEnumerator) -> None:
        self._enumerator = enumerator

    def enumerate(self, module: nn.Module, sharders: list[Any]) -> list[Any]:
        """The options, ordered by table, sharding type and kernel."""
        options = self._enumerator.enumerate(module, sharders)
        return sorted(options, key=lambda each: (each.name, each.sharding_type, each.compute_kernel))

    def populate_estimates(self, sharding_options: list[Any]) -> None:
        """Set the estimates of options."""
        self._enumerator.populate_estimates(sharding_options)


def stock_plan(
    task: ShardingTask,
    choices: Mapping[str, TableChoice],
    memory_limits: Sequence[int],
    memory: Memory,
    make_estimator: Callable[..., ShardEstimator] = EmbeddingPerfEstimator,
    **options: Any,
) -> tuple[ShardingPlan, float]:
    """The plan of TorchRec's `EmbeddingShardingPlanner`, and its rating by TorchRec's performance model.

    Args:
        task: the task, whose constraints are not read. Its `host_memory_bytes` limit tables in host memory.
        choices: sharding types and kernels of each table, by its name in the plan.
        memory_limits: bytes that tables may use on each rank.
        memory: the memory model.
        make_estimator: makes the performance estimator from `topology` and `constraints`.
        options: further arguments of the planner, such as its proposers or its partitioner.

    Raises:
        PlannerError: TorchRec found no plan within the memory limits.
    """
    topology = topology_of(task, memory_limits)
    batch_size_per_rank = -(-task.batch_size // topology.world_size)
    constraints = {name: _constraint(choice) for name, choice in choices.items()}
    tables = {name: choice.table for name, choice in choices.items()}
    estimators = [make_estimator(topology, constraints), _StorageEstimator(tables, task, memory)]
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size_per_rank,
        enumerator=_OrderedEnumerator(EmbeddingEnumerator(topology, batch_size_per_rank, constraints, estimators)),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        stats=NoopEmbeddingStats(),
        constraints=constraints,
        debug=False,
        **options,
    )
    with _without_replica_warnings():
        plan = planner.plan(_model(tables), torchrec_sharders(task.comm_precision))
    return plan, NoopPerfModel(topology).rate(planner._best_plan)


def topology_of(task: ShardingTask, memory_limits: Sequence[int], **bandwidths: float) -> Topology:
    """TorchRec's topology of a task's GPUs.

    Args:
        task: the task.
        memory_limits: bytes that tables may use on each rank. They are not given as `custom_topology_data`, because
            TorchRec would then cut rows in proportion to them, but send ids as if all ranks had equally many rows.
        bandwidths: bandwidths that replace those of TorchRec.
    """
    topology = Topology(
        world_size=task.world_size,
        local_world_size=task.ranks_per_host,
        compute_device="cuda",
        ddr_cap=0,
        created_by_factory=True,
        **bandwidths,
    )
    for device, limit in zip(topology.devices, memory_limits, strict=True):
        device.storage.hbm = limit
        device.storage.ddr = task.host_memory_bytes or 0
    return topology


@contextmanager
def _without_replica_warnings() -> Iterator[None]:
    """Drop TorchRec's warning that a replicated table has no sharding specification; such tables never have one."""

    def is_other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Sharding spec not found")

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def _constraint(choice: TableChoice) -> ParameterConstraints:
    table = choice.table
    return ParameterConstraints(
        sharding_types=list(choice.sharding_types),
        compute_kernels=[*choice.compute_kernels, REPLICA_KERNEL],
        min_partition=choice.min_partition,
        pooling_factors=[table.pooling_factor / table.num_features] * table.num_features,
        is_weighted=table.is_weighted,
    )


def _model(tables: Mapping[str, Table]) -> nn.ModuleDict:
    """The tables in as few collections as TorchRec accepts. Its estimates do not depend on a table's collection."""
    found: dict[str, dict[str, Table]] = {}
    for name, table in tables.items():
        is_pooled = table.pooling != "none"
        kind = f"bags_{table.is_weighted}" if is_pooled else f"sequences_{table.embedding_dim}"
        found.setdefault(kind, {})[name] = table
    return nn.ModuleDict({kind: meta_collection(own) for kind, own in found.items()})
