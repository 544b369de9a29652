"""Draws compute samples as the paper does: sets of tables of the pool, each with a random width [Zha2023] §3.1.

`varied_draws` draws samples of other kinds. The random numbers of a sample depend on the seed and its own index only.
"""

import numpy as np
import pandas as pd
from pydantic import Field

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.augment.drawing import BatchSize, Dimensions, TableCount, check_pool_size, redraw_until_fits
from neuroshard_pipeline.augment.pool import generated_tables
from neuroshard_pipeline.augment.variation import is_held_out
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.samples import TRAINING
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT

_COMPUTE_STREAM = 1


class ComputeSampleParams(Parameters):
    """Parameters of the compute samples.

    Attributes:
        num_samples: number of samples.
        batch_size: global batch size, for which the reuse profiles of the pool hold.
        dimensions: widths that every table can be drawn with.
        min_tables: smallest number of (table, width) pairs of a sample.
        max_tables: largest number of (table, width) pairs of a sample.
        memory_bytes: memory of one device; the weights of a sample do not exceed it.
        seed: seed of the draws.
    """

    num_samples: int = Field(ge=1, le=10_000_000)
    batch_size: BatchSize
    dimensions: Dimensions
    min_tables: TableCount
    max_tables: TableCount
    memory_bytes: int = Field(gt=0)
    seed: int = Field(ge=0)


def compute_samples(pool: pd.DataFrame, params: ComputeSampleParams) -> pd.DataFrame:
    """Draw sets of `min_tables` to `max_tables` augmented tables, uniformly and without replacement.

    An augmented table is a table with one of the widths in `dimensions`. A sample whose weights exceed `memory_bytes`
    is drawn again as a whole. Derived, public and held-out tables (`variation`) are not drawn.

    Returns:
        `sample_id, batch_size, table, embedding_dim`, one row per augmented table of a sample.

    Raises:
        TaskError: the pool is too small, or none of `drawing.MAX_REDRAWS` draws of a sample fits the memory.
    """
    pool = generated_tables(pool)
    pool = pool[~is_held_out(pool)]
    dims = np.asarray(params.dimensions, dtype=np.int64)
    rows = pool["num_embeddings"].to_numpy(dtype=np.int64)
    # Augmented table t * len(dims) + d is table t with width dims[d]; generated tables are stored in fp32.
    weight_bytes = np.outer(rows, dims * BYTES_PER_ELEMENT["fp32"]).ravel()
    check_pool_size("max_tables", params.max_tables, len(weight_bytes), "max_tables")
    _check_memory(pool, weight_bytes, params)
    sample_ids = [f"compute-{index:06d}" for index in range(params.num_samples)]
    chosen = [_compute_sample(index, name, weight_bytes, params) for index, name in enumerate(sample_ids)]
    tables = np.concatenate(chosen)
    return pd.DataFrame(
        {
            "sample_id": np.repeat(sample_ids, [len(one) for one in chosen]),
            "batch_size": params.batch_size,
            "table": pool["table"].to_numpy()[tables // len(dims)],
            "embedding_dim": dims[tables % len(dims)],
        }
    )


def paper_settings(samples: pd.DataFrame) -> pd.DataFrame:
    """Settings (columns: see `varied_samples`) of training samples as in the paper, whose backward pass applies SGD."""
    common = {"optimizer": "sgd", "purpose": TRAINING, "sharding_type": "column_wise", "world_size": 1}
    return pd.DataFrame({"sample_id": samples["sample_id"].unique(), **common})


def _compute_sample(index: int, name: str, weight_bytes: IntArray, params: ComputeSampleParams) -> IntArray:
    """Indices of the augmented tables of one sample."""
    rng = np.random.default_rng([_COMPUTE_STREAM, params.seed, index])

    def draw() -> IntArray:
        count = rng.integers(params.min_tables, params.max_tables + 1)
        return rng.choice(len(weight_bytes), size=count, replace=False, shuffle=False)

    return redraw_until_fits(draw, lambda tables: int(weight_bytes[tables].sum()), params.memory_bytes, name)


def _check_memory(pool: pd.DataFrame, weight_bytes: IntArray, params: ComputeSampleParams) -> None:
    """Raise `TaskError` if the `min_tables` smallest augmented tables need more than `memory_bytes`."""
    order = np.argsort(weight_bytes, kind="stable")
    needed = int(weight_bytes[order[: params.min_tables]].sum())
    if needed > params.memory_bytes:
        name = pool["table"].iloc[int(order[0]) // len(params.dimensions)]
        raise TaskError(
            f"memory_bytes {params.memory_bytes} is too small for any sample: the smallest table, {name!r} at "
            f"dimension {min(params.dimensions)}, needs {int(weight_bytes[order[0]])} bytes, and the "
            f"{params.min_tables} smallest together need {needed}; raise memory_bytes or scale the pool's rows down"
        )
