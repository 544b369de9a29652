"""Fits the numbers of TorchRec's cost formulas to cost models.

The fit minimises the squared logarithms of the ratios of costs. Without a step cost model, there is nothing to fit the
costs of reduce_scatter, all_gather and all_reduce to; only column shards and all-to-alls then get numbers.

Shapes: N shard sets, each like the shards of one rank, or N collectives; D = 2 directions (forward, backward); bytes of
3 kinds: ids, rows that are read, and outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.tables.lookups import lookup_batch_size, lookup_shard
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.samples import REDUCTIONS
from neuroshard_pipeline.tables.table import Shard, Table, first_part, whole
from neuroshard_pipeline.torchrec_plan.perf_formula import (
    LEAST_WIDTH,
    FittedNumbers,
    LookupFormula,
    ShardSets,
    all_reduce_factor,
    summed_bytes,
)

#: Pooled rows are fp32 in the collectives that the cost models describe.
_BYTES_PER_OUTPUT = 4

_SEED, _NUM_SETS, _NUM_COLLECTIVES = 0, 300, 32

#: Largest size of a set: twice as many shards as a rank has tables on average, but clipped to this range.
_FEWEST_SHARDS, _MOST_SHARDS = 16, 128

#: Fitted coefficients lie within this factor of 1.
_LARGEST_COEFFICIENT = 1e4


@dataclass(frozen=True)
class Cluster:
    """What the numbers are fitted for.

    Attributes:
        world_size: number of ranks, at least 2.
        local_world_size: ranks per host.
        batch_size: global batch size.
        optimizer: the optimizer of the tables.

    Raises:
        PlanError: there is only one rank.
    """

    world_size: int
    local_world_size: int
    batch_size: int
    optimizer: str

    def __post_init__(self) -> None:
        if self.world_size < 2:
            raise PlanError("a topology of one rank has no communication to fit; give a topology of at least two ranks")


def fit_numbers(models: Models, cluster: Cluster, sets: ShardSets) -> FittedNumbers:
    """The numbers with which TorchRec's formulas come closest to the cost models on the shard sets."""
    lookups = fit_lookups(
        sets, cluster.batch_size, lookup_costs_ms(models, sets, cluster.batch_size, cluster.optimizer)
    )
    bandwidths = _all_to_all_bandwidths(models, cluster, balanced_dim_sums(sets))
    if models.step is None:
        return FittedNumbers(lookups, None, None, bandwidths)
    bandwidths |= _reduction_bandwidths(models, cluster, balanced_dim_sums(sets))
    tables = [[shard.table for shard in shards] for shards in sets]
    of_type = {
        "row_wise": [[row_shards(table, "row_wise", cluster.world_size)[0] for table in each] for each in tables],
        "data_parallel": [[whole(table, "data_parallel") for table in each] for each in tables],
    }
    rows, replicas = (_fitted_like(lookups, models, cluster, of) for of in of_type.values())
    return FittedNumbers(lookups, rows, replicas, bandwidths)


def _fitted_like(lookups: LookupFormula, models: Models, cluster: Cluster, sets: ShardSets) -> LookupFormula:
    """The formula of row shards or replicas, with the bandwidth of `lookups`."""
    size = lookup_batch_size(sets[0][0], cluster.batch_size, cluster.world_size)
    seen = [[lookup_shard(shard, cluster.batch_size, cluster.world_size) for shard in shards] for shards in sets]
    costs_ms = lookup_costs_ms(models, seen, size, cluster.optimizer)
    read = summed_bytes(seen, size, 0)
    found = [_coefficients(read, cost_ms * lookups.bytes_per_ms) for cost_ms in costs_ms.T]
    return LookupFormula(lookups.bytes_per_ms, np.array(found), 0)


def _all_to_all_bandwidths(models: Models, cluster: Cluster, dim_sums: FloatArray) -> dict[tuple[str, bool], float]:
    moved = output_bytes(dim_sums, cluster.batch_size)
    return {
        ("all_to_all", spans_hosts): fit_bandwidth(moved, all_to_all_ms(models, dim_sums, ranks, cluster.batch_size))
        for spans_hosts, ranks in _groups(cluster).items()
    }


def _reduction_bandwidths(models: Models, cluster: Cluster, dim_sums: FloatArray) -> dict[tuple[str, bool], float]:
    moved = output_bytes(dim_sums, cluster.batch_size)
    found: dict[tuple[str, bool], float] = {}
    for spans_hosts, ranks in _groups(cluster).items():
        for name in REDUCTIONS:
            factor = all_reduce_factor(ranks, cluster.local_world_size) if name == "all_reduce" else 1.0
            assert models.step is not None
            costs_ms = models.step.reductions.predict_ms(name, moved, ranks, cluster.local_world_size)
            found[name, spans_hosts] = fit_bandwidth(factor * moved, costs_ms)
    return found


def _groups(cluster: Cluster) -> dict[bool, int]:
    """Numbers of ranks of collectives: inside a host with several ranks (False), and over several hosts (True)."""
    local = min(cluster.local_world_size, cluster.world_size)
    groups = {False: local} if local > 1 else {}
    return groups | ({True: cluster.world_size} if cluster.world_size > local else {})


def fit_lookups(sets: ShardSets, batch_size: int, costs_ms: FloatArray) -> LookupFormula:
    """The formula with the least squared logarithms of its ratios to `costs_ms` (N, D)."""
    fits = [_fitted(sets, batch_size, costs_ms, least_width) for least_width in (0, LEAST_WIDTH)]
    return min(fits, key=lambda fit: float((np.log(fit.costs_ms(sets, batch_size) / costs_ms) ** 2).sum()))


def _fitted(sets: ShardSets, batch_size: int, costs_ms: FloatArray, least_width: int) -> LookupFormula:
    """Fit the bandwidth to forward lookups as if all coefficients were 1, and then fit the coefficients."""
    forward, backward = (summed_bytes(sets, batch_size, least) for least in (least_width, 0))
    bytes_per_ms = float(np.exp(np.log(forward.sum(axis=1) / costs_ms[:, 0]).mean()))
    coefficients = [_coefficients(forward, costs_ms[:, 0] * bytes_per_ms)]
    coefficients.append(_coefficients(backward, costs_ms[:, 1] * bytes_per_ms))
    return LookupFormula(bytes_per_ms, np.array(coefficients), least_width)


def _coefficients(read: FloatArray, scaled_costs: FloatArray) -> FloatArray:
    """Positive coefficients (3,) with which the bytes `read` (N, 3) come closest to the costs (N,), ms * bandwidth."""
    from scipy.optimize import least_squares  # imported late: this takes a third of a second

    limit = np.log(_LARGEST_COEFFICIENT)
    found = least_squares(lambda x: np.log(read @ np.exp(x) / scaled_costs), np.zeros(3), bounds=(-limit, limit))
    return np.exp(found.x)


def lookup_costs_ms(models: Models, sets: ShardSets, batch_size: int, optimizer: str) -> FloatArray:
    """Forward and backward cost (N, D) of shard sets, as the compute cost model predicts it."""
    shards = [shard for each in sets for shard in each]
    starts = np.cumsum([0, *(len(each) for each in sets[:-1])])
    embeddings = models.compute.shard_embeddings(shards, batch_size, optimizer)
    return models.compute.costs_from_sums(np.add.reduceat(embeddings, starts, axis=0), batch_size)


def balanced_dim_sums(sets: ShardSets) -> FloatArray:
    """Sums of the widths on a rank: quantiles of the sums of all shard sets, (`_NUM_COLLECTIVES`,)."""
    dim_sums = [sum(shard.embedding_dim for shard in each) for each in sets]
    return np.quantile(dim_sums, np.linspace(0.05, 0.95, _NUM_COLLECTIVES))


def all_to_all_ms(models: Models, dim_sums: FloatArray, world_size: int, batch_size: int) -> FloatArray:
    """Forward and backward cost (N, D) of all-to-alls in which every rank has the same summed width."""
    balanced = np.repeat(dim_sums[:, None], world_size, axis=1)
    forward_ms = models.comm.forward_ms(balanced, np.zeros(balanced.shape), batch_size)
    return np.stack([forward_ms.max(axis=1), models.comm.backward_ms(balanced, batch_size).max(axis=1)], axis=1)


def output_bytes(dim_sums: FloatArray, batch_size: int) -> FloatArray:
    """Bytes (N, 1) of the outputs of ranks, as TorchRec counts them."""
    return dim_sums[:, None] * batch_size * _BYTES_PER_OUTPUT


def fit_bandwidth(moved: FloatArray, costs_ms: FloatArray) -> float:
    """Bytes per ms with the least squared logarithms of the ratios of `moved` (N, 1) / bandwidth to `costs_ms`."""
    return float(np.exp(np.log(moved / costs_ms).mean()))


def shard_sets(tables: Sequence[Table], batch_size: int, world_size: int) -> list[list[Shard]]:
    """Random sets of shards of `tables`: whole tables, halves and quarters of their columns."""
    rng = np.random.default_rng(_SEED)
    pool = [with_profile(table, batch_size) for table in tables]
    most = int(np.clip(2 * len(pool) / world_size, _FEWEST_SHARDS, _MOST_SHARDS))
    sizes = rng.integers(1, most, _NUM_SETS, endpoint=True)
    return [[first_part(pool[rng.integers(len(pool))], int(rng.integers(3))) for _ in range(size)] for size in sizes]
