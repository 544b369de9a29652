"""What the lookup kernel of a shard sees: the rows, ids and bags of the shard, as a table of its own.

A row shard receives the ids of its rows only, and a replica the ids of its rank's samples only.
"""

from dataclasses import replace

import numpy as np

from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, REUSE_BIN_EDGES, Shard, Table

#: Lookups per batch of a row in the middle of each reuse bin (17,).
_MIDDLE_OF_BIN = np.array([1.0, 2.0, *(0.75 * edge for edge in REUSE_BIN_EDGES[2:]), 1.5 * REUSE_BIN_EDGES[-1]])


def lookup_batch_size(shard: Shard, batch_size: int, world_size: int) -> int:
    """Number of samples whose ids the shard's kernel looks up: a replica sees the samples of its rank only."""
    return max(1, -(-batch_size // world_size)) if shard.sharding_type == "data_parallel" else batch_size


def lookup_shard(shard: Shard, batch_size: int, world_size: int) -> Shard:
    """A column-wise shard, of a table of its own, with the lookups of `shard`.

    Args:
        shard: any shard.
        batch_size: global batch size.
        world_size: number of ranks.

    Returns:
        `shard` itself if it is column-wise. For a row shard, rows, ids and unique rows are those of its share of the
        rows, as if popular rows were spread evenly over all rows. For a replica, see `local_table`.
    """
    if shard.sharding_type == "column_wise":
        return shard
    if shard.sharding_type == "data_parallel":
        return replace(shard, table=local_table(shard.table, batch_size, world_size), sharding_type="column_wise")
    table = with_profile(shard.table, batch_size)
    unique_rows = float(min(max((table.unique_rows or 1.0) * shard.row_share, 1e-3), shard.num_rows))
    rows = replace(
        table,
        num_embeddings=shard.num_rows,
        pooling_factor=table.pooling_factor * shard.row_share,
        unique_rows=unique_rows,
    )
    return Shard(rows, shard.column_offset, shard.embedding_dim)


def local_table(table: Table, batch_size: int, world_size: int) -> Table:
    """The table with the reuse profile of one rank's samples, a `1 / world_size` part of the batch.

    A row that the whole batch looks up k times is looked up n times by one rank, where n follows the binomial
    distribution of k trials with probability `1 / world_size`. The profile has one mean n per reuse bin of the batch,
    taken over the rows that the rank looks up at least once.
    """
    if world_size == 1:
        return table
    table = with_profile(table, batch_size)
    rows = np.array(table.reuse) * (table.unique_rows or 1.0)  # (17,)
    seen = -np.expm1(_MIDDLE_OF_BIN * np.log1p(-1.0 / world_size))  # probability that the rank looks a row up
    counts = np.maximum(_MIDDLE_OF_BIN / world_size / seen, 1.0)
    bins = np.searchsorted(REUSE_BIN_EDGES, counts - 1e-9, side="left")
    local = np.bincount(bins, rows * seen, minlength=NUM_REUSE_BINS).astype(np.float64)
    unique_rows = float(min(max(local.sum(), 1e-3), table.num_embeddings))
    return replace(table, unique_rows=unique_rows, reuse=tuple((local / local.sum()).tolist()))
