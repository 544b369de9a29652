"""Draws communication samples: the data volumes that ranks exchange, and their start skews [Zha2023] §3.1."""

from typing import Self

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.augment.drawing import BatchSize, Share, TableLimits, WorldSizes, check_pool_size
from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.tables.frames import comm_samples_to_frame
from neuroshard_pipeline.tables.samples import CommSample

#: Width of the log-uniform range of a sample's skew limit, in decades; `max_start_skew_ms` is the range's upper end.
_SKEW_DECADES = 2

#: First number in the seeds of the generators. It differs between kinds of draws, so their draws are independent.
_COMM_STREAM = 2


class CommSampleParams(TableLimits):
    """Parameters of the communication samples, in addition to the limits on the number of tables.

    Attributes:
        num_samples: number of samples over all world sizes.
        batch_size: global batch size of most samples.
        other_batch_sizes: global batch sizes of the other samples, drawn uniformly.
        other_batch_share: probability that a sample has one of `other_batch_sizes`.
        world_sizes: numbers of ranks, assigned to the samples in turn.
        max_start_skew_ms: largest time between the first and the last rank's entry into a collective.
        seed: seed of the draws; given the pool and other parameters, a sample depends only on the seed and its index.
    """

    num_samples: int = Field(ge=1, le=10_000_000)
    batch_size: BatchSize
    other_batch_sizes: tuple[BatchSize, ...] = ()
    other_batch_share: Share = 0.0
    world_sizes: WorldSizes
    max_start_skew_ms: float = Field(ge=0, le=1e6)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.other_batch_share and not self.other_batch_sizes:
            raise ValueError(f"other_batch_share {self.other_batch_share} needs other_batch_sizes")
        return self


def comm_samples(pool: pd.DataFrame, params: CommSampleParams) -> pd.DataFrame:
    """Draw augmented tables (see `drawing`) and place them on ranks, more or less evenly; only their widths count.

    Tables are placed in descending order of width, each on the rank with the smallest sum of widths. With a probability
    that is drawn per sample, a table is placed on a random rank instead, so that the imbalance varies from none to
    severe. Start skews are uniform between 0 and a limit, shifted so that the earliest rank has 0. The limit is drawn
    per sample, log-uniformly over the two decades up to `max_start_skew_ms`, because ranks start at nearly the same
    time with a good plan and at very different times with a bad one.

    Returns:
        `sample_id, world_size, batch_size, rank, dim_sum, start_skew_ms`, one row per rank of a sample.

    Raises:
        TaskError: the pool is too small.
    """
    pool = generated_tables(pool)
    largest = max(params.table_limits(size)[1] for size in params.world_sizes)
    check_pool_size("tables", largest, len(pool) * len(params.dimensions), "max_tables_per_4_ranks or world_sizes")
    return comm_samples_to_frame([_comm_sample(index, len(pool), params) for index in range(params.num_samples)])


def _comm_sample(index: int, pool_size: int, params: CommSampleParams) -> CommSample:
    rng = np.random.default_rng([_COMM_STREAM, params.seed, index])
    world_size = params.world_sizes[index % len(params.world_sizes)]
    least, most = params.table_limits(world_size)
    count = rng.integers(least, most + 1)
    augmented = rng.choice(pool_size * len(params.dimensions), size=count, replace=False, shuffle=False)
    dims = np.asarray(params.dimensions, dtype=np.int64)[augmented % len(params.dimensions)]
    dim_sums = place_widest_first(dims, world_size, rng.random(), rng)
    skew = rng.random(world_size) * params.max_start_skew_ms * 10.0 ** -(_SKEW_DECADES * rng.random())
    batch_size = params.batch_size
    if rng.random() < params.other_batch_share:
        batch_size = int(rng.choice(params.other_batch_sizes))
    start_skew_ms = tuple((skew - skew.min()).tolist())
    return CommSample(f"comm-{index:06d}", batch_size, tuple(dim_sums.tolist()), start_skew_ms)


def place_widest_first(dims: IntArray, world_size: int, random_share: float, rng: np.random.Generator) -> IntArray:
    """The sums of widths per rank (W,) if tables of the widths `dims` are placed in descending order of width.

    Each goes to the rank with the smallest sum or, with probability `random_share`, to a random rank.
    """
    dim_sums = np.zeros(world_size, dtype=np.int64)
    is_random = rng.random(len(dims)) < random_share
    random_ranks = rng.integers(world_size, size=len(dims))
    for dim, at_random, rank in zip(np.sort(dims)[::-1], is_random, random_ranks, strict=True):
        dim_sums[rank if at_random else np.argmin(dim_sums)] += dim
    return dim_sums
