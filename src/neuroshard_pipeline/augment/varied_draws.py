"""Draws compute samples of derived, public and held-out tables, with several batch sizes, optimizers and data types.

`varied_samples` draws training samples. `evaluation_samples` draws samples that measure how well a model generalises;
most have tables or batch sizes that no training sample has. If more samples are drawn, the earlier ones stay the same.

A spread sample is what one rank looks up if all tables of the sample are row-wise or data-parallel. It has row shards,
which get a part of the ids of the global batch, or replicas, which get the batch of one rank (`tables.lookups`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, model_validator

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams
from neuroshard_pipeline.augment.drawing import Dimensions, Share, redraw_until_fits
from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.augment.variation import VariationParams, is_derived, is_held_out, public_name
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.samples import TRAINING
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, COLUMN_GRANULARITY, ShardingType, Table

#: First number in the seeds of the random generators, one per kind of sample.
_VARIED_STREAM, _EVALUATION_STREAM = 6, 7

#: Purposes of evaluation samples, in addition to the names of the public table sets.
UNSEEN_TABLES, INTERPOLATION, EXTRAPOLATION = "unseen_tables", "batch_interpolation", "batch_extrapolation"

#: Purposes of evaluation samples that are spread, and their sharding types.
SPREAD_PURPOSES: dict[str, ShardingType] = {"row_shards": "row_wise", "replicas": "data_parallel"}


class VariedSampleParams(Parameters):
    """Parameters of varied samples; `ComputeSampleParams` limits the number of tables and the memory of a sample.

    The shares do not hold for samples of public tables: these apply SGD, and their tables are drawn at random.

    Attributes:
        num_samples: number of training samples.
        samples_per_group: number of evaluation samples for each purpose.
        dimensions: widths of the tables.
        dimension_weights: relative frequency of each width.
        rowwise_adagrad_share: share of samples whose backward pass applies row-wise Adagrad instead of SGD.
        similar_tables_share: share of samples whose tables are similar, as the tables of one model often are. They
            are close in the order of pooling factors, and each width is one drawn width or its half, its quarter, …
        similar_rows_share: share of the samples of similar tables in which tables of equal pooling factor also have
            similar numbers of rows. A small table uses the caches better among small tables than among large ones.
        spread_share: share of training samples that are spread, half of them row-wise and half data-parallel.
        spread_world_sizes: numbers of ranks over which the tables of a sample are spread.
        seed: seed of all draws.
    """

    num_samples: int = Field(ge=0, le=10_000_000)
    samples_per_group: int = Field(ge=0, le=1_000_000)
    dimensions: Dimensions
    dimension_weights: tuple[float, ...] = Field(min_length=1)
    rowwise_adagrad_share: Share
    similar_tables_share: Share
    similar_rows_share: Share
    spread_share: Share
    spread_world_sizes: tuple[Annotated[int, Field(ge=2, le=2**20)], ...] = Field(min_length=1)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        weights = self.dimension_weights
        if len(weights) != len(self.dimensions) or min(weights) < 0 or not sum(weights) > 0:
            raise ValueError(f"dimension_weights {weights} must be one number per dimension, none below 0, not all 0")
        return self


#: Tables that one sample may combine: a structured array with the fields `_FIELDS`.
_Group = NDArray[np.void]
_FIELDS = ["batch_size", "data_type", "default_profile", "pooling_factor", "table", "num_embeddings"]


class _Sample(NamedTuple):
    """One drawn sample: its settings, its tables (rows of a group), their widths, and how the tables are spread."""

    sample_id: str
    purpose: str
    optimizer: str
    tables: _Group
    dims: IntArray
    sharding_type: ShardingType = "column_wise"
    world_size: int = 1


def varied_samples(
    pool: pd.DataFrame, params: ComputeSampleParams, variation: VariationParams, varied: VariedSampleParams
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw training samples of derived tables that are not held out, and cycle through `variation.batch_sizes`.

    Returns:
        Samples in the format of `compute_samples`, and settings with one row per sample: `sample_id, optimizer,
        purpose, sharding_type, world_size`. The last two are `column_wise` and 1 if the sample is not spread.
    """
    derived = pool[is_derived(pool["table"])]
    groups = _groups(derived[~is_held_out(derived)])
    samples = []
    for index in range(varied.num_samples):
        rng = np.random.default_rng([_VARIED_STREAM, varied.seed, index])
        own = _of_batch(groups, variation.batch_sizes[index % len(variation.batch_sizes)])
        sample = _varied_sample(f"varied-{index:06d}", TRAINING, rng, own, params, varied)
        is_spread, is_replica = rng.random(2) < (varied.spread_share, 0.5)
        samples.append(
            _spread(sample, "data_parallel" if is_replica else "row_wise", rng, varied) if is_spread else sample
        )
    return _frames(samples)


def evaluation_samples(
    pool: pd.DataFrame,
    public: Mapping[str, Sequence[Table]],
    params: ComputeSampleParams,
    variation: VariationParams,
    varied: VariedSampleParams,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw `varied.samples_per_group` samples for each purpose other than training.

    - `unseen_tables`: held-out tables at the batch sizes of training; derived tables and those of the base pool take
      turns
    - `batch_interpolation`, `batch_extrapolation`: tables not held out, at batch sizes that no training sample has
    - the name of each public table set: tables of that set, each with its width halved a random number of times
    - `row_shards`, `replicas`: spread samples of tables and batch sizes of training

    Returns:
        Samples and settings in the format of `varied_samples`.
    """
    derived = pool[is_derived(pool["table"])]
    held_out, seen = _groups(derived[is_held_out(derived)]), _groups(derived[~is_held_out(derived)])
    unseen = _groups(generated_tables(pool[is_held_out(pool)]))
    unseen_derived = [group for size in variation.batch_sizes for group in _of_batch(held_out, size)]
    samples = []
    for index in range(varied.samples_per_group):
        rng = np.random.default_rng([_EVALUATION_STREAM, varied.seed, index])
        groups_of_purpose = {
            UNSEEN_TABLES: unseen if index % 2 else unseen_derived,
            INTERPOLATION: _of_batch(seen, variation.interpolation_batch_size),
            EXTRAPOLATION: _of_batch(seen, variation.extrapolation_batch_size),
        }
        for purpose, groups in groups_of_purpose.items():
            samples.append(_varied_sample(f"{purpose}-{index:04d}", purpose, rng, groups, params, varied))
        samples += [_public_sample(name, tables, pool, index, rng, params) for name, tables in public.items()]
        trained = _of_batch(seen, variation.batch_sizes[index % len(variation.batch_sizes)])
        for purpose, sharding_type in SPREAD_PURPOSES.items():
            sample = _varied_sample(f"{purpose}-{index:04d}", purpose, rng, trained, params, varied)
            samples.append(_spread(sample, sharding_type, rng, varied))
    return _frames(sorted(samples, key=lambda sample: sample.sample_id))


def _varied_sample(
    sample_id: str,
    purpose: str,
    rng: np.random.Generator,
    groups: Sequence[_Group],
    params: ComputeSampleParams,
    varied: VariedSampleParams,
) -> _Sample:
    """Draw a sample: distinct tables of one group, each with a width."""
    sizes = np.array([len(group) for group in groups], dtype=np.float64)

    def draw() -> tuple[_Group, IntArray]:
        group = groups[rng.choice(len(groups), p=sizes / sizes.sum())]
        return _choose(group, rng, params, varied)

    tables, dims = redraw_until_fits(draw, _weight_bytes, params.memory_bytes, sample_id)
    optimizer = "rowwise_adagrad" if rng.random() < varied.rowwise_adagrad_share else "sgd"
    return _Sample(sample_id, purpose, optimizer, tables, dims)


def _spread(
    sample: _Sample, sharding_type: ShardingType, rng: np.random.Generator, varied: VariedSampleParams
) -> _Sample:
    """The sample, with all its tables spread over a random number of ranks."""
    return sample._replace(sharding_type=sharding_type, world_size=int(rng.choice(varied.spread_world_sizes)))


def _choose(
    group: _Group, rng: np.random.Generator, params: ComputeSampleParams, varied: VariedSampleParams
) -> tuple[_Group, IntArray]:
    """Draw tables of the group, and a width for each."""
    weights = np.asarray(varied.dimension_weights) / sum(varied.dimension_weights)
    size = len(group)
    count = min(int(rng.integers(params.min_tables, params.max_tables + 1)), size)
    if rng.random() >= varied.similar_tables_share:
        return group[rng.choice(size, count, replace=False)], rng.choice(varied.dimensions, count, p=weights)
    first = rng.integers(size - min(2 * count, size) + 1)
    if rng.random() < varied.similar_rows_share:
        group = group[np.lexsort((group["num_embeddings"], group["pooling_factor"]))]
    neighbours = group[first : first + 2 * count]
    widths = _halvings(int(rng.choice(varied.dimensions, p=weights)))
    return neighbours[rng.choice(len(neighbours), count, replace=False)], rng.choice(widths, count)


def _public_sample(
    name: str, tables: Sequence[Table], pool: pd.DataFrame, index: int, rng: np.random.Generator,
    params: ComputeSampleParams,
) -> _Sample:  # fmt: skip
    """Draw a sample: distinct tables of a public set, each with its original width or a half, a quarter, … of that."""
    names = [public_name(name, table.name) for table in tables]
    group = pool.set_index("table").loc[names].reset_index()[_FIELDS].to_records(index=False)

    def draw() -> tuple[_Group, IntArray]:
        count = min(int(rng.integers(params.min_tables, params.max_tables + 1)), len(tables))
        chosen = rng.choice(len(tables), count, replace=False)
        return group[chosen], np.array([rng.choice(_halvings(tables[at].embedding_dim)) for at in chosen])

    sample_id = f"{name}-{index:04d}"
    return _Sample(sample_id, name, "sgd", *redraw_until_fits(draw, _weight_bytes, params.memory_bytes, sample_id))


def _weight_bytes(drawn: tuple[_Group, IntArray]) -> int:
    tables, dims = drawn
    return int((tables["num_embeddings"] * dims).sum()) * BYTES_PER_ELEMENT[tables["data_type"][0]]


def _halvings(width: int) -> list[int]:
    """Return `width`, its half, its quarter, … down to the smallest of them that a shard may have."""
    widths = [width]
    while widths[-1] % (2 * COLUMN_GRANULARITY) == 0:
        widths.append(widths[-1] // 2)
    return widths


def _groups(pool: pd.DataFrame) -> list[_Group]:
    """Group the tables of a pool, and sort each group by ascending pooling factor.

    The tables of a group share batch size and data type, because one kernel looks them up. Either all or none of them
    have the default profile, because a user's table file usually has profiles for all tables or for none.
    """
    shared = ["batch_size", "data_type", "default_profile"]
    ordered = pool[_FIELDS].sort_values([*shared, "pooling_factor", "table"])
    return [rows.to_records(index=False) for _, rows in ordered.groupby(shared)]


def _of_batch(groups: Sequence[_Group], batch_size: int) -> list[_Group]:
    found = [group for group in groups if group["batch_size"][0] == batch_size]
    if not found:
        raise TaskError(f"too few derived tables for batch size {batch_size}; raise tables_per_batch_size")
    return found


def _frames(samples: Sequence[_Sample]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the frames of the samples and of their settings; see `varied_samples`."""
    rows = [
        (sample.sample_id, *row)
        for sample in samples
        for row in zip(sample.tables["batch_size"], sample.tables["table"], sample.dims, strict=True)
    ]
    columns = {"sample_id": str, "batch_size": np.int64, "table": str, "embedding_dim": np.int64}
    names = ["sample_id", "optimizer", "purpose", "sharding_type", "world_size"]
    settings = [tuple(getattr(sample, name) for name in names) for sample in samples]
    return (
        pd.DataFrame(rows, columns=list(columns)).astype(columns),
        pd.DataFrame(settings, columns=names).astype({"world_size": np.int64}),
    )
