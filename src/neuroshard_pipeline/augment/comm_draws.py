"""Communication samples: what ranks exchange [Zha2023] §3.1; and what all draws of samples and tasks share.

Every pool table is replicated with every width; the copies are the *augmented tables*. A sample's numbers depend on the
seed and on its own index only, so that asking for more samples leaves the first ones as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, MAX_EMBEDDING_DIM

IntArray = NDArray[np.int64]
Drawn = TypeVar("Drawn")

#: A sample that does not fit the memory is drawn again at most this often.
MAX_REDRAWS = 1000

#: How far the limits of start skews reach below the largest.
_SKEW_DECADES = 2

#: First entropy word of the generators, so that the kinds of samples are independent at equal seeds.
_COMM_STREAM = 2


class CommSampleParams(BaseModel):
    """What decides the communication samples.

    Attributes:
        num_samples: how many, over all world sizes.
        batch_size: global batch of most samples.
        other_batch_sizes: global batches of the others, at random.
        other_batch_share: chance of a sample to be one of the others.
        world_sizes: numbers of ranks; samples take them in turn.
        dimensions: widths of the augmented tables.
        min_tables_per_4_ranks: fewest tables of a sample, for every 4 ranks.
        max_tables_per_4_ranks: most tables of a sample, for every 4 ranks.
        max_start_skew_ms: no rank enters later than this after the first one.
        seed: decides every sample, together with its index.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_samples: int = Field(ge=1, le=10_000_000)
    batch_size: int = Field(ge=1, le=2**24)
    other_batch_sizes: tuple[Annotated[int, Field(ge=1, le=2**24)], ...] = ()
    other_batch_share: float = Field(default=0.0, ge=0.0, le=1.0)
    world_sizes: tuple[int, ...] = Field(min_length=1)
    dimensions: tuple[int, ...] = Field(min_length=1)
    min_tables_per_4_ranks: int = Field(ge=1, le=10_000)
    max_tables_per_4_ranks: int = Field(ge=1, le=10_000)
    max_start_skew_ms: float = Field(ge=0, le=1e6)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> CommSampleParams:
        check_dimensions(self.dimensions)
        check_world_sizes(self.world_sizes)
        check_range(
            "min_tables_per_4_ranks",
            self.min_tables_per_4_ranks,
            "max_tables_per_4_ranks",
            self.max_tables_per_4_ranks,
        )
        if self.other_batch_share and not self.other_batch_sizes:
            raise ValueError(f"other_batch_share {self.other_batch_share} needs other_batch_sizes")
        return self


def comm_samples(pool: pd.DataFrame, params: CommSampleParams) -> pd.DataFrame:
    """Draw what ranks exchange: the widths of augmented tables placed on ranks more or less evenly.

    Tables are placed widest first on the rank with the smallest sum of widths; with a probability that is drawn per
    sample, on a random rank instead, so that the imbalance varies from none to severe. Start skews are uniform
    between 0 and a limit, which is drawn per sample, log-uniform over the two decades up to `max_start_skew_ms`: the
    ranks of a good plan start close together, those of a bad one do not; the first rank's is 0.

    Returns:
        `sample_id, world_size, batch_size, rank, dim_sum, start_skew_ms`, one row per rank of a sample.

    Raises:
        TaskError: the pool is too small.
    """
    pool = generated_tables(pool)
    largest = max(table_range(params.max_tables_per_4_ranks, size) for size in params.world_sizes)
    check_pool_size("tables", largest, len(pool) * len(params.dimensions), "max_tables_per_4_ranks or world_sizes")
    samples = [_comm_sample(index, len(pool), params) for index in range(params.num_samples)]
    world_sizes = [len(sample.dim_sums) for sample in samples]
    sample_ids = [f"comm-{index:06d}" for index in range(params.num_samples)]
    return pd.DataFrame(
        {
            "sample_id": np.repeat(sample_ids, world_sizes),
            "world_size": np.repeat(world_sizes, world_sizes),
            "batch_size": np.repeat([sample.batch_size for sample in samples], world_sizes),
            "rank": np.concatenate([np.arange(size) for size in world_sizes]),
            "dim_sum": np.concatenate([sample.dim_sums for sample in samples]),
            "start_skew_ms": np.concatenate([sample.start_skew_ms for sample in samples]),
        }
    )


class _Exchange(NamedTuple):
    """One sample: (W,) sums of widths and start skews of its ranks, and the global batch."""

    dim_sums: IntArray
    start_skew_ms: NDArray[np.float64]
    batch_size: int


def _comm_sample(index: int, pool_size: int, params: CommSampleParams) -> _Exchange:
    rng = np.random.default_rng([_COMM_STREAM, params.seed, index])
    world_size = params.world_sizes[index % len(params.world_sizes)]
    count = rng.integers(
        table_range(params.min_tables_per_4_ranks, world_size),
        table_range(params.max_tables_per_4_ranks, world_size) + 1,
    )
    augmented = rng.choice(pool_size * len(params.dimensions), size=count, replace=False, shuffle=False)
    dims = np.asarray(params.dimensions, dtype=np.int64)[augmented % len(params.dimensions)]
    dim_sums = place_widest_first(dims, world_size, rng.random(), rng)
    skew = rng.random(world_size) * params.max_start_skew_ms * 10.0 ** -(_SKEW_DECADES * rng.random())
    batch_size = params.batch_size
    if rng.random() < params.other_batch_share:
        batch_size = int(rng.choice(params.other_batch_sizes))
    return _Exchange(dim_sums, skew - skew.min(), batch_size)


def place_widest_first(dims: IntArray, world_size: int, random_share: float, rng: np.random.Generator) -> IntArray:
    """Sum of widths per rank, each table on the rank with the smallest sum or, with `random_share`, on any rank."""
    dim_sums = np.zeros(world_size, dtype=np.int64)
    anywhere = rng.random(len(dims)) < random_share
    any_rank = rng.integers(world_size, size=len(dims))
    for dim, is_random, rank in zip(np.sort(dims)[::-1], anywhere, any_rank, strict=True):
        dim_sums[rank if is_random else np.argmin(dim_sums)] += dim
    return dim_sums


def redraw_until_fits(
    draw: Callable[[], Drawn], needed_bytes: Callable[[Drawn], int], available_bytes: int, what: str
) -> Drawn:
    """The first result of `draw` that needs at most `available_bytes`.

    Raises:
        TaskError: none of `MAX_REDRAWS` did.
    """
    least = None
    for _ in range(MAX_REDRAWS):
        drawn = draw()
        needed = needed_bytes(drawn)
        if needed <= available_bytes:
            return drawn
        least = needed if least is None else min(least, needed)
    raise TaskError(
        f"{what}: {MAX_REDRAWS} random draws all need more memory than the {available_bytes} bytes there are (the "
        f"smallest needs {least}); raise memory_bytes, ask for fewer tables, or scale the pool's rows down"
    )


def table_range(tables_per_4_ranks: int, world_size: int) -> int:
    """Number of tables for `world_size` ranks, in proportion, at least 1."""
    return max(1, round(tables_per_4_ranks * world_size / 4))


def check_dimensions(dimensions: tuple[int, ...]) -> None:
    """Refuse widths that no shard may have (a ValueError, as pydantic expects)."""
    for dim in dimensions:
        if dim <= 0 or dim % COLUMN_GRANULARITY or dim > MAX_EMBEDDING_DIM:
            raise ValueError(f"dimension {dim} must be a multiple of {COLUMN_GRANULARITY} up to {MAX_EMBEDDING_DIM}")
    if len(set(dimensions)) < len(dimensions):
        raise ValueError(f"dimensions {dimensions} must differ from each other")


def check_world_sizes(world_sizes: tuple[int, ...]) -> None:
    """Refuse numbers of ranks below 2: nothing is exchanged there."""
    for size in world_sizes:
        if not 2 <= size <= 4096:
            raise ValueError(f"world size {size} must be between 2 and 4096")


def check_range(low_name: str, low: int, high_name: str, high: int) -> None:
    """Refuse an empty range."""
    if low > high:
        raise ValueError(f"{low_name} {low} must be at most {high_name} {high}")


def check_pool_size(what: str, wanted: int, available: int, remedy: str) -> None:
    """Refuse to draw more different tables than there are."""
    if wanted > available:
        raise TaskError(
            f"{what} {wanted}: the pool has only {available} augmented tables (tables times dimensions); "
            f"lower {remedy} or generate a larger pool"
        )
