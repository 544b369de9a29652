"""Compute samples beyond the paper's: of derived tables, with other batch sizes, optimizers and data types.

Some are for training; others for judging alone, of tables and batches that no training sample has. A sample's numbers
depend on the seed and on its own index only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams
from neuroshard_pipeline.augment.drawing import Dimensions, redraw_until_fits
from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.augment.variation import VariationParams, is_derived, is_held_out, public_name
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.samples import TRAINING
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, COLUMN_GRANULARITY, Table

IntArray = NDArray[np.int64]

#: First entropy words of the generators.
_VARIED_STREAM, _JUDGED_STREAM = 6, 7

#: Groups that models are judged by, beside the names of public table sets.
UNSEEN_TABLES, BATCH_BETWEEN, BATCH_BEYOND = "unseen_tables", "batch_between", "batch_beyond"


class VariedSampleParams(BaseModel):
    """What decides the compute samples of derived tables; `ComputeSampleParams` has their numbers of tables and memory.

    Attributes:
        num_samples: how many, for training.
        judged_samples: how many in each group that is kept for judging.
        dimensions: widths of the tables.
        dimension_weights: how often each width is drawn, relative to the others.
        rowwise_adagrad_share: share of samples whose backward pass has row-wise Adagrad instead of SGD.
        alike_share: share of samples whose tables are alike, as those of one model often are: of similar pooling
            factors, and of one width, cut into halves, quarters, … at random.
        alike_rows_share: share of these whose tables are of similar rows as well, where pooling factors are the same:
            several small tables with one id per sample leave the caches to each other, and cost less than among larger.
        seed: decides every sample, together with its index.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_samples: int = Field(ge=0, le=10_000_000)
    judged_samples: int = Field(ge=0, le=1_000_000)
    dimensions: Dimensions
    dimension_weights: tuple[float, ...] = Field(min_length=1)
    rowwise_adagrad_share: float = Field(ge=0, le=1)
    alike_share: float = Field(ge=0, le=1)
    alike_rows_share: float = Field(ge=0, le=1)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> VariedSampleParams:
        weights = self.dimension_weights
        if len(weights) != len(self.dimensions) or min(weights) < 0 or not sum(weights) > 0:
            raise ValueError(f"dimension_weights {weights} must be one number, at least 0, for each of dimensions")
        return self


@dataclass(frozen=True)
class _Sample:
    """One drawn sample."""

    sample_id: str
    purpose: str
    batch_size: int
    optimizer: str
    tables: Sequence[str]
    dims: IntArray


@dataclass(frozen=True)
class _Group:
    """Tables that may stand in one sample, by ascending pooling factor.

    They share batch size and data type, as one kernel does, and either all or none have the default profile: a user's
    table file gives profiles or does not. `by_rows` orders those of one pooling factor by ascending rows.
    """

    batch_size: int
    data_type: str
    names: NDArray[np.str_]
    rows: IntArray
    by_rows: IntArray


def varied_samples(
    pool: pd.DataFrame, params: ComputeSampleParams, variation: VariationParams, varied: VariedSampleParams
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw training samples of derived tables that are not held out.

    Batch sizes are taken by turns; a sample's tables are distinct and of one data type, as one kernel takes only one.

    Returns:
        Samples as `compute_samples` and their settings `sample_id, optimizer, purpose`, one row per sample.
    """
    derived = pool[is_derived(pool["table"])]
    groups = _groups(derived[~is_held_out(derived)])
    return _frames(
        [
            _varied_sample(f"varied-{index:06d}", TRAINING, rng, _of_batch(groups, batch_size), params, varied)
            for index in range(varied.num_samples)
            for batch_size in [variation.batch_sizes[index % len(variation.batch_sizes)]]
            for rng in [np.random.default_rng([_VARIED_STREAM, varied.seed, index])]
        ]
    )


def judged_samples(
    pool: pd.DataFrame,
    public: Mapping[str, Sequence[Table]],
    params: ComputeSampleParams,
    variation: VariationParams,
    varied: VariedSampleParams,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw the samples that no model is trained on: `varied.judged_samples` for each purpose.

    `unseen_tables`: held-out generated and derived tables by turns, at batch sizes of training. `batch_between` and
    `batch_beyond`: tables of training at batch sizes that no training sample has. And the tables of every public set,
    cut into halves, quarters, … at random.

    Returns:
        As `varied_samples`; the purposes are the groups.
    """
    derived = pool[is_derived(pool["table"])]
    held_out, seen = _groups(derived[is_held_out(derived)]), _groups(derived[~is_held_out(derived)])
    unseen = pool[is_held_out(pool)]
    paper = _groups(generated_tables(unseen))
    turns = [*paper, *(group for size in variation.batch_sizes for group in _of_batch(held_out, size))]
    samples = []
    for index in range(varied.judged_samples):
        rng = np.random.default_rng([_JUDGED_STREAM, varied.seed, index])
        own = [turns[0]] if index % 2 else turns[1:]
        drawn = {UNSEEN_TABLES: own}
        drawn[BATCH_BETWEEN] = _of_batch(seen, variation.between_batch_size)
        drawn[BATCH_BEYOND] = _of_batch(seen, variation.beyond_batch_size)
        samples += [
            _varied_sample(f"{purpose}-{index:04d}", purpose, rng, groups, params, varied)
            for purpose, groups in drawn.items()
        ]
        samples += [_public_sample(name, tables, pool, index, rng, params) for name, tables in public.items()]
    return _frames(sorted(samples, key=lambda sample: sample.sample_id))


def _varied_sample(
    sample_id: str,
    purpose: str,
    rng: np.random.Generator,
    groups: Sequence[_Group],
    params: ComputeSampleParams,
    varied: VariedSampleParams,
) -> _Sample:
    """Distinct tables of one group; groups are chosen by how many tables they have."""
    sizes = np.array([len(group.names) for group in groups], dtype=np.float64)
    weights = np.asarray(varied.dimension_weights) / sum(varied.dimension_weights)

    def draw() -> tuple[_Group, IntArray, IntArray]:
        group = groups[rng.choice(len(groups), p=sizes / sizes.sum())]
        count = min(int(rng.integers(params.min_tables, params.max_tables + 1)), len(group.names))
        if rng.random() >= varied.alike_share:
            chosen = rng.choice(len(group.names), count, replace=False)
            return group, chosen, rng.choice(varied.dimensions, count, p=weights)
        first = rng.integers(len(group.names) - min(2 * count, len(group.names)) + 1)
        order = group.by_rows if rng.random() < varied.alike_rows_share else np.arange(len(group.names))
        candidates = order[first : first + 2 * count]
        widths = _halvings(int(rng.choice(varied.dimensions, p=weights)))
        return group, rng.choice(candidates, count, replace=False), rng.choice(widths, count)

    def needed(drawn: tuple[_Group, IntArray, IntArray]) -> int:
        group, chosen, dims = drawn
        return int((group.rows[chosen] * dims).sum()) * BYTES_PER_ELEMENT[group.data_type]

    group, chosen, dims = redraw_until_fits(draw, needed, params.memory_bytes, sample_id)
    optimizer = "rowwise_adagrad" if rng.random() < varied.rowwise_adagrad_share else "sgd"
    return _Sample(sample_id, purpose, group.batch_size, optimizer, group.names[chosen].tolist(), dims)


def _public_sample(
    name: str, tables: Sequence[Table], pool: pd.DataFrame, index: int, rng: np.random.Generator,
    params: ComputeSampleParams,
) -> _Sample:  # fmt: skip
    """Distinct tables of a public set, each of its width or of a half, a quarter, … of it."""
    rows = pool.loc[pool["origin"] == name].set_index("table")["num_embeddings"]
    names = [public_name(name, table.name) for table in tables]
    sample_id = f"{name}-{index:04d}"

    def draw() -> tuple[IntArray, IntArray]:
        count = min(int(rng.integers(params.min_tables, params.max_tables + 1)), len(tables))
        chosen = rng.choice(len(tables), count, replace=False)
        return chosen, np.array([rng.choice(_halvings(tables[at].embedding_dim)) for at in chosen])

    def needed(drawn: tuple[IntArray, IntArray]) -> int:
        return int((rows[[names[at] for at in drawn[0]]].to_numpy() * drawn[1]).sum()) * BYTES_PER_ELEMENT["fp32"]

    chosen, dims = redraw_until_fits(draw, needed, params.memory_bytes, sample_id)
    return _Sample(sample_id, name, params.batch_size, "sgd", [names[at] for at in chosen], dims)


def _halvings(width: int) -> list[int]:
    """`width`, its half, its quarter, … as long as they are widths that a shard may have."""
    widths = [width]
    while widths[-1] % (2 * COLUMN_GRANULARITY) == 0:
        widths.append(widths[-1] // 2)
    return widths


def _groups(pool: pd.DataFrame) -> list[_Group]:
    alike = ["batch_size", "data_type", "default_profile"]
    ordered = pool.sort_values([*alike, "pooling_factor", "table"])
    return [
        _Group(
            int(rows["batch_size"].iloc[0]),
            str(rows["data_type"].iloc[0]),
            rows["table"].to_numpy(dtype=str),
            rows["num_embeddings"].to_numpy(dtype=np.int64),
            np.lexsort((rows["num_embeddings"], rows["pooling_factor"])),
        )
        for _, rows in ordered.groupby(alike)
    ]


def _of_batch(groups: Sequence[_Group], batch_size: int) -> list[_Group]:
    """The groups of a batch size.

    Raises:
        TaskError: there are none.
    """
    found = [group for group in groups if group.batch_size == batch_size]
    if not found:
        raise TaskError(f"no derived tables of batch size {batch_size}; raise tables_per_batch_size")
    return found


def _frames(samples: Sequence[_Sample]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Samples and their settings as frames."""
    counts = [len(sample.tables) for sample in samples]
    drawn = pd.DataFrame(
        {
            "sample_id": np.repeat(np.array([sample.sample_id for sample in samples], dtype=object), counts),
            "batch_size": np.repeat(np.array([sample.batch_size for sample in samples], dtype=np.int64), counts),
            "table": [table for sample in samples for table in sample.tables],
            "embedding_dim": np.concatenate([np.empty(0, dtype=np.int64), *(sample.dims for sample in samples)]),
        }
    )
    settings = {name: [getattr(sample, name) for sample in samples] for name in ("sample_id", "optimizer", "purpose")}
    return drawn, pd.DataFrame(settings)
