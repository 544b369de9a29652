"""The collectives of a step and the copies around them, as TorchRec 1.8 orders them (torchrec.distributed).

A group is all tables of one module and sharding type. In formulas: W ranks, b samples per rank, B = b * W samples,
f features and P ids per sample, D columns (D_i on rank i, D_host on one host), o bytes per number on the links.

Input dist [dist_data.py `KJTAllToAll`; embeddingbag.py `input_dist`]
    per module   features are put into the order of the groups, once per column shard: reads and writes
                 4 b f + 8 b P bytes (lengths are int32, ids int64); the host waits for the number of ids per feature
    per group    types that cut rows first sort ids into one bucket per rank (`block_bucketize_sparse_features`: the
                 lengths of all buckets are read twice and written once; ids take a time each), and the host waits again
                 all_to_all of 3 int64 per rank (how much follows), 4 with weights; then the host waits
                 all_to_all of 4 b f bytes of lengths, of 8 b P bytes of ids, and of 4 b P bytes of any weights
                 received data is ordered by feature: reads and writes 4 B f + 8 B P; lengths become int64 offsets
                 the host waits for the number of received ids per feature (`KeyedJaggedTensor.dist_init`)
    per module   after its last wait, the host makes the Python calls of the first lookup; the GPU has no work

Output dist of pooled rows [comm_ops.py], forward and backward
    column_wise     all_to_all: rank i sends o * D_i * b bytes to every rank
    row_wise        reduce_scatter of o * B * D on all ranks; backward all_gather
    table_row_wise, grid_shard   reduce_scatter of o * B * D_host inside each host (backward all_gather), then an
                    all_to_all of o * b * D_host bytes between the ranks at the same position on their hosts
    data_parallel   none
Copies (`module`) each read and write their data once. They fill the buffer that is sent, put the outputs of all ranks
side by side (`torch.cat`), put columns into the order of the model if tables are cut by columns, and put the outputs of
several groups side by side. The backward pass repeats the copies and divides gradients by the number of ranks. Before
an all-to-all, it copies the gradients once more (`_recat_pooled_embedding_grad_out` makes the columns of each rank
contiguous). With o < 4, sender and receiver also convert numbers.

Sequence tables need an all_to_all of o * b * D * P bytes. Its input is permuted first, and the rows of row shards are
put into the order of the ids afterwards. Backward, the gradients of all features are put side by side, and those of row
shards are zeroed, read and added (`index_select_backward`). P counts ids after deduplication. Rows of host tiers, the
popular rows that every host holds, are exchanged in the same way inside hosts.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.lab.network import Collective, collective_us
from neuroshard_pipeline.lab.phases import AllToAll, Phase, Symmetric, Work
from neuroshard_pipeline.lab.step_groups import (
    FLOAT_BYTES,
    ID_BYTES,
    LENGTH_BYTES,
    WEIGHT_BYTES,
    Group,
    Job,
    columns,
    features,
    ids,
    whole_columns,
    whole_features,
)
from neuroshard_pipeline.tables.replica_groups import synced_bytes

_SPLIT_NUMBERS = 3  # number of lengths, number of ids, samples: int64 each
_BUCKETIZE_KERNELS = 4  # count, two running sums, scatter [FBGEMM block_bucketize_sparse_features]
_OFFSET_KERNELS = 2  # running sum, conversion to int64
_OFFSET_BYTES = 2 * LENGTH_BYTES + LENGTH_BYTES + ID_BYTES


def input_dist(groups: Sequence[Group], job: Job) -> list[Phase]:
    """Phases of the exchange of ids of one module."""
    sharded = [group for group in groups if not group.is_replicated]
    if not sharded:
        return []
    first = job.permuted_us(*np.sum([_sent_bytes(group, job) for group in groups], axis=0)) + job.host.host_sync_us
    lookup = Work("input_dist", np.full(job.world_size, job.host.lookup_host_us))
    return [Work("input_dist", first), *(phase for group in sharded for phase in _group_input_dist(group, job)), lookup]


def _sent_bytes(group: Group, job: Job) -> tuple[float, float]:
    """Bytes of lengths, and of ids and weights, that a rank has for all shards of a group, before a sort by rows."""
    copies = group.copies(job) / job.local_batch
    return LENGTH_BYTES * group.total(whole_features) / copies, group.id_bytes * group.total(ids) / copies


def _group_input_dist(group: Group, job: Job) -> list[Phase]:
    world, samples, peers = job.world_size, job.local_batch, group.peers(job)
    lengths = samples * LENGTH_BYTES * group.on_ranks(features, world)
    of_ids = samples * group.on_ranks(ids, world)
    first = np.zeros(world)
    if group.is_cut_by_rows and peers > 1:
        first = job.kernels_us(3 * lengths.sum() / (world // peers), _BUCKETIZE_KERNELS) + job.host.host_sync_us
        first = first + job.host.sort_ns(group.is_sequence) / 1e3 * of_ids.sum() / (world // peers)
        if group.kind in ("table_row_wise", "grid_shard"):  # buckets are put into the order of the ranks
            first = first + job.permuted_us(lengths.sum(), group.id_bytes * of_ids.sum())
    offsets = job.kernels_us(peers * lengths / LENGTH_BYTES * _OFFSET_BYTES, _OFFSET_KERNELS)
    if peers == 1:
        return [Work("input_dist", offsets)]
    ordered = job.permuted_us(peers * lengths, peers * group.id_bytes * of_ids)
    numbers = _SPLIT_NUMBERS + group.is_weighted
    exchanges: list[Phase] = [
        AllToAll("input_dist", _among(group, _to_each(lengths), job)),
        AllToAll("input_dist", _among(group, _to_each(ID_BYTES * of_ids), job)),
    ]
    if group.is_weighted:
        exchanges.append(AllToAll("input_dist", _among(group, _to_each(WEIGHT_BYTES * of_ids), job)))
    splits = 8.0 * numbers * peers
    return [
        Work("input_dist", first),
        _together("input_dist", "alltoall", splits, job)
        if peers == world
        else _in_hosts("alltoall", np.full(world, splits), job, "input_dist"),
        Work("input_dist", np.full(world, job.host.host_sync_us)),
        *exchanges,
        Work("input_dist", ordered + job.host.host_sync_us + offsets),
    ]


def output_dist(group: Group, job: Job) -> tuple[list[Phase], list[Phase]]:
    """Phases of the output dist of one group, forward and backward."""
    if group.is_replicated or group.peers(job) == 1:
        return [], []
    if group.is_sequence:
        return _sequence_dist(group, job)
    if group.kind == "column_wise":
        return _column_dist(group, job)
    return _row_dist(group, job) if group.kind == "row_wise" else _host_row_dist(group, job)


def concatenation(groups: Sequence[Group], job: Job) -> list[Phase]:
    """The copy that puts the outputs of several groups of a module side by side; each direction makes it once."""
    if len(groups) < 2 or groups[0].is_sequence:
        return []
    total = sum(_output_columns(group, job) for group in groups)
    return [Work("module", job.kernels_us(2 * FLOAT_BYTES * job.local_batch * total))]


def _output_columns(group: Group, job: Job) -> float:
    """Columns of the group's output on every rank."""
    return group.total(whole_columns) / (job.world_size if group.is_replicated else 1)


def _column_dist(group: Group, job: Job) -> tuple[list[Phase], list[Phase]]:
    width = group.on_ranks(columns, job.world_size)
    own, all_back = job.task.batch_size * width, job.local_batch * width.sum()
    messages = np.repeat((job.output_bytes * job.local_batch * width)[:, None], job.world_size, axis=1)
    copy, cat = _copied(own, job), _copied(all_back, job)
    reorder = _reordered(group, all_back, job)
    forward: list[Phase] = [
        Work("module", _converted(own, job) + copy),
        AllToAll("forward_comm", messages),
        Work("module", _converted(all_back, job) + cat + reorder),
    ]
    backward: list[Phase] = [
        Work("module", reorder + 2 * cat + _converted(all_back, job)),
        AllToAll("backward_comm", messages.T),
        Work("module", _converted(own, job) + copy),
    ]
    return forward, backward


def _row_dist(group: Group, job: Job) -> tuple[list[Phase], list[Phase]]:
    width = _output_columns(group, job)
    own, back = job.task.batch_size * width, job.local_batch * width
    size = job.output_bytes * own
    forward: list[Phase] = [
        Work("module", _converted(own, job)),
        _together("reduction", "reduce_scatter", size, job),
        Work("module", _converted(back, job)),
    ]
    backward: list[Phase] = [
        Work("module", _copied(back, job) + _converted(back, job)),
        _together("reduction", "all_gather", size, job),
        Work("module", _converted(own, job) + _copied(own, job)),
    ]
    return forward, backward


def _host_row_dist(group: Group, job: Job) -> tuple[list[Phase], list[Phase]]:
    """Reduction inside hosts, then an exchange between the ranks at the same position on their hosts."""
    local, batch = job.ranks_per_host, job.task.batch_size
    width = group.on_ranks(whole_columns, job.world_size)
    host_width = np.bincount(job.host_of, width, minlength=job.num_hosts)[job.host_of]  # (W,)
    own, reduced, back = batch * host_width, batch / local * host_width, job.local_batch * width.sum()
    messages = np.repeat((job.output_bytes * job.local_batch * host_width)[:, None], job.world_size, axis=1)
    place = np.arange(job.world_size) % job.network.gpus_per_host
    messages = np.where((place[:, None] == place) & (job.host_of[:, None] != job.host_of), messages, 0.0)
    across: tuple[list[Phase], list[Phase]] = ([], [])
    if job.num_hosts > 1:
        copy, cat = _copied(reduced, job) + _converted(reduced, job), _copied(back, job) + _converted(back, job)
        across = (
            [Work("module", copy), AllToAll("forward_comm", messages), Work("module", cat)],
            [Work("module", cat + _copied(back, job)), AllToAll("backward_comm", messages.T), Work("module", copy)],
        )
    reorder = _reordered(group, back, job)
    sizes = job.output_bytes * own
    forward: list[Phase] = [
        Work("module", _converted(own, job)),
        _in_hosts("reduce_scatter", sizes, job),
        Work("module", _converted(reduced, job)),
        *across[0],
        Work("module", reorder),
    ]
    backward: list[Phase] = [
        Work("module", reorder),
        *across[1],
        Work("module", _converted(reduced, job)),
        _in_hosts("all_gather", sizes, job),
        Work("module", _converted(own, job) + _copied(own, job)),
    ]
    return forward, backward


def _sequence_dist(group: Group, job: Job) -> tuple[list[Phase], list[Phase]]:
    width = group.on_ranks(columns, job.world_size)
    own, back = job.local_batch * group.peers(job) * width, job.local_batch * width.sum() / group.copies(job)
    messages = np.repeat((job.output_bytes * job.local_batch * width)[:, None], job.world_size, axis=1)
    messages = _among(group, messages, job)
    ordered = _copied(back, job) if group.is_cut_by_rows else _reordered(group, back, job)
    lengths = LENGTH_BYTES * job.local_batch * group.peers(job) * group.on_ranks(features, job.world_size)
    sent = job.permuted_us(lengths, 0.0, FLOAT_BYTES * own) + _converted(own, job)
    came = _converted(back, job) + ordered
    forward: list[Phase] = [Work("module", sent), AllToAll("forward_comm", messages), Work("module", came)]
    added = _copied(back, job) * group.is_cut_by_rows  # zeros are written, and gradients are added instead of copied
    side_by_side = _copied(back, job) * (not group.is_sent_once)  # else `sequences.rows_at_places`
    backward: list[Phase] = [
        Work("module", came + added + side_by_side),
        AllToAll("backward_comm", messages.T),
        Work("module", sent + _copied(own, job)),  # gradients are permuted, and divided by the number of ranks
    ]
    return forward, backward


def all_reduce(size_bytes: float, job: Job) -> Phase:
    """The all_reduce of a buffer of gradients among the ranks of all replica groups."""
    ranks = job.world_size * job.task.num_replica_groups
    hosts = -(-ranks // (job.ranks_per_host * job.groups_on_host))
    us = float(collective_us("all_reduce", size_bytes, ranks, hosts, job.network)) if size_bytes > 0 else 0.0
    return Symmetric("reduction", np.full(job.world_size, us), np.zeros(job.world_size, dtype=np.int64))


def all_reduce_across_hosts(size_bytes: FloatArray, job: Job) -> Phase:
    """The all_reduce of gradients (W,) among the ranks at the same position on the hosts of all replica groups."""
    ranks = job.num_hosts * job.task.num_replica_groups
    us = collective_us("all_reduce", size_bytes, ranks, -(-ranks // job.groups_on_host), job.network)
    us = np.where(size_bytes > 0, us, 0.0)
    return Symmetric("reduction", us, np.arange(job.world_size) % job.network.gpus_per_host)


def averaging(groups: Sequence[Group], job: Job) -> list[Phase]:
    """The all_reduce of every rank's weights and optimizer state with the same ranks of the other replica groups.

    A step bears 1 / `sync_interval` of the cost. Ranks of one replica group do not wait for each other.
    """
    copies = job.task.num_replica_groups
    if copies == 1:
        return []
    size = sum(group.on_ranks(lambda shard: synced_bytes(shard, job.task), job.world_size) for group in groups)
    us = collective_us("all_reduce", size, copies, -(-copies // job.groups_on_host), job.network)
    us = np.where(np.asarray(size) > 0, us, 0.0) / job.task.sync_interval
    return [Symmetric("reduction", us, np.arange(job.world_size))]


def _together(part: str, collective: Collective, size: float, job: Job) -> Symmetric:
    """A collective of all ranks."""
    us = float(collective_us(collective, size, job.world_size, job.num_hosts, job.network)) if size > 0 else 0.0
    return Symmetric(part, np.full(job.world_size, us), np.zeros(job.world_size, dtype=np.int64))


def _among(group: Group, messages: FloatArray, job: Job) -> FloatArray:
    """Messages (W, W), without those between hosts if every host has all rows of the group."""
    if group.kind != "host_row_wise":
        return messages
    return np.where(job.host_of[:, None] == job.host_of, messages, 0.0)


def _in_hosts(collective: Collective, sizes: ArrayLike, job: Job, part: str = "reduction") -> Symmetric:
    """A collective inside every host; `sizes[r]` is the size of the buffer on the host of rank r."""
    us = collective_us(collective, sizes, job.ranks_per_host, 1, job.network)
    us = np.where(np.asarray(sizes) > 0, us, 0.0)
    return Symmetric(part, us, job.host_of)


def _copied(numbers: ArrayLike, job: Job) -> FloatArray:
    """Time to read and write fp32 numbers."""
    return job.kernels_us(2 * FLOAT_BYTES * np.asarray(numbers, dtype=np.float64))


def _converted(numbers: ArrayLike, job: Job) -> FloatArray:
    """Time to convert fp32 numbers to the number format of the links or back; 0 if that is fp32."""
    if job.output_bytes == FLOAT_BYTES:
        return np.zeros(job.world_size)
    return job.kernels_us((FLOAT_BYTES + job.output_bytes) * np.asarray(numbers, dtype=np.float64))


def _reordered(group: Group, numbers: ArrayLike, job: Job) -> FloatArray:
    """Time to put columns into the order of the model, if a table is cut by columns."""
    return _copied(numbers, job) if group.is_cut_by_columns else np.zeros(job.world_size)


def _to_each(received: FloatArray) -> FloatArray:
    """Messages (W, W) if every rank sends `received[j]` bytes to rank j."""
    return np.repeat(received[None, :], len(received), axis=0)
