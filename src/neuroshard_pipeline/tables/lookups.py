"""The lookups of a shard as its kernel sees them: lookups of a stand-in table with the rows and ids of the shard.

A row shard receives only the ids of its rows, and a replica only the ids of its rank's samples.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.special import betainc

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.tables.ids import HIGHEST_COUNTS, LOWEST_COUNTS
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import REUSE_BIN_EDGES, Shard, Table

_COUNTS_PER_BIN = 16
#: Least expected number of unique rows per batch that a stand-in table gets. It is above 0, as tables require.
_LEAST_UNIQUE_ROWS = 1e-3


def lookup_batch_size(shard: Shard, batch_size: int, world_size: int) -> int:
    """Number of samples whose ids the shard's kernel looks up: a replica sees the samples of its rank only."""
    return max(1, -(-batch_size // world_size)) if shard.sharding_type == "data_parallel" else batch_size


@lru_cache(maxsize=2**14)
def lookup_shard(shard: Shard, batch_size: int, world_size: int) -> Shard:
    """A column-wise shard of a stand-in table, with the lookups of `shard`; `shard` itself if it is column-wise.

    For a row shard, the table has the shard's share of the rows, ids and unique rows, as if popular rows were spread
    evenly over all rows. For a replica, see `local_table`.
    """
    if shard.sharding_type == "column_wise":
        return shard
    if shard.sharding_type == "data_parallel":
        return replace(shard, table=local_table(shard.table, batch_size, world_size), sharding_type="column_wise")
    table = with_profile(shard.table, batch_size)
    unique_rows = float(min(max((table.unique_rows or 1.0) * shard.row_share, _LEAST_UNIQUE_ROWS), shard.num_rows))
    ids = table.pooling_factor * shard.row_share
    rows = replace(table, num_embeddings=shard.num_rows, pooling_factor=ids, unique_rows=unique_rows, popularity=None)
    return Shard(rows, shard.column_offset, shard.embedding_dim)


def local_table(table: Table, batch_size: int, world_size: float) -> Table:
    """The table with the reuse profile of one rank's samples, which are `1 / world_size` of the batch.

    If the whole batch looks up a row k times, the rank's samples look it up n times. n has the binomial distribution of
    k trials with probability `1 / world_size`. The unique rows and the profile are the expected number of rows with
    n of at least 1, and their shares in the bins of n.
    """
    if world_size == 1:
        return table
    table = with_profile(table, batch_size)
    local = np.array(table.reuse) * (table.unique_rows or 1.0) @ bin_transitions(world_size)  # (17,)
    unique_rows = float(min(max(local.sum(), _LEAST_UNIQUE_ROWS), table.num_embeddings))
    return replace(table, unique_rows=unique_rows, reuse=tuple((local / local.sum()).tolist()))


def representative_counts() -> FloatArray:
    """Lookup counts that stand for all counts of each reuse bin, (17, `_COUNTS_PER_BIN`).

    The lookup counts within a bin are assumed to be log-uniform.
    """
    lowest, highest = LOWEST_COUNTS[:, None], HIGHEST_COUNTS[:, None]  # (17, 1)
    quantiles = (np.arange(_COUNTS_PER_BIN) + 0.5) / _COUNTS_PER_BIN
    spread = (lowest - 0.5) * ((highest + 0.5) / (lowest - 0.5)) ** quantiles
    return np.asarray(np.clip(np.round(spread), lowest, highest))


@lru_cache(maxsize=256)
def bin_transitions(world_size: float) -> FloatArray:
    """For a row of each reuse bin of the batch, the probability of each reuse bin of one rank's samples, (17, 17)."""
    counts = representative_counts()[:, :, None]  # (17, counts, 1)
    edges = np.array((0, *REUSE_BIN_EDGES), dtype=np.float64)  # (17,)
    # P(Binomial(k, p) > e) is the regularised incomplete beta function I_p(e + 1, k - e) [DLMF 8.17.5].
    above = betainc(edges + 1, np.maximum(counts - edges, 1.0), 1.0 / world_size)
    above[counts <= edges] = 0.0
    transitions: FloatArray = -np.diff(above, axis=-1, append=0.0).mean(axis=1)
    transitions.flags.writeable = False  # the cache hands out the same array again
    return transitions
