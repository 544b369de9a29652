"""What a change of plan moves: bytes between ranks, and their time by the cost models' all-to-alls and copies.

A rank receives the rows and columns that it has under the new plan but not under the old one, with their optimizer
state: nothing for SGD, two fp32 numbers per weight for Adam, one fp32 number per row of every received column shard for
row-wise Adagrad. A rank receives them from a rank that has them; of several, it takes one of its own host. Rows that no
rank has, of new or grown tables, are initialised and not moved. Shapes: W ranks of the job that has more, old or new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuroshard_pipeline.arrays import IntArray
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.search.memory import ADAM_STATE_BYTES, ROWWISE_STATE_BYTES
from neuroshard_pipeline.search.models import Models, hardware_of
from neuroshard_pipeline.tables.table import BYTES_PER_ELEMENT, NUM_REUSE_BINS, Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

_BYTES_PER_NUMBER = 4
#: A move is a series of all-to-alls, each with at most so many columns per sample on any rank: far above the number at
#: which the cost is proportional to the bytes, and no further from the samples of the cost models than needed.
_COLUMNS_AT_ONCE = 4096

#: Tables of a lookup that is priced as a copy of rows, and their columns, the most that cost models are trained with.
_COPIED_TABLES, _COPIED_COLUMNS = 8, 512

#: Rows and columns of shards, (N, 4): first row, end of rows, first column, end of columns.
_Rectangles = IntArray


@dataclass(frozen=True, eq=False)
class Move:
    """The bytes of a change of plan, and their time.

    Attributes:
        between: (W, W) bytes that the rank of the row sends to the rank of the column.
        ranks_per_host: ranks per host; ranks fill hosts in order.
        move_ms: predicted time of `torchrec_bridge.moving.move`: all-to-alls inside hosts, then between hosts; lookups
            of what a rank sends and receives, because it gathers and scatters rows; and a copy of what stays, as it was
            measured for the cost models (`measure.hardware`), or else as a lookup. On GPUs, memory limits both alike.
    """

    between: IntArray
    ranks_per_host: int
    move_ms: float

    @cached_property
    def rank_bytes(self) -> int:
        """The most bytes that any rank receives or sends."""
        return port_bytes(self.between)

    @cached_property
    def link_bytes(self) -> int:
        """Bytes over the slowest link: the most that enter or leave a host, or a rank if all ranks are on one host."""
        hosts = -(-len(self.between) // self.ranks_per_host)
        if hosts == 1:
            return self.rank_bytes
        of = np.zeros((hosts, hosts), dtype=np.int64)
        host = np.arange(len(self.between)) // self.ranks_per_host
        np.add.at(of, (host[:, None], host[None, :]), self.between)
        return port_bytes(of)

    @property
    def total_bytes(self) -> int:
        """Bytes that all ranks together receive."""
        return int(self.between.sum())


def move_of(between: IntArray, task: ShardingTask, models: Models) -> Move:
    """The move of these bytes with the network and the memory that the cost models know; `task` is the task after it.

    `between` (W, W) holds the bytes from the rank of the row to that of the column; on the diagonal, those that stay.
    """
    stay, between = np.diag(between), between - np.diag(np.diag(between))
    if not between.any():
        return Move(between, task.ranks_per_host, 0.0)
    host = np.arange(len(between)) // task.ranks_per_host
    same = host[:, None] == host[None, :]
    ms = _exchange_ms(np.where(same, between, 0), task.ranks_per_host, True, task, models)
    ms += _exchange_ms(np.where(same, 0, between), task.ranks_per_host, False, task, models)
    lookup = _lookup_ms_per_byte(task, models)
    copy = hardware_of(models.compute).get("copy_ms_per_gib", 2**30 * lookup) / 2**30
    copies_ms = (between.sum(axis=0) + between.sum(axis=1)) * lookup + stay * copy
    return Move(between, task.ranks_per_host, ms + float(copies_ms.max()))


def moved_bytes(
    present: Present, shards: tuple[Shard, ...], ranks: tuple[int, ...], task: ShardingTask, stay: bool = False
) -> IntArray:
    """(W, W) bytes that move if `present` becomes a plan with these shards; on the diagonal those that `stay`, or 0."""
    size = max(present.world_size, task.world_size)
    between = np.zeros((size, size), dtype=np.int64)
    for name, placed in Present(shards, ranks, task.world_size).placed.items():
        old = present.placed.get(name)
        if not old or old[0][0].table.embedding_dim != placed[0][0].table.embedding_dim:
            continue
        if stay or not _equal(old, placed):
            _add_table(between, old, placed, task)
    if not stay:
        np.fill_diagonal(between, 0)
    return between


def bytes_per_cell(table: Table, optimizer: str) -> tuple[int, int]:
    """Bytes that move with every weight, and with every row of a column shard."""
    state = ADAM_STATE_BYTES if optimizer == "adam" else 0
    return BYTES_PER_ELEMENT[table.data_type] + state, ROWWISE_STATE_BYTES if optimizer == "rowwise_adagrad" else 0


def port_bytes(between: IntArray) -> int:
    """The most bytes that a rank receives or sends of (W, W) bytes between ranks."""
    own = between - np.diag(np.diag(between))
    return int(max(own.sum(axis=0).max(), own.sum(axis=1).max()))


def _lookup_ms_per_byte(task: ShardingTask, models: Models) -> float:
    """What a lookup of whole rows, each of them once, takes per byte of them."""
    rows, once = task.batch_size, (1.0, *(0.0,) * (NUM_REUSE_BINS - 1))
    tables = [Table(f"{n}", 16 * rows, _COPIED_COLUMNS, 1.0, float(rows), once) for n in range(_COPIED_TABLES)]
    sums = models.compute.shard_embeddings([whole(table) for table in tables], rows).sum(axis=0)
    ms = models.compute.costs_from_sums(sums[None], rows)[0, 0]
    return float(ms) / (_COPIED_TABLES * rows * _COPIED_COLUMNS * _BYTES_PER_NUMBER)


def _exchange_ms(between: IntArray, local: int, is_inside: bool, task: ShardingTask, models: Models) -> float:
    """Time of an exchange in which every rank talks to ranks of its host only, or of other hosts only.

    The model prices all-to-alls in which a rank sends equal parts to all others. Every rank is given as many columns as
    such an all-to-all needs to bring the same bytes through the rank's port.
    """
    if not between.any():
        return 0.0
    world = len(between)
    ports = np.maximum(between.sum(axis=0), between.sum(axis=1)).astype(np.float64)
    samples = max(task.batch_size // task.world_size, 1)
    peers = (min(local, world) - 1) if is_inside else world - local
    columns = ports / (_BYTES_PER_NUMBER * samples * max(peers, 1))
    rounds = max(int(np.ceil(columns.max() / _COLUMNS_AT_ONCE)), 1)
    shape = (world // local, local) if is_inside and world % local == 0 else (1, world)
    costs = models.comm.backward_ms((columns / rounds).reshape(shape), samples * shape[-1])
    return float(rounds * costs.max())


def _equal(old: list[tuple[Shard, int]], new: list[tuple[Shard, int]]) -> bool:
    if old[0][0].sharding_type == "data_parallel":
        return max(rank for _, rank in new) < len(old)  # every rank of the old job has everything
    return {(_rectangle(s), rank) for s, rank in old} == {(_rectangle(s), rank) for s, rank in new}


def _add_table(
    between: IntArray, old: list[tuple[Shard, int]], new: list[tuple[Shard, int]], task: ShardingTask
) -> None:
    """Add the bytes that one table moves to `between`."""
    (weight, row), local = bytes_per_cell(new[0][0].table, task.optimizer), task.ranks_per_host
    copies = _copies(old, local)
    for shard, rank in new:
        # A rank reads its own copy, or else one on its host, or else one of all in turn.
        near = [rank] if rank in copies else [at for at in copies if at // local == rank // local] or list(copies)
        rectangles, ranks = copies[near[rank % len(near)]]
        rows, columns = _common(_rectangle(shard), rectangles)
        np.add.at(between[:, rank], ranks, rows * (weight * columns + row))


def _copies(old: list[tuple[Shard, int]], local: int) -> dict[int, tuple[_Rectangles, IntArray]]:
    """The copies of a table: their first rank → rectangles and ranks of the shards of the copy."""
    kind = old[0][0].sharding_type
    of: Mapping[int, list[tuple[Shard, int]]] = defaultdict(list)
    for shard, rank in old:
        first = {"data_parallel": rank, "host_row_wise": rank // local * local}.get(kind, 0)
        of[first].append((shard, rank))
    return {
        first: (np.array([_rectangle(shard) for shard, _ in placed]), np.array([rank for _, rank in placed]))
        for first, placed in of.items()
    }


def _rectangle(shard: Shard) -> tuple[int, int, int, int]:
    first, column = shard.row_offset, shard.column_offset
    return first, first + shard.num_rows, column, column + shard.embedding_dim


def _common(one: tuple[int, int, int, int], others: _Rectangles) -> tuple[IntArray, IntArray]:
    """Rows (N,) and columns (N,) that a rectangle has in common with each of N others."""
    rows = np.minimum(one[1], others[:, 1]) - np.maximum(one[0], others[:, 0])
    columns = np.minimum(one[3], others[:, 3]) - np.maximum(one[2], others[:, 2])
    is_common = (rows > 0) & (columns > 0)
    return np.where(is_common, rows, 0), np.where(is_common, columns, 0)
