"""Memory of a rank during training: weights, optimizer state, buffers for the batch, and a reserve."""

from typing import Annotated

from pydantic import Field

from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: Bytes of one id or offset in the input buffers: FBGEMM takes int64.
ID_BYTES = 8

#: Bytes of one element of pooled output, whatever the storage type: FBGEMM returns fp32.
OUTPUT_BYTES = 4

#: Row-wise Adagrad keeps one fp32 number per row of every column shard [FBGEMM EXACT_ROWWISE_ADAGRAD].
ROWWISE_STATE_BYTES = 4

#: Adam keeps two fp32 moments per weight [FBGEMM ADAM].
ADAM_STATE_BYTES = 8


class MemoryModel(Parameters):
    """Computes the bytes that a shard needs on its rank, and the bytes that shards may use on each rank.

    A shard of R rows and D columns needs, in bytes,
    `R * D * (bytes per element) + optimizer state + inputs + outputs`. The optimizer state is 0 for SGD, `4 * R` for
    row-wise Adagrad (one fp32 number per row of each column shard), and `8 * R * D` for Adam (two fp32 moments per
    weight).

    Attributes:
        optimizer_state: whether to count the state of the task's optimizer.
        input_buffers: whether to count the ids and offsets (int64) that a rank receives, for all samples of a batch.
        output_buffers: whether to count the pooled outputs of the global batch and their gradients (fp32).
        reserve_fraction: share of a rank's memory that shards may not use.
    """

    optimizer_state: bool
    input_buffers: bool
    output_buffers: bool
    reserve_fraction: Annotated[float, Field(ge=0.0, lt=1.0)]

    def shard_bytes(self, shard: Shard, task: ShardingTask) -> int:
        """Bytes that `shard` needs on its rank with the optimizer and the batch size of `task`."""
        return self.table_bytes(shard.table, shard.embedding_dim, task)

    def table_bytes(self, table: Table, width: int, task: ShardingTask) -> int:
        """Bytes of a shard of `table` that is `width` columns wide."""
        total = table.num_embeddings * width * BYTES_PER_ELEMENT[table.data_type]
        if self.optimizer_state:
            total += _optimizer_bytes(task.optimizer, table.num_embeddings, width)
        if self.input_buffers:
            total += ID_BYTES * (round(task.batch_size * table.pooling_factor) + task.batch_size + 1)
        if self.output_buffers:
            total += 2 * OUTPUT_BYTES * task.batch_size * width
        return total

    def limits(self, task: ShardingTask) -> tuple[int, ...]:
        """Bytes that shards may use on each rank: the limits of the task minus the reserve."""
        if self.reserve_fraction == 0.0:
            return task.memory_limits
        return tuple(int(limit * (1.0 - self.reserve_fraction)) for limit in task.memory_limits)


def _optimizer_bytes(optimizer: str, num_embeddings: int, width: int) -> int:
    """Bytes of optimizer state of one shard."""
    if optimizer == "rowwise_adagrad":
        return ROWWISE_STATE_BYTES * num_embeddings
    if optimizer == "adam":
        return ADAM_STATE_BYTES * num_embeddings * width
    return 0
