"""The lab's price of tables in host memory: bytes over the host link, and the kernels that manage the cache.

    host = bytes that the rank reads from host memory / (bandwidth of the host link * share that reads reach)
         + for a kernel with a cache: launches, and one sort of the ids of cached tables

The bytes are those of `tables.host_memory`. Both terms are added to the cost of lookups with all rows in GPU memory,
because the lookup kernel reads fetched rows again from the cache. A kernel without a cache reads them only once, but
the first term is added all the same. Before a lookup, FBGEMM maps the ids of all cached tables to one range, sorts
them, finds the distinct rows that the cache lacks, sorts these by cache set, and exchanges them with rows in the cache
[fbgemm_gpu split_embeddings_cache, `lru_cache_populate`].

Nothing here overlaps with other work: the trainer does not prefetch. The lookups of recsys-examples on H100 are those
of the first 100 batches, which fetch 65 % of their distinct rows even if the cache has room for all of them
(`cache_fetch_share` in `lab.device`).
"""

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.step_groups import Group, Job, ids
from neuroshard_pipeline.tables.host_memory import host_link_bytes

#: Number of kernels that manage a cache, counted in FBGEMM's code: 1 maps the ids, 7 sort them and find run lengths, 1
#: searches the cache, 4 sort by set, 1 exchanges rows, 1 finds their slots.
_CACHE_KERNELS = 15


def host_us(group: Group, job: Job) -> FloatArray:
    """Microseconds that tables in host memory add to a step of every rank, (W,)."""
    if not any(shard.table.is_in_host_memory for shard in group.shards):
        return np.zeros(job.world_size)
    link_us = [
        job.device.host_link_us(num_bytes)
        for num_bytes in group.held_on_ranks(lambda shard: host_link_bytes(shard, job.task), job.world_size)
    ]
    cached = group.on_ranks(
        lambda shard: ids(shard) * (shard.table.compute_kernel == "fused_uvm_caching"), job.world_size
    )
    sorted_bytes = job.device.kernels.sort_bytes_per_id * job.task.batch_size * cached
    return np.array(link_us) + job.kernels_us(sorted_bytes, _CACHE_KERNELS)
