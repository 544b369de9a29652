"""A made-up machine whose costs are known exactly, and tables and samples to run on it."""

from __future__ import annotations

import numpy as np

from neuroshard_pipeline.cost_models.compute_features import segment_sums, shard_features
from neuroshard_pipeline.tables.samples import CommSample
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Shard, Table

BATCH_SIZE = 512
DIMS = (4, 8, 16, 32, 64, 128)


def make_table(rng: np.random.Generator, name: str) -> Table:
    rows = int(np.exp(rng.uniform(np.log(50), np.log(300_000))))
    pooling = float(np.exp(rng.uniform(np.log(0.5), np.log(100))))
    unique = max(1.0, min(rows, BATCH_SIZE * pooling) * rng.uniform(0.1, 0.9))
    return Table(name, rows, 128, pooling, unique, tuple(rng.dirichlet(np.full(NUM_REUSE_BINS, 0.3))))


def make_shards(rng: np.random.Generator, tables: list[Table], count: int) -> tuple[Shard, ...]:
    chosen = rng.choice(len(tables), size=count, replace=False)
    return tuple(Shard(tables[index], 0, int(rng.choice(DIMS))) for index in chosen)


def true_compute_ms(shards: tuple[Shard, ...], batch_size: int) -> np.ndarray:
    """Cost of a launch, plus costs of units of work, which become more expensive as the working set grows."""
    work = segment_sums(shard_features(shards, batch_size)[0], [len(shards)])[0]
    prices = np.array([[0.01, 0.01], [0, 0], [0.01, 0.02], [3, 8], [0.01, 0.02], [1, 4], [0.05, 0.1]])
    pressure = work[6] / (work[6] + 4.0)
    return np.array([0.05, 0.03]) + (work[:7] @ prices) * (1 + 0.4 * pressure)


def true_comm_ms(sample: CommSample) -> np.ndarray:
    """Costs of every rank, from latency, the larger of send and receive volume, and the total volume.

    The forward cost also contains the wait for the last rank.
    """
    dims, skew = np.array(sample.dim_sums, dtype=float), np.array(sample.start_skew_ms)
    unit = sample.batch_size / sample.world_size * 4 / 2**20
    out, into = dims * unit * (sample.world_size - 1), (dims.sum() - dims) * unit
    transfer = 0.05 + 0.01 * sample.world_size + 0.4 * np.maximum(out, into) + 0.1 * out.sum()
    return np.stack([skew.max() - skew + transfer, 1.1 * transfer], axis=-1)


def make_comm_sample(rng: np.random.Generator, index: int, world_size: int) -> CommSample:
    dims = tuple(int(4 * size) for size in rng.integers(20, 200, world_size))
    skew = rng.uniform(0, 3, world_size)
    return CommSample(f"comm-{index:06d}", BATCH_SIZE, dims, tuple((skew - skew.min()).tolist()))
