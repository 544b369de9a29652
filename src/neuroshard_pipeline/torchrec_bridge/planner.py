"""A planner for TorchRec: `DistributedModelParallel` trains with what it returns."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence

import torch.distributed as dist

# Functions of these two have the default group as an argument's default. Imported after `init_process_group`, as
# DistributedDataParallel does, they keep the group and its threads alive beyond `destroy_process_group`; a thread of
# gloo that still drops a tensor while the interpreter ends aborts the process (PyTorch issue 190489).
import torch.distributed.nn
import torch.distributed.optim  # noqa: F401
from torch import nn

from neuroshard_pipeline.errors import CostModelError, PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.sharders.torchrec import require_torchrec
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.agreement import agree, computed_on_first_rank, process_group
from neuroshard_pipeline.torchrec_bridge.constraints import check_constraints, check_plan, search_constraints
from neuroshard_pipeline.torchrec_bridge.modules import ModuleTable, read_module_tables, read_optimizer
from neuroshard_pipeline.torchrec_bridge.plan_json import tables_sha256
from neuroshard_pipeline.torchrec_bridge.profile import profile_from_batches
from neuroshard_pipeline.torchrec_bridge.structures import to_torchrec

require_torchrec()
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.planner import ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation  # noqa: E402
from torchrec.distributed.planner.types import StorageReservation  # noqa: E402
from torchrec.distributed.types import ModuleSharder, ShardingPlan, ShardingPlanner  # noqa: E402
from torchrec.modules.embedding_modules import EmbeddingBagCollection  # noqa: E402
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402

#: Share of a rank's memory that tables may not use where the caller says nothing: TorchRec's own default
#: (`EmbeddingShardingPlanner` reserves 15 %).
DEFAULT_RESERVATION = 0.15


class NeuroShardPlanner(ShardingPlanner):
    """Plans the `EmbeddingBagCollection`s of a model with a search over measured costs.

    It has the interface of TorchRec's `EmbeddingShardingPlanner`: `plan` on one rank, `collective_plan` on all.

    Args:
        models: cost models of the hardware that the topology describes, as `load_cost_models` returns them.
        topology: TorchRec's; ranks, ranks per host, and memory per rank (HBM for `cuda`, DDR for `cpu`).
        batch_size: samples per rank and iteration, as TorchRec's planner counts them.
        constraints: TorchRec's, by table: `pooling_factors`, `sharding_types`, `min_partition` and
            `compute_kernels` are kept, what cannot be kept is refused.
        batches: a sample of real batches, at least one global batch together; where given, pooling factors and the
            reuse profile are measured on them, else the constraints' pooling factors and the default profile are
            taken. `collective_plan` looks at the first rank's only.
        optimizer: of the tables, or None to read what `apply_optimizer_in_backward` attached to them.
        sharder: one of `neuroshard_pipeline.sharders.SHARDERS`.
        settings: of the searches and of the memory model.
        storage_reservation: TorchRec's; None reserves `DEFAULT_RESERVATION` of every rank's memory.
        leave_out: fully qualified names of modules that somebody else plans.
        seed: of sharders that draw random numbers.

    Raises:
        PlanError: the topology's device is neither `cuda` nor `cpu`.
        CostModelError: the models were measured on another kind of device than the topology's.
    """

    def __init__(
        self,
        models: Models,
        topology: Topology,
        batch_size: int,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        *,
        batches: Sequence[KeyedJaggedTensor] | None = None,
        optimizer: str | None = None,
        sharder: str = "neuroshard",
        settings: SharderSettings | None = None,
        storage_reservation: StorageReservation | None = None,
        leave_out: Collection[str] = (),
        seed: int = 0,
    ):
        if topology.compute_device not in ("cuda", "cpu"):
            raise PlanError(f"the topology's device {topology.compute_device!r} is not supported; use 'cuda' or 'cpu'")
        check_hardware(models, topology.compute_device)
        self.models = models
        self.topology = topology
        self.batch_size = batch_size
        self.constraints = dict(constraints or {})
        self.batches = batches
        self.optimizer = optimizer
        self.sharder = sharder
        self.settings = settings
        self.storage_reservation = storage_reservation or FixedPercentageStorageReservation(DEFAULT_RESERVATION)
        self.leave_out = tuple(leave_out)
        self.seed = seed

    def plan(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None) -> ShardingPlan:
        """The plan of an unsharded model, without any communication.

        Raises:
            NeuroShardError: the model cannot be planned; the message names the table or module and the remedy.
        """
        found = self.search(module, sharders)
        return to_torchrec(
            found,
            module,
            local_world_size=self.topology.local_world_size,
            compute_device=self.topology.compute_device,
            leave_out=self.leave_out,
        )

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """`plan` on the first rank of `pg` (the default group where None), broadcast to all.

        Every rank of the group must call it. An error on any rank is raised on all of them.

        Raises:
            NeuroShardError: as `plan`; or the group has not as many ranks as the topology; or the ranks' models
                differ.
        """
        pg = process_group(pg, self.topology.world_size)
        agree(pg, lambda: self._fingerprint(module))
        return computed_on_first_rank(pg, lambda: self.plan(module, sharders))

    def search(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None) -> Plan:
        """The plan in this project's own terms: to print with `explain()`, or to store with `plan_to_json`.

        Raises:
            NeuroShardError: as `plan`.
        """
        sharders = [EmbeddingBagCollectionSharder()] if sharders is None else sharders
        if not any(sharder.module_type is EmbeddingBagCollection for sharder in sharders):
            raise PlanError("sharders hold none for EmbeddingBagCollection; add EmbeddingBagCollectionSharder()")
        check_constraints(self.constraints)
        task = self.task(module, sharders)
        found = shard(task, self.models, self.sharder, self.settings, self.seed)
        check_plan(found, self.constraints)
        return found

    def task(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None) -> ShardingTask:
        """The sharding task that a model poses on this topology.

        Raises:
            NeuroShardError: as `plan`.
        """
        read = read_module_tables(module, self.constraints, self.leave_out)
        _warn_of_shared_tables(read)
        return ShardingTask(
            self._tables(read),
            world_size=self.topology.world_size,
            batch_size=self.batch_size * self.topology.world_size,
            memory_bytes=self._memory_bytes(module, sharders or [EmbeddingBagCollectionSharder()]),
            optimizer=self.optimizer or read_optimizer(module, self.leave_out),
            task_id=type(module).__name__,
            constraints=search_constraints(self.constraints, {entry.table.name for entry in read}),
        )

    def _tables(self, read: Sequence[ModuleTable]) -> list[Table]:
        """Tables with their id statistics, measured where there are batches."""
        batch_size = self.batch_size * self.topology.world_size
        tables = [entry.table for entry in read]
        if self.batches is not None:
            features = {entry.table.name: entry.feature_names for entry in read}
            tables = profile_from_batches(self.batches, tables, batch_size, features)
        return [with_profile(table, batch_size) for table in tables]

    def _memory_bytes(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> tuple[int, ...]:
        """Memory for tables on every rank, after TorchRec's reservation."""
        reserved = self.storage_reservation.reserve(
            topology=self.topology,
            batch_size=self.batch_size,
            module=module,
            sharders=list(sharders),
            constraints=self.constraints or None,
        )
        on_device = "hbm" if self.topology.compute_device == "cuda" else "ddr"
        return tuple(int(getattr(device.storage, on_device)) for device in reserved.devices)

    def _fingerprint(self, module: nn.Module) -> str:
        read = read_module_tables(module, self.constraints, self.leave_out)
        paths = " ".join(f"{entry.module_path}:{entry.table.name}" for entry in read)
        return f"{paths} {tables_sha256([entry.table for entry in read])}"


def check_hardware(models: Models, compute_device: str) -> None:
    """Models know the hardware that they were measured on, if they were measured at all.

    Raises:
        CostModelError: it is not `compute_device`; the message names both.
    """
    for part in (models.compute, models.comm):
        measured_on = getattr(part, "provenance", {}).get("hardware", {}).get("device")
        if measured_on is not None and not str(measured_on).startswith(compute_device):
            raise CostModelError(
                f"the {type(part).__name__} was measured on {measured_on!r}, but the topology says {compute_device!r}; "
                "load models of that hardware, or pretrain on it: kedro run --pipeline pretrain"
            )


def _warn_of_shared_tables(read: Sequence[ModuleTable]) -> None:
    """A table of several features sends one pooled row per feature; the cost models count one."""
    shared = [entry.table.name for entry in read if len(entry.feature_names) > 1]
    if shared:
        warnings.warn(
            f"{len(shared)} tables (such as {shared[0]!r}) answer several features; their lookups are counted in "
            "full, their communication once per table",
            stacklevel=4,
        )
