"""TorchRec's own planner with the costs of this project: a `HardwarePerfConfig` that is fitted to cost models."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.models import Models, check_hardware
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_bridge import perf_fit
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.writer import COMPUTE_KERNEL

require_torchrec()
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.planner.constants import kernel_bw_lookup  # noqa: E402
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator  # noqa: E402
from torchrec.distributed.planner.estimator import (  # noqa: E402
    EmbeddingPerfEstimatorConfig,
    EmbeddingPerfEstimatorFactory,
    EstimatorPerfCoefficients,
    PerfCoefficient,
    PerfCoefficientConfig,
    ShardPerfContext,
)
from torchrec.distributed.planner.estimator.annotations import bwd_comms, fwd_comms, input_dist_comms  # noqa: E402
from torchrec.distributed.planner.estimator.estimator import (  # noqa: E402
    compute_block_usage_penalty,
    get_embedding_perf_sharding_evaluator,
)
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy  # noqa: E402
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator  # noqa: E402
from torchrec.distributed.planner.types import (  # noqa: E402
    BasicCommsBandwidths,
    CollectiveType,
    GeneralizedCommsBandwidth,
    ShardEstimator,
)

#: TorchRec's default numbers. Its formulas for collectives take the bandwidths of the topology.
_DEFAULT = EmbeddingPerfEstimatorConfig()


class FittedPerfConfig(EmbeddingPerfEstimatorConfig):
    """A `HardwarePerfConfig` of TorchRec 1.8 with fitted numbers, made by `torchrec_perf_config`.

    TorchRec 1.8 ignores `intra_host_bw` and `inter_host_bw` of a config and uses those of the topology. This config
    puts its own in their place wherever TorchRec prices a collective.

    Attributes:
        lookup_bw: bytes per ms of lookups in device memory. Other kernels, such as those that read host memory, are
            slower by the factor that TorchRec assumes.
        coefficients: the coefficients of `perf_fit`'s formulas, for all sharding types.
        intra_host_bw: bytes per ms of an all-to-all on one host.
        inter_host_bw: bytes per ms of an all-to-all over all hosts.
        errors: errors of the fitted formulas.
        default_errors: errors of TorchRec's default numbers with the bandwidths of the topology.
    """

    name = "neuroshard"
    _use_block_usage_penalty = False

    def __init__(
        self,
        lookups: perf_fit.LookupFormula,
        links: BasicCommsBandwidths,
        errors: perf_fit.FormulaErrors,
        default_errors: perf_fit.FormulaErrors,
    ):
        forward, backward = (PerfCoefficient(*row) for row in lookups.coefficients.tolist())
        self.coefficients = PerfCoefficientConfig(default=EstimatorPerfCoefficients(forward, backward))
        self.lookup_bw = lookups.bytes_per_ms
        self._use_min_dim_for_lookup = lookups.least_width > 0
        self.intra_host_bw, self.inter_host_bw = links.intra_host_bw, links.inter_host_bw
        self._links = links
        self.errors, self.default_errors = errors, default_errors

    def get_device_bw(self, compute_device: str, compute_kernel: str, *bandwidths: Any) -> float:
        """Bytes per ms of a kernel: `lookup_bw`, times TorchRec's ratio between the kernel and lookups in HBM."""
        kernel, lookups = (
            super(FittedPerfConfig, self).get_device_bw(compute_device, name, *bandwidths)
            for name in (compute_kernel, COMPUTE_KERNEL)
        )
        return self.lookup_bw * kernel / lookups

    def register(self, name: str) -> None:
        """Let `EmbeddingPerfEstimatorFactory.create(name, topology=...)` use this config."""
        EmbeddingPerfEstimatorFactory.register(name)(lambda: self)

    def estimator(
        self, topology: Topology, constraints: Mapping[str, ParameterConstraints] | None = None
    ) -> ShardEstimator:
        """The performance estimator that an `EmbeddingEnumerator` takes."""
        return EmbeddingPerfEstimatorFactory.create_with_config(self, topology=topology, constraints=constraints)

    @fwd_comms
    def forward_comm_ms(self, ctx: ShardPerfContext) -> float:
        """TorchRec's formula with the fitted links."""
        evaluator, linked = self._linked(ctx)
        return evaluator.compute_fwd_comms(linked, _DEFAULT)

    @bwd_comms
    def backward_comm_ms(self, ctx: ShardPerfContext) -> float:
        """TorchRec's formula with the fitted links."""
        evaluator, linked = self._linked(ctx)
        return evaluator.compute_bwd_comms(linked, _DEFAULT)

    @input_dist_comms
    def id_comm_ms(self, ctx: ShardPerfContext) -> float:
        """TorchRec's formula with the fitted links. TorchRec does not add it to the cost of a shard."""
        evaluator, linked = self._linked(ctx)
        return evaluator.compute_input_dist_comms(linked, _DEFAULT)

    def _linked(self, ctx: ShardPerfContext) -> tuple[Any, ShardPerfContext]:
        evaluator = get_embedding_perf_sharding_evaluator(ctx.sharding_type, ctx.is_inference)
        return evaluator, dataclasses.replace(ctx, comms_bandwidths=self._links)


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
    models: Models, topology: Topology, batch_size: int, tables: Sequence[Table] = (), optimizer: str = "sgd"
) -> FittedPerfConfig:
    """TorchRec's cost formulas, fitted to what the cost models predict for random sets of shards.

    The fit minimises the squared logarithms of the ratios of costs. The models price lookups and all-to-alls only.
    TorchRec therefore prices reduce-scatters and all-gathers with the fitted bandwidths of all-to-alls, too.

    Args:
        models: cost models of the hardware that the topology describes, as `load_cost_models` returns them.
        topology: TorchRec's topology with ranks and ranks per host.
        batch_size: samples per rank, as for TorchRec's planner.
        tables: the tables to be planned, with their reuse profiles where known. If none are given, tables are drawn.
        optimizer: the optimizer of the tables.

    Raises:
        CostModelError: the models were measured on another kind of device than the topology's.
        PlanError: the topology has one rank.
    """
    check_hardware(models, topology.compute_device)
    if topology.world_size < 2:
        raise PlanError("a topology of one rank has no communication to fit; use one of two ranks or more")
    total = batch_size * topology.world_size
    sets = perf_fit.shard_sets(tables or perf_fit.drawn_tables(models), total, topology.world_size)
    dim_sums = perf_fit.balanced_dim_sums(sets)
    lookup_ms = perf_fit.lookup_costs_ms(models, sets, total, optimizer)
    lookups = perf_fit.fit_lookups(sets, total, lookup_ms)
    links = _fitted_links(models, topology, dim_sums, total)
    costs = (lookup_ms, perf_fit.all_to_all_ms(models, dim_sums, topology.world_size, total))
    moved = perf_fit.output_bytes(dim_sums, total)
    fitted = (lookups.costs_ms(sets, total), moved / _bandwidth(topology, links))
    default = (_default_lookup_ms(topology, sets, total), moved / _bandwidth(topology, topology.comms_bandwidths))
    return FittedPerfConfig(lookups, links, *(perf_fit.formula_errors(each, costs) for each in (fitted, default)))


def _fitted_links(models: Models, topology: Topology, dim_sums: FloatArray, batch_size: int) -> BasicCommsBandwidths:
    """Bandwidths of all-to-alls on one host and over all hosts. Where there is only one, the topology's value stays."""
    local = min(topology.local_world_size, topology.world_size)
    ranks = {"intra_host_bw": local, "inter_host_bw": topology.world_size if topology.world_size > local else 1}
    found = {"intra_host_bw": topology.intra_host_bw, "inter_host_bw": topology.inter_host_bw}
    moved = perf_fit.output_bytes(dim_sums, batch_size)
    for link, world_size in ranks.items():
        if world_size > 1:
            costs_ms = perf_fit.all_to_all_ms(models, dim_sums, world_size, batch_size)
            found[link] = perf_fit.fit_bandwidth(moved, costs_ms)
    return BasicCommsBandwidths(**found)


def _bandwidth(topology: Topology, links: GeneralizedCommsBandwidth) -> float:
    """Bytes per ms of an all-to-all of all ranks."""
    return links.get_bw(topology.local_world_size, topology.world_size, CollectiveType.ALL_TO_ALL)


def _default_lookup_ms(topology: Topology, sets: perf_fit.ShardSets, batch_size: int) -> FloatArray:
    """Forward and backward cost (N, 2) of lookups with TorchRec's default numbers."""
    memory = (topology.hbm_mem_bw, topology.ddr_mem_bw, topology.hbm_to_ddr_mem_bw)
    bytes_per_ms = kernel_bw_lookup(topology.compute_device, COMPUTE_KERNEL, *memory)
    read = perf_fit.summed_bytes(sets, batch_size, perf_fit.LEAST_WIDTH, compute_block_usage_penalty)
    return read.sum(axis=1, keepdims=True) / bytes_per_ms * (1.0, topology.bwd_compute_multiplier)
