"""Random sharding tasks for tests and benchmarks."""

from __future__ import annotations

import numpy as np

from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER

DIMS = (4, 8, 16, 32, 64, 128)


def random_tables(rng: np.random.Generator, count: int, dims=DIMS) -> list[Table]:
    """Tables whose numbers of rows and pooling factors are log-uniform."""
    return [
        Table(
            f"table_{index:04d}",
            num_embeddings=int(np.exp(rng.uniform(np.log(100), np.log(2e6)))),
            embedding_dim=int(rng.choice(dims)),
            pooling_factor=float(np.exp(rng.uniform(np.log(0.5), np.log(100.0)))),
        )
        for index in range(count)
    ]


def random_task(
    rng: np.random.Generator, num_tables: int, world_size: int, tightness: float = 0.6, *, uneven: bool = False
) -> ShardingTask:
    """A task whose tables fill about the share `tightness` of all ranks' memory. With `uneven`, memory differs."""
    tables = random_tables(rng, num_tables)
    optimizer = str(rng.choice(["sgd", "rowwise_adagrad", "adam"]))
    probe = ShardingTask(tables, world_size, 512, 2**60, optimizer)
    needed = sum(WEIGHTS_AND_OPTIMIZER.table_bytes(table, table.embedding_dim, probe) for table in tables)
    even = needed / tightness / world_size
    shares = rng.uniform(0.6, 1.4, world_size) if uneven else np.ones(world_size)
    limits = [max(1, int(even * share)) for share in shares / shares.mean()]
    return ShardingTask(tables, world_size, 512, limits if uneven else limits[0], optimizer)
