"""Groups of shards of one embedding module and sharding type, which share collectives, and the job they are in.

TorchRec makes one sharding object per module and sharding type [torchrec embeddingbag.py,
`create_sharding_infos_by_sharding_device_group`], with an input dist, lookups and an output dist of its own.
Shapes: S shards, W ranks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import Field

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.lab.device import ModelledDevice
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.tables.dedup import exchanged
from neuroshard_pipeline.tables.kinds import EmbeddingModule
from neuroshard_pipeline.tables.step_work import TorchRecType, group_of
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import COMM_BYTES, ShardingTask

LENGTH_BYTES, ID_BYTES, WEIGHT_BYTES, FLOAT_BYTES = 4, 8, 4, 4
_PERMUTE_KERNELS = 4  # two running sums of lengths, permute lengths, permute ids [FBGEMM permute_2D_sparse_data]


class StepParams(Parameters):
    """Costs of a training step other than lookups, copies and collectives.

    Attributes:
        host_sync_us: time for which a GPU has no work each time the host waits for one of its results, and launches the
            next kernels only then.
        lookup_host_us: time of the Python calls of one eager lookup, in which a GPU has no work if the host has waited
            for it just before.
        pooled_sort_ns: time per id in which ids are sorted into one bucket per rank.
        sequence_sort_ns: the same for ids of sequence tables, whose order is kept.
        permute_segment_ns: time per segment (the ids or rows of one feature and sample) that is put into another order.
        permute_number_ns: time per fp32 number of these segments, if memory is not slower.
    """

    host_sync_us: float = Field(ge=0)
    lookup_host_us: float = Field(ge=0)
    pooled_sort_ns: float = Field(ge=0)
    sequence_sort_ns: float = Field(ge=0)
    permute_segment_ns: float = Field(ge=0)
    permute_number_ns: float = Field(ge=0)

    def sort_ns(self, is_sequence: bool) -> float:
        """Nanoseconds in which one id is sorted into the bucket of its rank."""
        return self.sequence_sort_ns if is_sequence else self.pooled_sort_ns


@dataclass(frozen=True)
class Job:
    """A training job on modelled hardware.

    Attributes:
        task: the sharding task; it gives ranks, batch and optimizer.
        device: GPU of every rank.
        network: the cluster, with the task's number of ranks per host.
        host: what the host's calls cost, and kernels with a published time of their own.
        groups_on_host: number of replica groups that have ranks on the same host (`tables.replica_groups`).
    """

    task: ShardingTask
    device: ModelledDevice
    network: NetworkParams
    host: StepParams
    groups_on_host: int = 1

    @property
    def output_bytes(self) -> int:
        """Bytes of one number of the outputs on the links; below 4, TorchRec converts before and after."""
        return COMM_BYTES[self.task.comm_precision]

    @property
    def world_size(self) -> int:
        """Number of ranks, W."""
        return self.task.world_size

    @property
    def local_batch(self) -> float:
        """Samples of one rank."""
        return self.task.batch_size / self.task.world_size

    @property
    def ranks_per_host(self) -> int:
        """Ranks of one host."""
        return min(self.network.gpus_per_host, self.task.world_size)

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return self.network.hosts_of(self.task.world_size)

    @cached_property
    def host_of(self) -> IntArray:
        """Host of every rank, (W,)."""
        return np.arange(self.world_size) // self.network.gpus_per_host

    def kernels_us(self, num_bytes: FloatArray | float, kernels: int = 1) -> FloatArray:
        """Microseconds of kernels that together read and write `num_bytes` of GPU memory, per rank (W,); 0 for 0 bytes.

        kernels * shortest time of any kernel + bytes / (bandwidth * the share of it that streaming kernels reach)
        """
        moved = np.broadcast_to(np.asarray(num_bytes, dtype=np.float64), self.world_size)
        launches_us = kernels * self.device.kernels.forward_launch_us
        return np.where(moved > 0, launches_us + self.device.streamed_us(moved), 0.0)

    def permuted_us(
        self, lengths: FloatArray | float, ids: FloatArray | float, rows: FloatArray | float = 0.0
    ) -> FloatArray:
        """Microseconds in which every rank puts segments into another order [FBGEMM permute_2D_sparse_data], (W,).

        Args:
            lengths: bytes of the segments' lengths, (W,).
            ids: bytes of ids and their weights, (W,).
            rows: bytes of fp32 numbers, (W,), which the kernel moves one by one.
        """
        rows, segments = np.asarray(rows), np.asarray(lengths) / LENGTH_BYTES
        slower = rows / FLOAT_BYTES * self.host.permute_number_ns / 1e3 - self.kernels_us(2 * rows, 0)
        us = self.kernels_us(2 * (lengths + ids + rows), _PERMUTE_KERNELS) + np.maximum(slower, 0.0)
        return np.asarray(us + segments * self.host.permute_segment_ns / 1e3)


@dataclass(frozen=True)
class Group:
    """The shards of one module and sharding type, with `ranks[i]` for `shards[i]`, (S,).

    `exchanged` are the shards with the ids that they receive (`tables.dedup`).
    """

    module: EmbeddingModule
    kind: TorchRecType
    shards: tuple[Shard, ...]
    ranks: IntArray
    exchanged: tuple[Shard, ...]

    @property
    def is_cut_by_rows(self) -> bool:
        """Whether each shard has only some of the rows of its table."""
        return self.kind in ("row_wise", "table_row_wise", "grid_shard", "host_row_wise")

    @property
    def is_cut_by_columns(self) -> bool:
        """Whether any shard has only some of the columns of its table."""
        return any(shard.embedding_dim < shard.table.embedding_dim for shard in self.shards)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank has all tables of the group."""
        return self.kind == "data_parallel"

    @property
    def is_sequence(self) -> bool:
        """Whether the tables are not pooled."""
        return self.module.is_sequence

    @property
    def is_weighted(self) -> bool:
        """Whether ids have weights."""
        return self.module.is_weighted

    @property
    def id_bytes(self) -> int:
        """Bytes of one id and its weight, if it has one."""
        return ID_BYTES + WEIGHT_BYTES * self.is_weighted

    @property
    def is_dense(self) -> bool:
        """Whether several ranks have the same rows, whose gradients are dense."""
        return self.kind in ("data_parallel", "host_row_wise")

    @property
    def is_sent_once(self) -> bool:
        """Whether every rank sends each distinct id of its samples once."""
        return any(sent is not shard for shard, sent in zip(self.shards, self.exchanged, strict=True))

    def copies(self, job: Job | ShardingTask) -> int:
        """How often the group has each table."""
        return {"data_parallel": job.world_size, "host_row_wise": job.num_hosts}.get(self.kind, 1)

    def peers(self, job: Job | ShardingTask) -> int:
        """Number of ranks that exchange ids and outputs with each other."""
        return job.ranks_per_host if self.kind == "host_row_wise" else job.world_size

    def on_ranks(self, value: Callable[[Shard], float], world_size: int) -> FloatArray:
        """Sum of `value` over the shards of every rank, with the ids that they receive, (W,)."""
        return np.bincount(self.ranks, [value(shard) for shard in self.exchanged], minlength=world_size).astype(float)

    def held_on_ranks(self, value: Callable[[Shard], float], world_size: int) -> FloatArray:
        """Sum of `value` over the shards of every rank, with their ids before deduplication, (W,)."""
        return np.bincount(self.ranks, [value(shard) for shard in self.shards], minlength=world_size).astype(float)

    def total(self, value: Callable[[Shard], float]) -> float:
        """Sum of `value` over all shards, with the ids that they receive."""
        return float(sum(value(shard) for shard in self.exchanged))


def features(shard: Shard) -> float:
    """Bag lengths per sample that the shard receives."""
    return float(shard.table.num_features)


def whole_features(shard: Shard) -> float:
    """Bag lengths per sample before ids are divided among row shards; a row shard counts for its share of the rows."""
    return shard.table.num_features * shard.row_share


def ids(shard: Shard) -> float:
    """Ids per sample that the shard receives."""
    return shard.table.pooling_factor * shard.row_share


def columns(shard: Shard) -> float:
    """Numbers per sample that the shard's lookup writes."""
    if shard.table.pooling == "none":
        return shard.embedding_dim * shard.table.pooling_factor * shard.row_share
    return float(shard.embedding_dim * shard.table.num_features)


def whole_columns(shard: Shard) -> float:
    """Numbers per sample of the output that the shard contributes to; a row shard counts for its share of the rows."""
    return columns(shard) if shard.table.pooling == "none" else columns(shard) * shard.row_share


def grouped(shards: Sequence[Shard], ranks: Sequence[int], task: ShardingTask) -> list[Group]:
    """The groups of a plan of `task`, in the order of their first shards."""
    members = defaultdict(list)
    for shard, rank in zip(shards, ranks, strict=True):
        members[group_of(shard)].append((shard, rank))
    groups = []
    for key, found in members.items():
        own, of_ranks = tuple(shard for shard, _ in found), np.array([rank for _, rank in found])
        groups.append(Group(*key, own, of_ranks, tuple(exchanged(shard, task) for shard in own)))
    return groups
