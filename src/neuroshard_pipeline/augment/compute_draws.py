"""Compute samples: the tables of one rank, drawn over and over, to be measured.

The paper draws them [Zha2023] §3.1 from generated tables, of which every one is replicated with every width (the copies
are its *augmented tables*). `varied_draws` has other kinds.

A sample's numbers depend on the seed and on its own index only, so that asking for more samples leaves the first ones
as they are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from neuroshard_pipeline.augment.comm_draws import check_dimensions, check_pool_size, check_range, redraw_until_fits
from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.augment.variation import is_held_out
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.samples import TRAINING
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT

IntArray = NDArray[np.int64]

_COMPUTE_STREAM = 1


class ComputeSampleParams(BaseModel):
    """What decides the compute samples.

    Attributes:
        num_samples: how many.
        batch_size: global batch; the one that the pool's profiles belong to.
        dimensions: widths that every pool table is replicated with.
        min_tables: fewest augmented tables of a sample.
        max_tables: most augmented tables of a sample.
        memory_bytes: weights of a sample fit into this, the memory of one device.
        seed: decides every sample, together with its index.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_samples: int = Field(ge=1, le=10_000_000)
    batch_size: int = Field(ge=1, le=2**24)
    dimensions: tuple[int, ...] = Field(min_length=1)
    min_tables: int = Field(ge=1, le=10_000)
    max_tables: int = Field(ge=1, le=10_000)
    memory_bytes: int = Field(gt=0)
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> ComputeSampleParams:
        check_dimensions(self.dimensions)
        check_range("min_tables", self.min_tables, "max_tables", self.max_tables)
        return self


def compute_samples(pool: pd.DataFrame, params: ComputeSampleParams) -> pd.DataFrame:
    """Draw the tables of one rank, over and over: `min_tables` to `max_tables` augmented tables drawn uniformly.

    A sample whose weights exceed `memory_bytes` is drawn again as a whole. Tables that are derived, public or held out
    (`variation`) are left aside.

    Returns:
        `sample_id, batch_size, table, embedding_dim`, one row per table of a sample.

    Raises:
        TaskError: the pool is too small, or no sample fits the memory.
    """
    pool = generated_tables(pool)
    pool = pool[~is_held_out(pool)]
    dims = np.asarray(params.dimensions, dtype=np.int64)
    weight_bytes = augmented_bytes(pool, params.dimensions)
    check_pool_size("max_tables", params.max_tables, len(weight_bytes), "max_tables")
    _check_smallest(pool, params.dimensions, params.min_tables, params.memory_bytes)
    chosen = [_compute_sample(index, weight_bytes, params) for index in range(params.num_samples)]
    tables = np.concatenate(chosen)
    sample_ids = [f"compute-{index:06d}" for index in range(params.num_samples)]
    return pd.DataFrame(
        {
            "sample_id": np.repeat(sample_ids, [len(one) for one in chosen]),
            "batch_size": params.batch_size,
            "table": pool["table"].to_numpy()[tables // len(dims)],
            "embedding_dim": dims[tables % len(dims)],
        }
    )


def _compute_sample(index: int, weight_bytes: IntArray, params: ComputeSampleParams) -> IntArray:
    """Numbers of the augmented tables of one sample."""
    rng = np.random.default_rng([_COMPUTE_STREAM, params.seed, index])

    def draw() -> IntArray:
        count = rng.integers(params.min_tables, params.max_tables + 1)
        return rng.choice(len(weight_bytes), size=count, replace=False, shuffle=False)

    return redraw_until_fits(
        draw, lambda tables: int(weight_bytes[tables].sum()), params.memory_bytes, f"compute-{index:06d}"
    )


def paper_settings(samples: pd.DataFrame) -> pd.DataFrame:
    """Settings of samples as the paper draws them: SGD, for training."""
    return pd.DataFrame({"sample_id": samples["sample_id"].unique(), "optimizer": "sgd", "purpose": TRAINING})


def augmented_bytes(pool: pd.DataFrame, dimensions: tuple[int, ...]) -> IntArray:
    """Bytes of the weights of every augmented table: number `table * len(dimensions) + dimension`, flat."""
    rows = pool["num_embeddings"].to_numpy(dtype=np.int64)
    row_bytes = np.asarray(dimensions, dtype=np.int64) * BYTES_PER_ELEMENT["fp32"]  # as generated tables are stored
    return np.outer(rows, row_bytes).ravel()


def _check_smallest(pool: pd.DataFrame, dimensions: tuple[int, ...], tables: int, memory_bytes: int) -> None:
    """Refuse a memory that not even the smallest augmented tables fit."""
    weight_bytes = augmented_bytes(pool, dimensions)
    order = np.argsort(weight_bytes, kind="stable")
    needed = int(weight_bytes[order[:tables]].sum())
    if needed > memory_bytes:
        name = pool["table"].iloc[int(order[0]) // len(dimensions)]
        raise TaskError(
            f"memory_bytes {memory_bytes} is too small for any sample: the smallest table, {name!r} at dimension "
            f"{min(dimensions)}, needs {int(weight_bytes[order[0]])} bytes, and {tables} of the smallest {needed}; "
            "raise memory_bytes or scale the pool's rows down"
        )
