"""Fits the numbers of TorchRec's cost formulas to cost models; `perf_config` gives them to TorchRec.

TorchRec 1.8 prices a table-wise or column-wise shard by the bytes of its ids, of the rows that it reads, and of its
outputs, and a rank by the sum over its shards:

    forward       = (c_ids * ids + c_rows * rows + c_outputs * outputs) / bandwidth of lookups
    backward      = the same with three other coefficients
    communication = outputs / bandwidth of the all-to-all, once per direction

These formulas know neither launches of kernels nor the reuse of rows, so that they disagree with the cost models even
after the fit.

Shapes: N shard sets, each like the shards of one rank; D = 2 directions (forward, backward); 3 kinds of bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.training_range import TRAINING_RANGE
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, COLUMN_GRANULARITY, Shard, Table

ShardSets = Sequence[Sequence[Shard]]

#: With `use_min_dim_for_lookup`, TorchRec counts the reads of a narrower shard as if it had this many columns.
LEAST_WIDTH = 32

_BYTES_PER_ID = 8

#: Pooled rows are fp32 in the collectives that the cost models describe.
_BYTES_PER_OUTPUT = 4

_SEED, _NUM_SETS, _NUM_TABLES, _NUM_COLLECTIVES = 0, 300, 200, 32

#: The largest set has twice as many shards as a rank has tables, but at least and at most these numbers.
_FEWEST_SHARDS, _MOST_SHARDS = 16, 128

#: Ranges of the tables that are drawn if none are given; the training range narrows them.
_DRAWN = {"num_embeddings": (1e3, 1e8), "embedding_dim": (8, 256), "pooling_factor": (1, 64)}

#: Fitted coefficients lie within this factor of 1.
_LARGEST_COEFFICIENT = 1e4


@dataclass(frozen=True)
class LookupFormula:
    """TorchRec's formula for lookups with its numbers.

    Attributes:
        bytes_per_ms: bandwidth of lookups.
        coefficients: (D, 3) of the bytes of ids, rows and outputs.
        least_width: fewest columns that the forward formula counts for the rows that it reads.
    """

    bytes_per_ms: float
    coefficients: FloatArray
    least_width: int

    def costs_ms(self, sets: ShardSets, batch_size: int) -> FloatArray:
        """Forward and backward cost (N, D) of shard sets."""
        read = (summed_bytes(sets, batch_size, self.least_width), summed_bytes(sets, batch_size, 0))
        costs = [each @ row for each, row in zip(read, self.coefficients, strict=True)]
        return np.stack(costs, axis=1) / self.bytes_per_ms


@dataclass(frozen=True)
class FormulaErrors:
    """Median relative errors of TorchRec's formulas against the cost models, on the shard sets of a fit.

    Attributes:
        forward: forward lookups.
        backward: backward lookups.
        communication: the all-to-alls of both directions.
    """

    forward: float
    backward: float
    communication: float


def summed_bytes(
    sets: ShardSets, batch_size: int, least_width: int, penalty: Callable[[int], float] = lambda _: 1.0
) -> FloatArray:
    """Bytes (N, 3) of the ids, rows and outputs of shard sets.

    Args:
        sets: the shards of N ranks.
        batch_size: global batch size.
        least_width: fewest columns that are counted for the rows.
        penalty: maps the width of a shard to a factor of its bytes.
    """
    return np.array([np.sum([_bytes(s, batch_size, least_width, penalty) for s in shards], axis=0) for shards in sets])


def _bytes(shard: Shard, batch_size: int, least_width: int, penalty: Callable[[int], float]) -> FloatArray:
    table, width = shard.table, shard.embedding_dim
    element = BYTES_PER_ELEMENT[table.data_type]
    ids = batch_size * table.pooling_factor
    read = np.array([ids * _BYTES_PER_ID, ids * max(width, least_width) * element, batch_size * width * element])
    return read * penalty(width)


def fit_lookups(sets: ShardSets, batch_size: int, costs_ms: FloatArray) -> LookupFormula:
    """The formula with the least squared logarithms of its ratios to `costs_ms` (N, D)."""
    fits = [_fitted(sets, batch_size, costs_ms, least_width) for least_width in (0, LEAST_WIDTH)]
    return min(fits, key=lambda fit: float((np.log(fit.costs_ms(sets, batch_size) / costs_ms) ** 2).sum()))


def _fitted(sets: ShardSets, batch_size: int, costs_ms: FloatArray, least_width: int) -> LookupFormula:
    """The bandwidth that fits forward lookups best if all coefficients are 1, then the coefficients."""
    forward, backward = (summed_bytes(sets, batch_size, least) for least in (least_width, 0))
    bytes_per_ms = float(np.exp(np.log(forward.sum(axis=1) / costs_ms[:, 0]).mean()))
    coefficients = [_coefficients(forward, costs_ms[:, 0] * bytes_per_ms)]
    coefficients.append(_coefficients(backward, costs_ms[:, 1] * bytes_per_ms))
    return LookupFormula(bytes_per_ms, np.array(coefficients), least_width)


def _coefficients(read: FloatArray, scaled_costs: FloatArray) -> FloatArray:
    """Positive coefficients (3,) with which the bytes `read` (N, 3) give the costs (N,) most closely."""
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
    """Summed widths of ranks, spread like those of the shard sets."""
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


def formula_errors(formulas: tuple[FloatArray, FloatArray], costs: tuple[FloatArray, FloatArray]) -> FormulaErrors:
    """Errors of formulas against costs. Each argument is a pair: lookups (N, D), and all-to-alls."""
    lookups, collectives = (np.abs(found / true - 1) for found, true in zip(formulas, costs, strict=True))
    forward, backward = np.median(lookups, axis=0)
    return FormulaErrors(float(forward), float(backward), float(np.median(collectives)))


def shard_sets(tables: Sequence[Table], batch_size: int, world_size: int) -> list[list[Shard]]:
    """Random sets of shards of `tables`: whole tables, halves and quarters of their columns."""
    rng = np.random.default_rng(_SEED)
    tables = [with_profile(table, batch_size) for table in tables]
    most = int(np.clip(2 * len(tables) / world_size, _FEWEST_SHARDS, _MOST_SHARDS))
    sizes = rng.integers(1, most, _NUM_SETS, endpoint=True)
    return [[_part(tables[rng.integers(len(tables))], int(rng.integers(3))) for _ in range(size)] for size in sizes]


def _part(table: Table, halvings: int) -> Shard:
    width = (table.embedding_dim >> halvings) // COLUMN_GRANULARITY * COLUMN_GRANULARITY
    return Shard(table, 0, max(width, COLUMN_GRANULARITY))


def drawn_tables(models: Models) -> list[Table]:
    """Random tables inside the training range of the compute cost model; values are uniform in their logarithm."""
    rng = np.random.default_rng(_SEED)
    trained = getattr(models.compute, "provenance", {}).get(TRAINING_RANGE, {})
    values = {}
    for name, drawn in _DRAWN.items():
        low, high = np.log(np.clip(drawn, *trained.get(name, drawn)))
        values[name] = np.exp(rng.uniform(low, high, _NUM_TABLES))
    widths = np.maximum(values["embedding_dim"] / COLUMN_GRANULARITY, 1).round().astype(int) * COLUMN_GRANULARITY
    rows, pooling_factors = values["num_embeddings"].astype(int), values["pooling_factor"]
    return [
        Table(f"table_{index}", int(rows[index]), int(widths[index]), float(pooling_factors[index]))
        for index in range(_NUM_TABLES)
    ]
