"""Tasks of sequence tables (no pooling) for `bench_tiers.py`: 20 to 200 ids per table and sample, widths 32 to 128.

The ids of all tables of a task follow one of three popularities.

- `published`: the skew of Meta's dlrm_datasets, in which 2 % of a batch's distinct rows get 49 % of the ids
- `steep`, `flat`: Zipf's law with exponents 1.2 and 0.7

Every rank has memory for a quarter more than its even share of weights and optimizer state. Plans with tiers get no
more memory than other plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from row_popularity import RowPopularity, row_popularity
from sequence_draws import SequenceIds, sequence_tables

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.ids import TableIds
from neuroshard_pipeline.tables.popularity import IdCounts, PopularityCurve, curve_of_profile, id_counts
from neuroshard_pipeline.tables.profile import expected_rows
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask

_SEED = 17
_ROWWISE_STATE_BYTES = 4
_MEMORY_FACTOR = 1.25


@dataclass(frozen=True)
class Scale:
    """Sizes of a task.

    Attributes:
        tables: number of tables.
        least_rows: smallest number of rows; rows are drawn log-uniformly.
        most_rows: largest number of rows.
        local_batch: samples per rank.
        least_length: smallest mean number of ids per sample; lengths are drawn log-uniformly.
        most_length: largest mean number of ids per sample.
        widths: numbers of columns.
    """

    tables: int
    least_rows: int
    most_rows: int
    local_batch: int
    least_length: int = 20
    most_length: int = 200
    widths: tuple[int, ...] = (32, 64, 128)


#: Scales by name: modelled clusters of H100, and processes on CPUs.
SCALES: dict[str, Scale] = {
    "lab-16": Scale(tables=32, least_rows=300_000, most_rows=30_000_000, local_batch=2048),
    "lab-128": Scale(tables=64, least_rows=300_000, most_rows=30_000_000, local_batch=2048),
    "gloo": Scale(tables=4, least_rows=30_000, most_rows=100_000, local_batch=128),
    "quick": Scale(tables=2, least_rows=5_000, most_rows=20_000, local_batch=32),
}


@dataclass(frozen=True)
class SequenceTask:
    """A task and the sources of its ids.

    Attributes:
        task: the sharding task.
        sources: where the ids of every table come from, by table.
    """

    task: ShardingTask
    sources: Mapping[str, SequenceIds]

    @property
    def popularities(self) -> dict[str, RowPopularity]:
        """The distribution of the ids of every table."""
        return {name: source.popularity for name, source in self.sources.items()}

    @property
    def curves(self) -> dict[str, PopularityCurve]:
        """The exact popularity curve of every table."""
        return {
            name: PopularityCurve(
                np.append(0.0, np.cumsum(own.rows)), np.append(0.0, np.cumsum(own.rows * own.popularity)).clip(0.0, 1.0)
            )
            for name, own in self.popularities.items()
        }

    def with_curves(self, curves: Mapping[str, PopularityCurve]) -> SequenceTask:
        """The same tables, with these popularity curves for the search."""
        tables = [replace(table, popularity=curves[table.name].points) for table in self.task.tables]
        return replace(self, task=replace(self.task, tables=tables))

    def curves_of_batches(self, number: int) -> dict[str, PopularityCurve]:
        """For every table, the curve that follows from the expected reuse profile of `number` batches together."""
        found, size = {}, number * self.task.batch_size
        for name, source in self.sources.items():
            unique_rows, reuse = source.popularity.profile(size * source.table.pooling_factor)
            found[name] = curve_of_profile(replace(source.table, unique_rows=unique_rows, reuse=reuse), size)
        return found

    def counts(self, seeds: Iterable[int]) -> dict[str, IdCounts]:
        """Lookups of every row of every table in the batches of these seeds."""
        size = self.task.batch_size
        return {
            name: id_counts((source.draw(size, seed).indices for seed in seeds), source.table.num_embeddings)
            for name, source in self.sources.items()
        }

    def batch(self, seed: int) -> tuple[TableIds, ...]:
        """The ids of one global batch, in the order of the task's tables."""
        return tuple(self.sources[table.name].draw(self.task.batch_size, seed) for table in self.task.tables)


def sequence_task(
    popularity: str, world_size: int, local_world_size: int, scale: Scale, index: int = 0
) -> SequenceTask:
    """The `index`-th task of a popularity; tasks of different popularities have tables of the same sizes."""
    rng = np.random.default_rng([_SEED, world_size, index])
    batch_size = world_size * scale.local_batch
    lengths = _log_uniform(scale.least_length, scale.most_length, scale.tables, rng)
    rows = _log_uniform(scale.least_rows, scale.most_rows, scale.tables, rng)
    widths = rng.choice(scale.widths, scale.tables).tolist()
    tables = sequence_tables(popularity, lengths, widths, rows, batch_size)
    total = sum(table.weight_bytes + _ROWWISE_STATE_BYTES * table.num_embeddings for table in tables)
    task = ShardingTask(
        tables,
        world_size,
        batch_size,
        int(_MEMORY_FACTOR * total / world_size),
        optimizer="rowwise_adagrad",
        task_id=f"{popularity}-{world_size}-{index}",
        local_world_size=local_world_size,
    )
    sources = {t.name: SequenceIds(t, row_popularity(popularity, t.num_embeddings)) for t in tables}
    return SequenceTask(task, sources)


def judged(plan: Plan, sources: Mapping[str, SequenceIds]) -> tuple[ShardingTask, tuple[Shard, ...]]:
    """The task and the shards of a plan as `judged_shards` describes them."""
    return judged_shards(plan.task, plan.shards, sources)


def judged_shards(
    task: ShardingTask, shards: Iterable[Shard], sources: Mapping[str, SequenceIds]
) -> tuple[ShardingTask, tuple[Shard, ...]]:
    """A task and its shards; the numbers of ids and distinct rows of every tier follow from the true popularities.

    A search only estimates these numbers, from a reuse profile or from a popularity curve.
    """
    size = task.batch_size
    tables = {t.name: t if t.tier is None else _true_tier(t, sources[t.tier.parent], size) for t in task.tables}
    task = replace(task, tables=list(tables.values()))
    return task, tuple(replace(shard, table=tables[shard.table.name]) for shard in shards)


def _true_tier(table: Table, source: SequenceIds, batch_size: int) -> Table:
    assert table.tier is not None, "the caller has checked that the table is a tier"
    popularity, ids = source.popularity, batch_size * source.table.pooling_factor
    ends = np.cumsum(popularity.rows)
    first, last = table.tier.row_offset, table.tier.row_offset + table.num_embeddings
    rows = np.clip(np.minimum(ends, last) - np.maximum(ends - popularity.rows, first), 0, None).astype(float)
    of_bins = expected_rows(rows, popularity.popularity, round(ids))
    unique_rows = float(min(of_bins.sum(), table.num_embeddings))
    return replace(
        table,
        pooling_factor=float(rows @ popularity.popularity) * source.table.pooling_factor,
        unique_rows=unique_rows,
        reuse=tuple((of_bins / of_bins.sum()).tolist()),
    )


def _log_uniform(least: int, most: int, count: int, rng: np.random.Generator) -> list[int]:
    return [round(value) for value in np.exp(rng.uniform(np.log(least), np.log(most), count)).tolist()]
