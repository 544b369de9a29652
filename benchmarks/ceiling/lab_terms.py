"""The terms of the lab's formulas for a step (`lab.step`) per shard, for tasks with one module of tables pooled by sum.

The time of a fused lookup consists of sums over its shards and of maxima of such sums. Every shard therefore has
quantities that add up over the shards of a rank, and the quantity `last_bag`, of which the largest counts. `lab_plans`
evaluates plans with these terms, and `lab_bounds` proves bounds.

Shapes: T tables, K types of `KINDS`, M widths in steps of 4 columns, 2 row blocks (any but the last, the last),
Q quantities, W ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neuroshard_pipeline.arrays import FloatArray, IntArray
from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.lab.device import ModelledDevice
from neuroshard_pipeline.lab.lookup_work import hot_blocks
from neuroshard_pipeline.lab.lookups import lookup_of_shards
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.dedup import looked_up
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, ShardingType, Table
from neuroshard_pipeline.tables.task import ShardingTask

KINDS: tuple[ShardingType, ...] = ("column_wise", "data_parallel", "row_wise", "table_row_wise", "grid_shard")
COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, GRID_SHARD = range(len(KINDS))
#: Microseconds of a shard in a fused lookup. Those of several shards add up; of `last_bag`, only the largest counts.
QUANTITIES = ("hbm", "l2", "latency", "sort", "gradients_hbm", "gradients_l2", "hot_rows", "update", "last_bag")
_UNLIMITED = 1e30


class Terms(NamedTuple):
    """Terms of all tables of a task, as compiled code takes them.

    Attributes:
        lookups: us of `QUANTITIES` of a shard, (T, K, M + 1, 2, Q).
        bytes: memory of a shard, (T, K, M + 1, 2).
        row_share: share of a table's rows that a shard has, (T, K, 2).
        usable: whether a table may have a type, (T, K).
        widths: columns / 4 of every table, (T,).
        features: features of every table, (T,).
        ids: ids per sample of every table, (T,).
        gradients: bytes of the dense gradients of a replica, (T,).
        limits: bytes that shards may use on each rank, (W,).
    """

    lookups: FloatArray
    bytes: FloatArray
    row_share: FloatArray
    usable: np.ndarray
    widths: IntArray
    features: FloatArray
    ids: FloatArray
    gradients: FloatArray
    limits: FloatArray


def terms_of(problem: Problem, device: ModelledDevice) -> Terms:
    """The terms of a problem's tables.

    Raises:
        NeuroShardError: the task has tables or options that these terms do not cover.
    """
    task = problem.task
    plain = all(t.pooling == "sum" and not t.is_weighted and t.compute_kernel == "fused" for t in task.tables)
    alike = len({(table.embedding_module, table.data_type) for table in task.tables}) == 1
    if not (plain and alike) or task.comm_share < 1 or task.num_replica_groups > 1 or task.pipelines_input_dist:
        raise NeuroShardError(
            f"{task.task_id}: terms are known only for one module of tables pooled by sum, fused kernels, one data "
            "type, unweighted ids, fp32 communication, one replica group and an input dist that is not pipelined; "
            "evaluate plans of this task with lab.step instead"
        )
    usable = np.array([[kind in usable_types(table, problem) for kind in KINDS] for table in task.tables])
    widths = np.array([table.embedding_dim // COLUMN_GRANULARITY for table in task.tables])
    shape = len(task.tables), len(KINDS), int(widths.max()) + 1, 2
    lookups, sizes, shares = np.zeros((*shape, len(QUANTITIES))), np.zeros(shape), np.ones((*shape[:2], 2))
    known: dict[tuple[object, ...], int] = {}
    for row, table in enumerate(task.tables):
        key = (table.num_embeddings, table.embedding_dim, table.pooling_factor, table.reuse, table.unique_rows)
        first = known.setdefault((*key, table.num_features, usable[row].tobytes()), row)
        if first < row:
            lookups[row], sizes[row], shares[row] = lookups[first], sizes[first], shares[first]
            continue
        for kind in np.flatnonzero(usable[row]):
            cuts = kind in (COLUMN_WISE, GRID_SHARD)
            for width in range(1, widths[row] + 1) if cuts else (int(widths[row]),):
                for place, shard in enumerate(_first_and_last(table, int(kind), width, task)):
                    lookups[row, kind, width, place] = _quantities(shard, task, device)
                    sizes[row, kind, width, place] = problem.memory.shard_bytes(shard, task)
                    shares[row, kind, place] = shard.row_share
    return Terms(
        lookups,
        sizes,
        shares,
        usable,
        widths,
        np.array([float(table.num_features) for table in task.tables]),
        np.array([table.pooling_factor for table in task.tables]),
        np.array([4.0 * table.num_embeddings * table.embedding_dim for table in task.tables]),
        problem.limits.astype(float),
    )


def _first_and_last(table: Table, kind: int, width: int, task: ShardingTask) -> Sequence[Shard]:
    columns = COLUMN_GRANULARITY * width
    if kind in (COLUMN_WISE, DATA_PARALLEL):
        return [Shard(table, 0, columns, sharding_type=KINDS[kind])] * 2
    ranks = task.world_size if kind == ROW_WISE else task.ranks_per_host
    rows = row_shards(table, KINDS[kind], ranks, 0, columns)
    return [rows[0], rows[-1]]


def _quantities(shard: Shard, task: ShardingTask, device: ModelledDevice) -> list[float]:
    seen, samples = looked_up(shard, task)
    optimizer = "none" if shard.sharding_type == "data_parallel" else task.optimizer
    lookup, twice = (lookup_of_shards([seen] * count, samples, optimizer) for count in (1, 2))
    time = device.time(lookup)
    of_two = device.time(twice).forward_parts["latency"]
    latency = time.forward_parts["latency"]
    cold = device.kernels.model_copy(update={"hot_row_us": 0.0})
    by_hbm, by_l2 = (
        ModelledDevice(device=device.device.model_copy(update={field: _UNLIMITED}), kernels=cold)
        for field in ("l2_bytes_per_clock", "hbm_gb_per_s")
    )
    return [
        time.forward_parts["hbm"],
        time.forward_parts["l2"],
        of_two - latency,
        time.backward_parts["sort"],
        by_hbm.time(lookup).backward_parts["reduce"],
        by_l2.time(lookup).backward_parts["reduce"],
        device.kernels.hot_row_us * hot_blocks(lookup) / device.device.sms,
        time.backward_parts["update"],
        2 * latency - of_two,
    ]
