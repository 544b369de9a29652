"""A planner for TorchRec. It makes the plans with which `DistributedModelParallel` shards a model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch.distributed as dist

# Functions of these two modules have the default process group as a default argument. If the modules are first imported
# after `init_process_group`, for instance by DistributedDataParallel, these functions keep the group and its threads
# alive after `destroy_process_group`. A gloo thread that frees a tensor while the interpreter exits then aborts the
# process (PyTorch issue 190489).
import torch.distributed.nn
import torch.distributed.optim  # noqa: F401
from torch import nn

from neuroshard_pipeline.errors import DoesNotFitError, PlanError
from neuroshard_pipeline.evaluation.peak_memory import peak_memory
from neuroshard_pipeline.replanning import replan
from neuroshard_pipeline.search.models import Models, check_hardware
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.agreement import agree, gathered, process_group
from neuroshard_pipeline.torchrec_bridge.constraints import search_constraints, with_kernel_settings, with_kernels
from neuroshard_pipeline.torchrec_bridge.made_for import MadeFor, load_plan
from neuroshard_pipeline.torchrec_bridge.plan_json import is_document, read_document, tables_sha256
from neuroshard_pipeline.torchrec_bridge.planner_options import PlannerOptions
from neuroshard_pipeline.torchrec_bridge.profile import profile_from_batches
from neuroshard_pipeline.torchrec_bridge.running import read_plan
from neuroshard_pipeline.torchrec_plan.comm_precision import precision_of, torchrec_sharders
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.left_out import unplanned_bytes
from neuroshard_pipeline.torchrec_plan.modules import ModuleTable, embedding_modules, read_module_tables, read_optimizer

require_torchrec()
from torchrec.distributed.comm import get_local_size  # noqa: E402
from torchrec.distributed.planner import ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.types import ModuleSharder, ShardingPlan, ShardingPlanner  # noqa: E402
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402

#: Most searches with less memory, if the peak of a step needs more than a plan leaves.
_MOST_SEARCHES = 4


class NeuroShardPlanner(ShardingPlanner):
    """Plans the `EmbeddingBagCollection`s and `EmbeddingCollection`s of a model with a search over predicted costs.

    It has the interface of TorchRec's `EmbeddingShardingPlanner`: `plan` on one rank, `collective_plan` on all ranks.

    Args:
        models: cost models of the hardware that the topology describes, as `load_cost_models` returns them.
        topology: TorchRec's topology with ranks, ranks per host, and memory per rank (HBM for `cuda`, DDR for `cpu`).
            The DDR of a topology for `cuda` is host memory, to which tables move if they do not fit HBM otherwise.
        batch_size: samples per rank and iteration, as for TorchRec's planner.
        constraints: TorchRec's constraints by table. `pooling_factors`, `num_poolings`, `batch_sizes`,
            `sharding_types`, `min_partition`, `compute_kernels` and the load factor of `cache_params` are respected,
            `enforce_hbm`, `stochastic_rounding` and `bounds_check_mode` are passed on; constraints that no plan can
            meet are refused.
        batches: a sample of real batches, together at least one global batch, from which pooling factors and reuse
            profiles are measured. If None, the pooling factors of the constraints and default profiles are used.
            `collective_plan` uses the batches of the first rank only.
        optimizer: the optimizer of the tables, or None to read what `apply_optimizer_in_backward` attached to them.
        options: the sharder, its settings, and what is needed only in special cases.

    Raises:
        PlanError: the topology's device is neither `cuda` nor `cpu`.
        CostModelError: the models predict the costs of a kind of device that differs from the topology's.
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
        options: PlannerOptions | None = None,
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
        self.options = options or PlannerOptions()

    def plan(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None) -> ShardingPlan:
        """The plan of an unsharded model, made without communication.

        Raises:
            NeuroShardError: the model cannot be planned; the message names the table or module and the remedy.
        """
        plan = self.search(module, sharders).to_torchrec(
            module, self.topology.local_world_size, self.topology.compute_device, self.options.leave_out
        )
        return with_kernel_settings(plan, self.constraints)

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """The result of `plan` on the first rank of `pg` (None for the default group), broadcast to all ranks.

        Every rank of the group must call this method. An error on any rank is raised on all of them.

        Raises:
            NeuroShardError: as `plan`; or the group does not have `topology.world_size` ranks per replica group; or
                the ranks' models have different tables or module names; or the plan does not suit the number of ranks
                per host that TorchRec reads from the environment (`check_hosts`).
        """
        pg = process_group(pg, self.topology.world_size * self.options.num_replica_groups)
        agree(pg, lambda: self._fingerprint(module))
        plan, *_ = gathered(pg, lambda: self.plan(module, sharders) if pg.rank() == 0 else ShardingPlan({}))
        if self.options.num_replica_groups == 1:  # `DMPCollection` gets the ranks per host as `node_group_size`
            gathered(pg, lambda: check_hosts(plan, self.topology))
        return plan

    def search(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None) -> Plan:
        """The plan as this project's `Plan`, for `explain()` or `plan_to_json`.

        Raises:
            NeuroShardError: as `plan`.
        """
        made_for, options = self.made_for(module, sharders), self.options
        present, task, settings = options.present, made_for.task, made_for.settings
        if is_document(present) and not made_for.differences(read_document(present)):
            return load_plan(present, made_for)
        for _ in range(_MOST_SEARCHES):
            try:
                found = self._searched(task, settings)
            except DoesNotFitError:
                if task is made_for.task:
                    raise
                break
            peak = peak_memory(found)
            needed = peak.allocated if self.topology.compute_device == "cpu" else peak.reserved
            missing = np.ceil(np.maximum(needed - made_for.task.memory_limits, 0.0)).astype(np.int64)  # (W,)
            if options.storage_reservation is not None or not missing.any():
                return found
            limits = np.where(missing > 0, np.array(found.memory_bytes) - missing, task.memory_limits)
            task = replace(task, memory_bytes=tuple(np.maximum(limits, 1).tolist()))
        raise PlanError(
            f"at the peak of a step, rank {missing.argmax()} needs {missing.max()} bytes more than it has; use ranks "
            "with more memory or a smaller batch, or give your own storage_reservation"
        )

    def _searched(self, task: ShardingTask, settings: SharderSettings) -> Plan:
        options = self.options
        if options.present is None:
            return shard(task, self.models, options.sharder, settings, options.seed)
        limits = [] if options.gib_per_rank is None else [options.gib_per_rank]
        found = replan(read_plan(options.present, task), task, self.models, limits, settings, options.seed)
        return found.best(gib_per_rank=options.gib_per_rank).plan

    def made_for(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None) -> MadeFor:
        """What a plan of a model is made for, for `plan_to_json(plan, made_for=...)` and `load_plan`.

        Raises:
            NeuroShardError: as `plan`.
        """
        options = self.options
        task = self.task(module, sharders)
        return MadeFor(task, self.models, options.sharder_settings, options.sharder, options.seed)

    def task(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None) -> ShardingTask:
        """The sharding task of a model on this topology.

        Raises:
            NeuroShardError: as `plan`.
        """
        sharders = torchrec_sharders(device=self.topology.compute_device) if sharders is None else sharders
        known = [sharder.module_type for sharder in sharders]
        collections = embedding_modules(module, self.options.leave_out)
        for path, collection in collections.items():
            if type(collection) not in known:
                name = type(collection).__name__
                raise PlanError(f"no sharder for the {name} {path!r} is given; add {name}Sharder()")
        used = [each for each in sharders if each.module_type in {type(found) for found in collections.values()}]
        read = read_module_tables(module, self.constraints, self.options.leave_out, self.batch_size)
        planned = {entry.table.name for entry in read}
        given = {name: each for name, each in self.constraints.items() if name in planned}
        return ShardingTask(
            with_kernels(self._with_profiles(read), given),
            world_size=self.topology.world_size,
            batch_size=self.batch_size * self.topology.world_size,
            memory_bytes=self._memory_bytes(module, sharders),
            optimizer=self.optimizer or read_optimizer(module, self.options.leave_out),
            task_id=type(module).__name__,
            constraints=search_constraints(given, read),
            local_world_size=self.topology.local_world_size,
            pipelines_input_dist=self.options.pipelines_input_dist,
            comm_precision=self.options.comm_precision or precision_of(used),
            num_replica_groups=self.options.num_replica_groups,
            sync_interval=self.options.sync_interval,
            host_memory_bytes=self._host_memory_bytes(),
        )

    def _host_memory_bytes(self) -> int | None:
        """Host memory of a rank with a GPU: the smallest DDR of the topology's devices, or None if that is 0."""
        if self.topology.compute_device == "cpu":
            return None
        return min(int(device.storage.ddr) for device in self.topology.devices) or None

    def _with_profiles(self, read: Sequence[ModuleTable]) -> list[Table]:
        """The tables with their id statistics, which are measured on the batches if batches were given."""
        batch_size = self.batch_size * self.topology.world_size
        tables = [entry.table for entry in read]
        if self.batches is not None:
            for name, given in self.constraints.items():
                if given.num_poolings or given.batch_sizes:
                    raise PlanError(
                        f"table {name!r}: num_poolings and batch_sizes go with pooling_factors, but its ids "
                        "are counted in batches; leave out the batches or these constraints"
                    )
            features = {entry.table.name: entry.feature_names for entry in read}
            tables = profile_from_batches(self.batches, tables, batch_size, features)
        return [with_profile(table, batch_size) for table in tables]

    def _memory_bytes(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> tuple[int, ...]:
        """Memory for tables on every rank, net of TorchRec's reservation or of what is counted in its place."""
        options, topology, tensors = self.options, self.topology, [*module.named_parameters(), *module.named_buffers()]
        optimizer, activation_bytes = options.dense_optimizer, options.activation_bytes
        if options.storage_reservation is None:
            collections = embedding_modules(module, options.leave_out).values()
            planned = {id(weight) for collection in collections for weight in collection.parameters()}
            counted = [(name, tensor) for name, tensor in tensors if id(tensor) not in planned]
        else:  # has what the model needs without the modules that are left out
            optimizer, activation_bytes, paths = "SGD", 0, tuple(f"{path}." for path in options.leave_out)
            counted = [(name, tensor) for name, tensor in tensors if name.startswith(paths)]
            topology = options.storage_reservation.reserve(
                topology, self.batch_size, module, list(sharders), self.constraints or None
            )
        kind = "hbm" if topology.compute_device == "cuda" else "ddr"
        limits = [int(getattr(device.storage, kind)) for device in topology.devices]
        weights = unplanned_bytes(counted, len(limits), options.left_out_plan, optimizer)
        left = [limit - taken - activation_bytes for limit, taken in zip(limits, weights, strict=True)]
        if min(left) <= 0:
            raise PlanError(
                f"rank {left.index(min(left))} lacks {1 - min(left)} bytes for what is not for tables; use ranks with "
                "more memory, or give the plan of the modules of leave_out as left_out_plan"
            )
        return tuple(left)

    def _fingerprint(self, module: nn.Module) -> str:
        """Module paths and tables of a model, as a text that is equal for equal models."""
        read = read_module_tables(module, self.constraints, self.options.leave_out, self.batch_size)
        paths = " ".join(f"{entry.module_path}:{entry.table.name}" for entry in read)
        return f"{paths} {tables_sha256([entry.table for entry in read])}"


def check_hosts(plan: ShardingPlan, topology: Topology) -> None:
    """Refuse a plan that cuts tables inside hosts if TorchRec reads another number of ranks per host than planned."""
    types = {sharding.sharding_type for module in plan.plan.values() for sharding in module.values()}
    local = get_local_size(topology.world_size)
    if types & {"table_row_wise", "grid_shard"} and local != topology.local_world_size:
        raise PlanError(
            f"the plan cuts tables on hosts of {topology.local_world_size} ranks, as the topology says, but TorchRec "
            f"reads {local} ranks per host from the environment; set LOCAL_WORLD_SIZE to the topology's number"
        )
