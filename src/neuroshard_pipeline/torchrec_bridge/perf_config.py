"""TorchRec's own planner with the costs of this project: a `HardwarePerfConfig` that is fitted to cost models."""

from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_pipeline.search.models import Models, check_hardware
from neuroshard_pipeline.sharders import perf_fit
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.perf_config import FittedPerfConfig

require_torchrec()
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator  # noqa: E402
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy  # noqa: E402
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator  # noqa: E402


def torchrec_planner(
    config: FittedPerfConfig,
    topology: Topology,
    batch_size: int,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    **options: Any,
) -> EmbeddingShardingPlanner:
    """TorchRec's `EmbeddingShardingPlanner` with the numbers of `config`, placing expensive tables first.

    Args:
        config: the fitted numbers.
        topology: TorchRec's topology.
        batch_size: samples per rank.
        constraints: TorchRec's constraints by table.
        options: other arguments of `EmbeddingShardingPlanner`, except `enumerator`.
    """
    estimators = [config.estimator(topology, constraints), EmbeddingStorageEstimator(topology, constraints)]
    enumerator = EmbeddingEnumerator(topology, batch_size, constraints, estimators)
    options = {"partitioner": GreedyPerfPartitioner(SortBy.PERF)} | options
    return EmbeddingShardingPlanner(topology, batch_size, enumerator, constraints=constraints, **options)


def torchrec_perf_config(
    models: Models, topology: Topology, batch_size: int, tables: Sequence[Table], optimizer: str = "sgd"
) -> FittedPerfConfig:
    """TorchRec's cost formulas, fitted to what the cost models predict for random sets of shards.

    The fit minimises the squared logarithms of the ratios of TorchRec's costs to those of the models. With a step cost
    model, the lookups of row shards and replicas have coefficients of their own, and reduce_scatter, all_gather and
    all_reduce their own bandwidths. Without one, they get the coefficients of column shards, and the bandwidths of
    all-to-alls.

    Args:
        models: cost models of the hardware that the topology describes, as `load_cost_models` returns them.
        topology: TorchRec's topology with ranks and ranks per host.
        batch_size: samples per rank, as for TorchRec's planner.
        tables: the tables to be planned, with their reuse profiles if known.
        optimizer: the optimizer of the tables.

    Raises:
        CostModelError: the models were measured on another kind of device than the topology's.
        PlanError: the topology has one rank.
    """
    check_hardware(models, topology.compute_device)
    total = batch_size * topology.world_size
    cluster = perf_fit.Cluster(topology.world_size, topology.local_world_size, total, optimizer)
    numbers = perf_fit.fit_numbers(models, cluster, perf_fit.shard_sets(tables, total, topology.world_size))
    return FittedPerfConfig(numbers, topology)
