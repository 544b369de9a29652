"""The lab's price of tables in host memory: bytes over the host link, and the kernels that manage the cache.

    host = bytes that the rank reads from host memory / (host link * share that reads reach)
         + for a kernel with a cache: launches, and one sort of the ids of cached tables

The bytes are those of `tables.host_memory`. Both are added to the lookups as if all rows were in GPU memory: rows are
read again from the cache, and managed memory is read by the same kernel. Before a lookup, FBGEMM numbers the ids
over all cached tables, sorts them, finds the distinct rows that are missing, sorts these by set, and exchanges them
with rows in the cache [fbgemm_gpu split_embeddings_cache, `lru_cache_populate`].

Nothing here overlaps with other work: the trainer does not prefetch. No published time tests a cache in its steady
state: those of recsys-examples on H100 are of the first batches after the start (`lab.device`), which fetch 65 % of
their distinct rows even if the cache has room for all of them.
"""

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.step_groups import Group, Job, ids
from neuroshard_pipeline.tables.host_memory import host_link_bytes

#: Kernels that manage a cache, counted in FBGEMM's code: numbers of ids 1, sort and run lengths 7, search 1, sort of
#: sets 4, exchange of rows 1, places in the cache 1.
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
