"""Memory of a rank at the peak of a training step, part by part. All numbers are counted, none is measured.

The peak is at the beginning of the backward pass. For every group of tables that share collectives (`lab.step_groups`),
a rank then holds, in bytes, with its own samples' outputs `out` and the outputs `own` of its lookups for all samples:

    outputs      out, which the dense part keeps for its backward pass
    gradients    out, and the buffers of the exchange that the group is in:
                 column_wise  out + max(out, own): a copy per rank, then the copy that is sent and what is received;
                              out once more if tables are cut, for the order of the columns
                 cut by rows  own, from the all_gather; across hosts also out
                 sequences    own + max(out, own): what is received; and what is sent or, later, its permutation
                 pooled groups that share a module with other groups make their part contiguous: out once more
    ids          those of its samples, and those that its lookups received; modules with several groups also keep those
                 that are sent. A pipelining trainer also holds all these for the next batch, and the ids of the batch
                 after it [torchrec#4067]

When the lookups run backward, `own` and 52 bytes per id are held [FBGEMM transpose_embedding_input: ids (8) and
positions (4) before and after the sort, the sort's own buffers (12), distinct rows and their runs (16)].
Weights, optimizer states and dense gradients are those of `search.memory`; DistributedDataParallel holds a second copy
of the gradients of replicas. Shapes: W ranks.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.step_groups import (
    FLOAT_BYTES,
    ID_BYTES,
    LENGTH_BYTES,
    WEIGHT_BYTES,
    Group,
    columns,
    features,
    grouped,
    ids,
    whole_columns,
    whole_features,
)
from neuroshard_pipeline.search.plan_data import PlanData
from neuroshard_pipeline.tables.task import ShardingTask

#: Bytes that PyTorch's allocator reserves per byte of buffers at the peak: 1.5 to 1.9 in four published peaks
#: (docs/lab.md). Weights and states are reserved as they are.
RESERVED_PER_BUFFER = 1.7

_SORT_BYTES = 52


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of every rank at the peak of a step, (W,) each.

    Attributes:
        tables: weights, optimizer states and dense gradients of the tables.
        ids: ids, lengths and weights of ids of all batches that are held.
        outputs: outputs of the embedding modules for the rank's samples.
        gradients: gradients of the outputs, with the buffers of their exchange.
        dense: the given number for the dense part.
        counted: what TorchRec's planner counts for the same shards: tables, received ids, and outputs of lookups.
    """

    tables: FloatArray
    ids: FloatArray
    outputs: FloatArray
    gradients: FloatArray
    dense: FloatArray
    counted: FloatArray

    @property
    def allocated(self) -> FloatArray:
        """The sum of all parts, (W,)."""
        return self.tables + self.dense + self._buffers

    @property
    def reserved(self) -> FloatArray:
        """Bytes that PyTorch's allocator then takes from the GPU, (W,)."""
        return self.tables + self.dense + RESERVED_PER_BUFFER * self._buffers

    @property
    def _buffers(self) -> FloatArray:
        return self.ids + self.outputs + self.gradients

    def storage_reservation(self, device_bytes: float) -> float:
        """The share of a GPU's memory to reserve: what the fullest rank needs beyond what TorchRec's planner counts.

        It is the argument of TorchRec's `FixedPercentageStorageReservation`; above 1, nothing fits.
        """
        return float(max(0.0, np.max(self.reserved - self.counted) / device_bytes))


def peak_memory(plan: PlanData, dense_bytes: float = 0.0) -> PeakMemory:
    """Count the memory of every rank of a plan.

    Args:
        plan: the plan; its task says whether the trainer pipelines, and its `compute_device`, whether lookups sort ids.
        dense_bytes: weights, gradients, states and activations of the dense part.
    """
    task, world = plan.task, plan.task.world_size
    groups = grouped(plan.shards, plan.ranks, task)
    modules = Counter(group.module for group in groups)
    parts = np.sum([_buffers(group, task, modules[group.module] > 1) for group in groups], axis=0)
    kept, came, outputs, own, exchanged, looked_up = parts
    of_sample = sum(
        LENGTH_BYTES * table.num_features + (ID_BYTES + WEIGHT_BYTES * table.is_weighted) * table.pooling_factor
        for table in task.tables
    )
    batch = task.batch_size / world * of_sample
    tables = plan.memory.without_buffers().bytes_of_ranks(plan.shards, plan.ranks, task).astype(float)
    replicas = [group.on_ranks(lambda shard: shard.weight_bytes, world) for group in groups if group.is_replicated]
    sort_bytes = 0 if plan.compute_device == "cpu" else _SORT_BYTES
    return PeakMemory(
        tables=tables + sum(replicas),
        ids=batch + kept + came + task.pipelines_input_dist * (2 * batch + kept + came),
        outputs=outputs,
        gradients=np.maximum(outputs + exchanged, own + sort_bytes * looked_up),
        dense=np.full(world, dense_bytes),
        counted=tables + came + own,
    )


def _buffers(group: Group, task: ShardingTask, has_others: bool) -> FloatArray:
    """(6, W): bytes of ids kept and received, outputs, those of lookups, and buffers of their exchange; ids.

    `has_others`: whether its module has other groups.
    """
    world, local = task.world_size, task.batch_size / task.world_size
    samples = local / group.copies(task)
    sent = samples * (LENGTH_BYTES * group.total(whole_features) + group.id_bytes * group.total(ids))
    out = samples * FLOAT_BYTES * group.total(whole_columns)
    seen = local * (1 if group.is_replicated else group.peers(task))
    looked_up = seen * group.on_ranks(ids, world)
    came = seen * ID_BYTES * group.on_ranks(features, world)  # offsets
    if not group.is_replicated:
        came += seen * LENGTH_BYTES * group.on_ranks(features, world) + group.id_bytes * looked_up
    own = seen * FLOAT_BYTES * group.on_ranks(columns, world) * (not group.is_replicated)
    exchanged = own
    if group.is_sequence:
        exchanged = own + np.maximum(out, own)
    elif not group.is_replicated:
        if not group.is_cut_by_rows:
            exchanged = out * (1 + group.is_cut_by_columns) + np.maximum(out, own)
        elif group.kind != "row_wise" and task.num_hosts > 1:
            exchanged = own + out
        exchanged = exchanged + out * has_others
    parts = (sent * has_others, came, out, own, exchanged, looked_up)
    return np.array([np.broadcast_to(part, world) for part in parts])
