"""TorchRec's two-dimensional parallelism: every group of ranks holds all shards and trains them with its own batches.

Every `sync_interval` steps, `DMPCollection.sync` averages weights and optimizer states by an all_reduce among the ranks
that hold the same shard, one rank of each group. Data-parallel tables are replicas on the ranks of all groups, and
their gradients are reduced in every step [torchrec.distributed.model_parallel, 1.8]. The gradients of host tiers
(popular rows that every host holds) are also reduced in every step.
"""

from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: Row-wise Adagrad keeps one fp32 number per row of every shard; SGD keeps none.
_STATE_BYTES_PER_ROW = {"sgd": 0, "rowwise_adagrad": 4}


def synced_bytes(shard: Shard, task: ShardingTask) -> int:
    """Bytes of the shard's weights and state that groups average; 0 for a replica, a host tier or a single group."""
    if task.num_replica_groups == 1 or shard.sharding_type in ("data_parallel", "host_row_wise"):
        return 0
    return shard.weight_bytes + _STATE_BYTES_PER_ROW[task.optimizer] * shard.num_rows


def groups_on_host(task: ShardingTask, gpus_per_host: int | None) -> int:
    """Number of groups that have ranks on the same host of `gpus_per_host` GPUs; all groups if that is None (unknown).

    Unless `use_inter_host_allreduce` is given, neighbouring ranks belong to different groups and hold the same shards.
    If a host has more GPUs than one group has ranks on it, its other GPUs are thus ranks of other groups.
    """
    if gpus_per_host is None:
        return task.num_replica_groups
    return max(1, min(task.num_replica_groups, gpus_per_host // task.ranks_per_host))
