"""Serves a plan of this project through TorchRec's `PlanLoader`, so that a stock `EmbeddingShardingPlanner` uses it."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.constraints import with_kernel_settings
from neuroshard_pipeline.torchrec_bridge.made_for import load_plan
from neuroshard_pipeline.torchrec_bridge.planner import NeuroShardPlanner
from neuroshard_pipeline.torchrec_plan.comm_precision import torchrec_sharders
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec.distributed.planner import ParameterConstraints  # noqa: E402
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator  # noqa: E402
from torchrec.distributed.planner.types import PlanLoader, Shard, ShardingOption  # noqa: E402
from torchrec.distributed.types import CacheParams, ModuleSharder, ParameterSharding  # noqa: E402


class NeuroShardPlanLoader(PlanLoader):
    """Loads a plan for TorchRec's `EmbeddingShardingPlanner(constraints=loader.constraints, plan_loader=loader)`.

    TorchRec takes the shards of a loaded plan, but looks the tables up in what its own enumerator lists. The
    constraints let the enumerator list the types and kernels of the plan, and nothing else.

    Args:
        planner: the planner that made the plan, or one with the same topology, models and options.
        module: the unsharded model.
        plan: a plan, or a document or file that must have been made for exactly this model and planner.
        sharders: sharders of the model.

    Attributes:
        constraints: TorchRec's constraints by table, to be given to `EmbeddingShardingPlanner`.

    Raises:
        PlanError: a stored plan was made for something else; the message says for what, in words.
    """

    def __init__(
        self,
        planner: NeuroShardPlanner,
        module: nn.Module,
        plan: Plan | Mapping[str, Any] | str,
        sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
    ) -> None:
        topology = planner.topology
        loaded = plan if isinstance(plan, Plan) else load_plan(plan, planner.made_for(module, sharders))
        self._name = f"{loaded.task.task_id} by {loaded.sharder}"
        sharding_plan = loaded.to_torchrec(
            module, topology.local_world_size, topology.compute_device, planner.options.leave_out
        )
        tables = {
            name: table
            for of_module in with_kernel_settings(sharding_plan, planner.constraints).plan.values()
            for name, table in of_module.items()
        }
        widths = {table.name: table.embedding_dim for table in loaded.task.tables}
        self.constraints = {name: _constraints(of, widths[name]) for name, of in tables.items()}
        enumerator = EmbeddingEnumerator(topology, planner.batch_size, self.constraints)
        self._options = {}
        given = torchrec_sharders(device=topology.compute_device) if sharders is None else list(sharders)
        for option in enumerator.enumerate(module, given):
            self._options[option.storage_hash()] = option
            option.shards = _shards(tables[option.name], option.shards)
        enumerator.populate_estimates(list(self._options.values()))

    def load(self) -> dict[int, ShardingOption]:
        """The tables with their shards, by TorchRec's hash of what its enumerator lists."""
        return self._options

    def plan_context_hash(self) -> None:
        """None: this project compares what a plan was made for itself, and says in words what differs."""

    def get_plan_id(self) -> str:
        """The name of the plan in TorchRec's logs."""
        return self._name


def _constraints(table: ParameterSharding, width: int) -> ParameterConstraints:
    cache = table.cache_params
    return ParameterConstraints(
        sharding_types=[table.sharding_type],
        compute_kernels=[table.compute_kernel],
        min_partition=width,
        cache_params=None if cache is None else CacheParams(load_factor=cache.load_factor),
        enforce_hbm=table.enforce_hbm,
        stochastic_rounding=table.stochastic_rounding,
        bounds_check_mode=table.bounds_check_mode,
    )


def _shards(table: ParameterSharding, listed: list[Shard]) -> list[Shard]:
    """The shards of the plan; replicas are those that TorchRec lists, on all ranks."""
    if table.sharding_spec is None:
        return [Shard(size=each.size, offset=each.offset, rank=rank) for rank, each in enumerate(listed)]
    places = zip(table.sharding_spec.shards, table.ranks or (), strict=True)
    return [Shard(size=list(of.shard_sizes), offset=list(of.shard_offsets), rank=rank) for of, rank in places]
