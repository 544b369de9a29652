"""A `HardwarePerfConfig` for TorchRec's planner, with numbers that are fitted to this project's cost models."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.perf_formula import FittedNumbers, LookupFormula
from neuroshard_pipeline.torchrec_plan.writer import COMPUTE_KERNEL, REPLICA_KERNEL

require_torchrec()
from torchrec.distributed.planner import ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.planner.estimator import (  # noqa: E402
    EmbeddingPerfEstimatorConfig,
    EmbeddingPerfEstimatorFactory,
    EstimatorPerfCoefficients,
    PerfCoefficient,
    PerfCoefficientConfig,
    ShardPerfContext,
)
from torchrec.distributed.planner.estimator.annotations import bwd_comms, fwd_comms  # noqa: E402
from torchrec.distributed.planner.estimator.estimator import get_embedding_perf_sharding_evaluator  # noqa: E402
from torchrec.distributed.planner.types import (  # noqa: E402
    CollectiveType,
    GeneralizedCommsBandwidth,
    ShardEstimator,
)

#: A config that TorchRec's formulas for collectives require as an argument. They take no bandwidth from it, but use
#: those of the `ShardPerfContext`.
_DEFAULT = EmbeddingPerfEstimatorConfig()


class FittedLinks(GeneralizedCommsBandwidth):
    """Bandwidths of collectives. Those of the topology apply to links that were not fitted.

    Collectives without numbers of their own get the bandwidth of an all-to-all.
    """

    def __init__(self, numbers: FittedNumbers, topology: Topology) -> None:
        self._fitted = numbers.bytes_per_ms
        self._others = topology.comms_bandwidths

    @property
    def intra_host_bw(self) -> float:
        """Bytes per ms of an all-to-all on one host."""
        return self._fitted.get(("all_to_all", False), self._others.intra_host_bw)

    @property
    def inter_host_bw(self) -> float:
        """Bytes per ms of an all-to-all over all hosts."""
        return self._fitted.get(("all_to_all", True), self._others.inter_host_bw)

    def get_bw(self, local_world_size: int, world_size: int, collective_type: CollectiveType) -> float:
        """Bytes per ms of a collective of `world_size` ranks, `local_world_size` of them on a host."""
        spans_hosts = world_size > local_world_size
        own = self._fitted.get((collective_type.value, spans_hosts))
        return own or (self.inter_host_bw if spans_hosts else self.intra_host_bw)


class FittedPerfConfig(EmbeddingPerfEstimatorConfig):
    """A `HardwarePerfConfig` of TorchRec 1.8 with fitted numbers.

    TorchRec 1.8 ignores `intra_host_bw` and `inter_host_bw` of a config and uses those of the topology. This config
    puts its own in their place wherever TorchRec prices a collective.

    Attributes:
        lookup_bw: bytes per ms of lookups in device memory. Other kernels, such as those that read host memory, are
            slower by the factor that TorchRec assumes.
        coefficients: the coefficients of `perf_formula`'s formulas, by sharding type.
        intra_host_bw: bytes per ms of an all-to-all on one host.
        inter_host_bw: bytes per ms of an all-to-all over all hosts.
    """

    name = "neuroshard"
    _use_block_usage_penalty = False

    def __init__(self, numbers: FittedNumbers, topology: Topology) -> None:
        rows = _coefficients(numbers.row_lookups)
        self.coefficients = PerfCoefficientConfig(
            row_wise=rows,
            table_row_wise=rows,
            data_parallel=_coefficients(numbers.replica_lookups),
            default=_coefficients(numbers.lookups) or EstimatorPerfCoefficients(),
        )
        self.lookup_bw = numbers.lookups.bytes_per_ms
        self._use_min_dim_for_lookup = numbers.lookups.least_width > 0
        self._links = FittedLinks(numbers, topology)
        self.intra_host_bw, self.inter_host_bw = self._links.intra_host_bw, self._links.inter_host_bw

    def get_device_bw(self, compute_device: str, compute_kernel: str, *bandwidths: Any) -> float:
        """Bytes per ms of a kernel: `lookup_bw` times the ratio of TorchRec's bandwidths for this kernel and `fused`.

        The ratio is 1 for replicas with coefficients of their own.
        """
        if compute_kernel == REPLICA_KERNEL and self.coefficients.data_parallel is not None:
            return self.lookup_bw
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

    def _linked(self, ctx: ShardPerfContext) -> tuple[Any, ShardPerfContext]:
        evaluator = get_embedding_perf_sharding_evaluator(ctx.sharding_type, ctx.is_inference)
        return evaluator, dataclasses.replace(ctx, comms_bandwidths=self._links)


def _coefficients(formula: LookupFormula | None) -> EstimatorPerfCoefficients | None:
    if formula is None:
        return None
    return EstimatorPerfCoefficients(*(PerfCoefficient(*row) for row in formula.coefficients.tolist()))
