"""TorchRec's `use_index_dedup`: a rank sends an id of a sequence table once, however often its samples contain the id.

TorchRec finds the distinct ids of a rank's samples before the input dist, exchanges these ids and their rows, and
expands the rows afterwards [torchrec embedding.py, `_create_inverse_indices_permute_indices`, `_dedup_indices`]. A
shard then receives fewer ids, and any id at most once from every rank. The ids of data-parallel tables are not
exchanged and stay as they are.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.tables.lookups import local_table, lookup_batch_size, lookup_shard, representative_counts
from neuroshard_pipeline.tables.profile import reuse_bin, with_profile
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, Shard, ShardingType, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: If `ranks * (log(ranks) + 30)` lookups of a row fall on random ranks, some rank gets none with probability exp(-30).
_SURE = 30.0


@lru_cache(maxsize=4096)
def deduplicated(table: Table, batch_size: int, world_size: int) -> Table:
    """A sequence table with the ids that its shards receive if each of `world_size` ranks sends every id once.

    The number of ids is the expected number of distinct rows in the samples of one rank (`lookups.local_table`), times
    the number of ranks. A row is looked up once by every rank whose samples contain it. If the whole batch contains it
    k times, these k lookups are assumed to fall on ranks independently.
    """
    table = with_profile(table, batch_size)
    of_rank = local_table(table, batch_size, world_size).unique_rows or 0.0
    rows = np.array(table.reuse) * (table.unique_rows or 1.0) @ _ranks_of_bins(world_size)  # (17,)
    pooling_factor = min(world_size * of_rank / batch_size, table.pooling_factor)
    return replace(table, pooling_factor=pooling_factor, reuse=tuple((rows / rows.sum()).tolist()))


def exchanged(shard: Shard, task: ShardingTask) -> Shard:
    """The shard with the ids that it receives; `shard` itself if its ids are not deduplicated."""
    table = exchanged_table(shard.table, shard.sharding_type, task)
    return shard if table is shard.table else replace(shard, table=table)


def exchanged_table(table: Table, sharding_type: ShardingType, task: ShardingTask) -> Table:
    """The table that a shard of this type sees (`exchanged`)."""
    if not task.index_dedup or table.pooling != "none" or sharding_type == "data_parallel":
        return table
    return deduplicated(table, task.batch_size, task.world_size)


def looked_up(shard: Shard, task: ShardingTask) -> tuple[Shard, int]:
    """The lookups of a shard's kernel, described as a column-wise shard of a table, and the number of their samples.

    A `host_row_wise` shard sees the ids of its host's samples, which are `1 / num_hosts` of the batch.
    """
    batch_size, world_size = task.batch_size, task.world_size
    if shard.sharding_type != "host_row_wise":
        seen = exchanged(shard, task)
        return lookup_shard(seen, batch_size, world_size), lookup_batch_size(seen, batch_size, world_size)
    samples = max(1, -(-batch_size // task.num_hosts))
    table = local_table(shard.table, batch_size, task.num_hosts)
    if task.index_dedup:
        table = deduplicated(table, samples, task.ranks_per_host)
    rows = replace(shard, table=table, sharding_type="row_wise")
    return lookup_shard(rows, samples, task.ranks_per_host), samples


@lru_cache(maxsize=256)
def _ranks_of_bins(world_size: int) -> FloatArray:
    """For a row of each reuse bin, the probability of each bin after deduplication, (17, 17).

    After it, a row has one lookup per rank whose samples contain the row. On W ranks,
    P(k + 1 lookups fall on n ranks) = P(k on n) * n / W + P(k on n - 1) * (W - n + 1) / W.
    """
    counts = representative_counts()  # (17, counts)
    most = min(world_size, int(counts.max()))
    numbers = np.arange(1, most + 1)
    bins = reuse_bin(numbers)
    stay, move = numbers / world_size, (world_size - numbers) / world_size
    wanted = set(counts.ravel().astype(int).tolist())
    sure = int(world_size * (np.log(world_size) + _SURE)) + 1
    ranks, found = np.zeros(most), dict[int, FloatArray]()
    ranks[0] = 1.0
    for lookups in range(1, min(max(wanted), sure) + 1):
        if lookups in wanted:
            found[lookups] = np.bincount(bins, ranks, NUM_REUSE_BINS).astype(float)
        ranks[1:] = ranks[1:] * stay[1:] + ranks[:-1] * move[:-1]
        ranks[0] *= stay[0]
    every = np.bincount(bins[-1:], minlength=NUM_REUSE_BINS).astype(float)  # all ranks
    transitions: FloatArray = np.array([np.mean([found.get(int(k), every) for k in of], axis=0) for of in counts])
    transitions.flags.writeable = False  # the cache hands out the same array again
    return transitions
