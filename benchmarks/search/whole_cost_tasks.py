"""Full-scale tasks for the comparison of sharding types in the lab: ranks with 64 GiB for tables, 8 ranks per host.

- `published`: tables with the statistics of Meta's dlrm_datasets (`augment.pool`), of widths 4 to 128; 12 tables per
  rank on up to 16 ranks, 6 per rank on more ranks
- `mlperf`, `hugectr`: MLPerf DLRM-v2 and HugeCTR's 510 tables (data/01_raw)
- `tiny`: tables of 10 to 10,000 rows, 32 per rank on up to 16 ranks and 8 per rank on more ranks, beside one large
  table per two ranks
- `giant`: for every 8 ranks, one table whose shards exceed the memory of a rank even with only four columns, beside
  tables of `published`
- `production`: 66 tables drawn to the totals of the production-like set that torchrec#4548 describes: 156 million rows,
  1,015 ids per sample and 70 GiB; how rows and ids are spread over its tables is not published
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from neuroshard_pipeline.augment.pool import PoolParams, base_pool
from neuroshard_pipeline.tables.frames import tables_from_frame
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import ShardingTask

RAW = Path(__file__).resolve().parents[2] / "data" / "01_raw"
RANKS_PER_HOST = 8
#: 80 GB without the dense model, activations and buffers, as in conf/h100/globals.yml.
MEMORY_BYTES = 64 * 2**30
WIDTHS = (4, 8, 16, 32, 64, 128)
#: Number of ranks → samples per rank of the first, second and third task of a suite; later tasks repeat them.
LOCAL_BATCHES = {8: (8192, 4096, 2048), 16: (4096, 8192, 2048), 128: (1024, 2048, 512)}
#: Tables, rows, ids per sample and bytes of torchrec#4548.
PRODUCTION_TABLES, PRODUCTION_ROWS, PRODUCTION_IDS, PRODUCTION_BYTES = 66, 156e6, 1015, 70 * 2**30
POOL_TABLES = 856
POOL_SEED = 77


def suite_tasks(suite: str, world_size: int, count: int) -> Iterator[ShardingTask]:
    """`count` tasks of a suite; the samples per rank alternate (`LOCAL_BATCHES`)."""
    batches = LOCAL_BATCHES.get(world_size, (2048, 1024, 4096))
    for index in range(count):
        batch_size = world_size * batches[index % len(batches)]
        rng = np.random.default_rng([POOL_SEED, world_size, index])
        yield ShardingTask(
            SUITES[suite](world_size, batch_size, rng),
            world_size,
            batch_size,
            MEMORY_BYTES,
            optimizer="rowwise_adagrad",
            task_id=f"{suite}-{world_size}-{index}",
            local_world_size=min(world_size, RANKS_PER_HOST),
        )


def _published(world_size: int, batch_size: int, rng: np.random.Generator) -> list[Table]:
    seed = int(rng.integers(2**31))
    pool = base_pool(PoolParams(num_tables=POOL_TABLES, batch_size=batch_size, row_scale=1, seed=seed))
    tables = tables_from_frame(pool)
    count = world_size * 12 if world_size <= 16 else world_size * 6
    chosen = rng.choice(len(tables), count, replace=False)
    return [replace(tables[index], embedding_dim=int(rng.choice(WIDTHS))) for index in chosen]


def _from_file(name: str) -> Callable[[int, int, np.random.Generator], Sequence[Table]]:
    return lambda world_size, batch_size, rng: read_tables(RAW / name)  # noqa: ARG005


def _tiny(world_size: int, batch_size: int, rng: np.random.Generator) -> list[Table]:  # noqa: ARG001
    count = world_size * 32 if world_size <= 16 else world_size * 8
    small = [
        Table(
            name=f"small_{index}",
            num_embeddings=round(10 ** rng.uniform(1, 4)),
            embedding_dim=int(rng.choice((16, 32, 64))),
            pooling_factor=float(rng.choice((1, 1, 1, 2, 5))),
        )
        for index in range(count)
    ]
    large = [
        Table(f"large_{index}", round(10 ** rng.uniform(6, 7.3)), 64, float(rng.choice((1, 2, 10, 20))))
        for index in range(world_size // 2)
    ]
    return small + large


def _giant(world_size: int, batch_size: int, rng: np.random.Generator) -> list[Table]:
    fits = MEMORY_BYTES // (4 * 4)  # rows of four fp32 columns
    giants = [
        Table(
            f"giant_{index}",
            round(fits * rng.uniform(1.02, 1.4)),
            int(rng.choice((4, 8))),
            float(rng.choice((1, 2, 5))),
        )
        for index in range(max(1, world_size // 8))
    ]
    return giants + _published(world_size, batch_size, rng)


def _production(world_size: int, batch_size: int, rng: np.random.Generator) -> list[Table]:  # noqa: ARG001
    """Rows and ids are log-normal; tables have 128 or 64 columns."""
    rows = np.exp(rng.normal(0, 2, PRODUCTION_TABLES))
    rows = np.maximum(rows * PRODUCTION_ROWS / rows.sum(), 10).astype(int)
    ids = np.exp(rng.normal(0, 1.5, PRODUCTION_TABLES))
    widths, missing = np.full(PRODUCTION_TABLES, 128), rows.sum() * 128 * 4 - PRODUCTION_BYTES
    for index in rng.permutation(PRODUCTION_TABLES):
        if rows[index] * 64 * 4 <= missing:
            widths[index], missing = 64, missing - rows[index] * 64 * 4
    return [
        Table(f"table_{index}", int(rows[index]), int(widths[index]), float(each))
        for index, each in enumerate(1 + ids * (PRODUCTION_IDS - PRODUCTION_TABLES) / ids.sum())
    ]


SUITES: dict[str, Callable[[int, int, np.random.Generator], Sequence[Table]]] = {
    "published": _published,
    "mlperf": _from_file("mlperf_dlrm_v2.csv"),
    "hugectr": _from_file("hugectr_t510.csv"),
    "tiny": _tiny,
    "giant": _giant,
    "production": _production,
}
