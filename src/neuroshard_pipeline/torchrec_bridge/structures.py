"""Plans in TorchRec's own structures, for `DistributedModelParallel(module, plan=...)`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.torchrec import plan_from_torchrec as from_torchrec
from neuroshard_pipeline.sharders.torchrec import require_torchrec
from neuroshard_pipeline.torchrec_bridge.joining import joined_for_torchrec
from neuroshard_pipeline.torchrec_bridge.modules import ModuleTable, read_module_tables
from neuroshard_pipeline.torchrec_bridge.plan_json import (
    COMPUTE_KERNEL,
    SHARDING_TYPE,
    ComputeDevice,
    check_hosts,
    placement,
    shards_by_module,
)

require_torchrec()
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata  # noqa: E402
from torchrec.distributed.types import (  # noqa: E402
    EmbeddingModuleShardingPlan,
    ModuleShardingPlan,
    ParameterSharding,
    ShardingPlan,
)

__all__ = ["from_torchrec", "module_paths", "to_torchrec"]


def to_torchrec(
    plan: Plan,
    module: nn.Module,
    local_world_size: int | None = None,
    compute_device: ComputeDevice = "cuda",
    leave_out: Collection[str] = (),
) -> ShardingPlan:
    """The plan that `DistributedModelParallel` takes as it is.

    Every table goes out as `column_wise`, an unsplit one as a single shard. TorchRec makes one lookup and one set of
    collectives per sharding type of a module, so a plan of table-wise and column-wise tables runs two fused kernels
    and twice the collectives where the cost models describe one. Seen in a profile of one step (TorchRec 1.8, gloo,
    12 tables of which 4 are split): 1 fused lookup and 5 all-to-alls (sizes, ids, outputs, gradients) with every
    table column-wise, 2 and 10 with unsplit tables table-wise. Seconds per step of the latter over the former, both
    forms alternating in the same processes on 2 busy cores, medians of 37 to 57 steps, 64 columns per table, global
    batch 512: 12 tables on 2 ranks 1.05, 1.09, 1.07; 12 on 4 ranks 1.27, 1.45, 1.12; 48 on 4 ranks 0.98, 1.01,
    1.18; 48 on 2 ranks 0.82, 0.93, 0.94. Column-wise wins by the collectives saved and loses the copy that puts
    column-wise outputs in order, which shows where lookups, not collectives, fill the step.

    A table's shards of unequal widths on one rank go out as one shard, which is all that TorchRec can hold
    (`joined_for_torchrec`); everything else goes out as it is.

    A sharded collection orders its outputs by rank: a model must take them by name, not by place.

    Args:
        plan: a plan for exactly the tables of `module`.
        module: the unsharded model, possibly on the meta device, with one or more `EmbeddingBagCollection`s.
        local_world_size: ranks per host; None puts all ranks on one host.
        compute_device: where the tables are trained.
        leave_out: fully qualified names of modules that the plan does not cover.

    Raises:
        PlanError: plan and model differ in a table, its rows or its columns; `local_world_size` does not divide the
            world.
    """
    local_world_size = plan.task.world_size if local_world_size is None else local_world_size
    check_hosts(plan.task.world_size, local_world_size, compute_device)
    paths = module_paths(plan, read_module_tables(module, leave_out=leave_out))
    plan = joined_for_torchrec(plan)
    modules: dict[str, ModuleShardingPlan] = {}
    for path, tables in shards_by_module(plan, paths).items():
        modules[path] = EmbeddingModuleShardingPlan(
            {
                table: _parameter_sharding(plan, positions, local_world_size, compute_device)
                for table, positions in tables.items()
            }
        )
    return ShardingPlan(plan=modules)


def module_paths(plan: Plan, tables: Collection[ModuleTable]) -> Mapping[str, str]:
    """Table -> fully qualified name of its module, for a plan that fits the model.

    Raises:
        PlanError: plan and model differ in a table, its rows or its columns; the message names both.
    """
    of_model = {entry.table.name: entry for entry in tables}
    of_plan = {table.name: table for table in plan.task.tables}
    for name in sorted(of_plan.keys() - of_model.keys()):
        raise PlanError(f"{plan.task.task_id}: the plan has the table {name!r}, which is missing in the model")
    for name in sorted(of_model.keys() - of_plan.keys()):
        path = of_model[name].module_path
        raise PlanError(f"{plan.task.task_id}: the plan lacks the table {name!r} of the model's {path!r}")
    for name, table in of_plan.items():
        other = of_model[name].table
        shapes = (table.num_embeddings, table.embedding_dim), (other.num_embeddings, other.embedding_dim)
        if shapes[0] != shapes[1]:
            raise PlanError(
                f"{plan.task.task_id}: table {name!r} has (rows, columns) {shapes[0]} in the plan, but {shapes[1]} in "
                f"the model's {of_model[name].module_path!r}"
            )
    return {name: entry.module_path for name, entry in of_model.items()}


def _parameter_sharding(
    plan: Plan, positions: Collection[int], local_world_size: int, compute_device: ComputeDevice
) -> ParameterSharding:
    """One table: `positions` are its shards in the plan, by column offset."""
    shards = [
        ShardMetadata(
            shard_offsets=[0, int(plan.shards[position].column_offset)],
            shard_sizes=[plan.shards[position].table.num_embeddings, int(plan.shards[position].embedding_dim)],
            placement=placement(int(plan.ranks[position]), local_world_size, compute_device),
        )
        for position in positions
    ]
    return ParameterSharding(
        sharding_type=SHARDING_TYPE,
        compute_kernel=COMPUTE_KERNEL,
        ranks=[int(plan.ranks[position]) for position in positions],
        sharding_spec=EnumerableShardingSpec(shards),
    )
