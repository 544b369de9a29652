"""The fewest bytes that sequence tables must send between hosts in one step, under any plan that keeps rows whole.

Setting: H hosts of L ranks, W = H L ranks, N ids of a table per step, D columns of 4 bytes. An id is row k of the table
with probability p_k. Every host asks for row k v_k times per step: v_k = N p_k / H. With `index_dedup`, a rank asks for
a row at most once, so that v_k = L (1 - (1 - p_k)^(N / W)). A plan stores row k on c_k hosts, 1 <= c_k <= H.

1. Each of the H - c_k hosts without row k sends v_k ids (8 bytes each), gets a row for each id (4 D bytes) and sends
   its gradient back (4 D bytes): (H - c_k) v_k (8 + 8 D) bytes.
2. The c_k copies of row k must all get the sum of the gradients of all copies, as a dense reduction. Until one host
   knows this sum, at least c_k - 1 messages were sent, because every other copy's part has to reach it. At this moment
   the other c_k - 1 hosts do not know it, so that at least c_k - 1 messages follow: 2 (c_k - 1) 4 D bytes.
3. If a row is stored once, it takes m_k bytes of memory: weights and optimizer state. If it is stored more often, each
   copy takes m'_k >= m_k bytes, because it also has a dense gradient and an entry in the index of popular rows. The
   total over all rows is at most the memory of all ranks. c_k m'_k >= m_k + (c_k - 1) (H m'_k - m_k) / (H - 1), because
   the difference of the two sides is linear in c_k, is m'_k - m_k at c_k = 1, and is 0 at c_k = H.

With x_k = (c_k - 1) / (H - 1), which lies between 0 and 1, the bytes are at least

    (H - 1) sum_k [ v_k (8 + 8 D) - x_k (v_k (8 + 8 D) - 8 D) ]   subject to   sum_k m_k + x_k (H m'_k - m_k) <= memory

Both are linear, and the x_k are only coupled by the memory. The optimum over fractional x_k therefore takes rows in the
order of saved bytes per byte of memory until the memory is used up (Dantzig's solution of the fractional knapsack). No
plan sends less, because its x_k are one of the choices. If memory does not matter, a row is worth copies exactly if
v_k (8 + 8 D) > 8 D: if a host looks it up at least about once per step. If only all-to-alls count, the term 8 D is left
out. For one table without `index_dedup`, the bound is then the share 1 - C(n) of the bytes that the table sends without
copies; C is the popularity curve, and n is the number of rows whose copies fit into memory.

The bound holds for ids that are sent one by one (or once per rank with `index_dedup`) and for dense reductions of
gradients, as in TorchRec. With all ranks on one host, a rank takes the place of a host: H = W, L = 1. Shape: K buckets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from row_popularity import RowPopularity

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.memory import ID_BYTES, OUTPUT_BYTES, MemoryModel, one_row
from neuroshard_pipeline.tables.kinds import Tier, TierKind
from neuroshard_pipeline.tables.table import ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask


@dataclass(frozen=True)
class CrossingBound:
    """Bytes per step that cross hosts (ranks if all of them are on one host), summed over all hosts.

    Attributes:
        sharded_bytes: bytes that any plan without tiers and replicas sends, without `index_dedup`, if ids and rows are
            spread evenly over the hosts.
        least_bytes: lower bound of the bytes of all-to-alls and of reductions of gradients together.
        least_all_to_all_bytes: lower bound of the bytes of all-to-alls alone.
    """

    sharded_bytes: float
    least_bytes: float
    least_all_to_all_bytes: float

    @property
    def least_share(self) -> float:
        """Least share of `sharded_bytes` that any plan sends, with reductions."""
        return self.least_bytes / self.sharded_bytes

    @property
    def least_all_to_all_share(self) -> float:
        """Least share of `sharded_bytes` that the all-to-alls of any plan send."""
        return self.least_all_to_all_bytes / self.sharded_bytes


@dataclass(frozen=True)
class _Classes:
    """Rows of equal popularity of one table; arrays of K buckets, hottest first.

    Attributes:
        rows: number of rows of each bucket.
        visits: how often one host looks up a row of the bucket per step.
        asked: how often the host would ask for the row with `index_dedup`, at most `visits`.
        visit_bytes: bytes that cross hosts if a host without the row asks for it.
        gradient_bytes: bytes that cross hosts per further copy of a row.
        row_bytes: bytes of memory of a row without copies.
        copies_bytes: bytes of memory that copies on all hosts take in addition.
    """

    rows: FloatArray
    visits: FloatArray
    asked: FloatArray
    visit_bytes: float
    gradient_bytes: float
    row_bytes: float
    copies_bytes: float


def crossing_bound(
    task: ShardingTask, popularities: Mapping[str, RowPopularity], memory: MemoryModel, index_dedup: bool = False
) -> CrossingBound:
    """The bound for the sequence tables of a task; other tables count neither as bytes nor as memory.

    Args:
        task: the task.
        popularities: the distribution of the ids of every sequence table.
        memory: gives the share of the ranks' memory that tables may use, and the state of the optimizer.
        index_dedup: whether every rank sends each id of its samples once.

    Raises:
        TaskError: the task has one rank, or no sequence table; nothing crosses a wire then.
    """
    places = _places(task)
    tables = [table for table in task.tables if table.pooling == "none"]
    if places == 1 or not tables:
        raise TaskError(
            f"{task.task_id}: no rows of sequence tables cross a wire with {task.world_size} ranks and {len(tables)} "
            "sequence tables; give at least two ranks and one table"
        )
    found = [_classes(table, task, popularities[table.name], memory) for table in tables]
    capacity = sum(memory.limits(task)) - sum(float(own.rows.sum()) * own.row_bytes for own in found)
    sent = sum(float((own.rows * (own.asked if index_dedup else own.visits)).sum()) * own.visit_bytes for own in found)

    def least(counts_gradients: bool) -> float:
        saved = [
            (own.asked if index_dedup else own.visits) * own.visit_bytes - counts_gradients * own.gradient_bytes
            for own in found
        ]
        return (places - 1) * (sent - _most_saved(found, saved, capacity))

    sharded = sum(float((own.rows * own.visits).sum()) * own.visit_bytes for own in found)
    return CrossingBound((places - 1) * sharded, least(True), least(False))


def _classes(table: Table, task: ShardingTask, popularity: RowPopularity, memory: MemoryModel) -> _Classes:
    places = _places(task)
    ranks = task.world_size // places
    ids = task.batch_size * table.pooling_factor / task.world_size  # of one rank
    once = -np.expm1(ids * np.log1p(-np.minimum(popularity.popularity, 1 - 1e-12)))
    width_bytes = OUTPUT_BYTES * table.embedding_dim
    copy_bytes = tier_row_bytes(table, "hot", task, memory) / task.world_size
    return _Classes(
        rows=popularity.rows.astype(np.float64),
        visits=ranks * ids * popularity.popularity,
        asked=ranks * once,
        visit_bytes=ID_BYTES + 2.0 * width_bytes,
        gradient_bytes=2.0 * width_bytes,
        row_bytes=memory.row_bytes(table, task),
        copies_bytes=places * copy_bytes - memory.row_bytes(table, task),
    )


def _places(task: ShardingTask) -> int:
    """Number of hosts, or of ranks if there is one host."""
    return task.num_hosts if task.num_hosts > 1 else task.world_size


def tier_row_bytes(table: Table, kind: TierKind, task: ShardingTask, memory: MemoryModel) -> float:
    """Least bytes of one row of a tier on all ranks together, with gradients of copies and indices of popular rows."""
    if kind == "cold":
        return memory.row_bytes(table, task)
    tier = replace(one_row(table), tier=Tier(kind, table.name, 0))
    name: ShardingType = "data_parallel" if kind == "hot" else "host_row_wise"
    copies = task.world_size if kind == "hot" else task.num_hosts
    return copies * float(memory.without_buffers().shard_bytes(whole(tier, name), task))


def _most_saved(found: Sequence[_Classes], saved: Sequence[FloatArray], capacity: float) -> float:
    """The optimum of the fractional knapsack: most bytes saved by copies that take at most `capacity` bytes of memory.

    Args:
        found: classes of all tables.
        saved: bytes that copies of a row of each class save; classes that save nothing get no copies.
        capacity: bytes of memory that rows without copies leave.
    """
    per_byte = np.concatenate([own / table.copies_bytes for own, table in zip(saved, found, strict=True)])
    size = np.concatenate([table.rows * table.copies_bytes for table in found])
    order = np.argsort(-per_byte, kind="stable")
    order = order[per_byte[order] > 0]
    before = np.cumsum(size[order]) - size[order]
    return float(per_byte[order] @ np.clip(capacity - before, 0.0, size[order]))
