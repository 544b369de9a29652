"""Random legal sharding tasks of all kinds, for `search_never_loses.py`.

A task has 1 to 32 ranks, on hosts of any divisor of that number, and 1 to 60 tables: pooled ones (sums and means, with
and without weights, of several features) and sequence tables, in one to three modules. Three quarters of the tasks have
at most 6 ranks and 8 tables, because they are solved quickly and their plans differ most. Memory is plenty or tight,
even or uneven. Constraints, half-precision communication, replica groups, tiers, host memory and a pipelined input dist
occur in a part of the tasks.

A seed and a number determine a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import SHARDING_TYPES, Table
from neuroshard_pipeline.tables.task import COMM_BYTES, OPTIMIZERS, ShardingTask

#: Most ranks and most tables of three sizes of tasks, and the shares of these sizes.
_SIZES, _SHARES = ((6, 8), (16, 20), (32, 60)), (0.75, 0.2, 0.05)
_WIDTHS, _ODD_WIDTHS = (4, 8, 16, 32, 64, 128, 256), (12, 20, 36, 48, 100)
#: Bytes that tables need, as a share of all ranks' memory: from plenty of memory to less than tables can be packed in.
_TIGHTNESS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9)
#: With host memory, the tables need this share of the GPU memory, and half of the host memory.
_BEYOND_GPU_MEMORY = (1.05, 1.5)
#: Shares of sums, means and sequence tables.
_MIXES = ((1, 0, 0), (0, 0, 1), (0.8, 0.2, 0), (0.7, 0.1, 0.2), (0, 1, 0))
_PLENTY = 2**58
_NAMES = tuple(name for name in SHARDING_TYPES if name != "host_row_wise")


def random_task(seed: int, number: int) -> ShardingTask:
    """Task `number` of `seed`; draws without a legal task, for example without a rank for a table, are repeated."""
    rng = np.random.default_rng([seed, number])
    while True:
        try:
            return _drawn(rng, f"random-{seed}-{number}")
        except TaskError:
            continue


def _drawn(rng: np.random.Generator, task_id: str) -> ShardingTask:
    most_ranks, most_tables = rng.choice(_SIZES, p=_SHARES).tolist()
    world_size = 1 if rng.random() < 0.1 else round(_log_uniform(rng, 2, most_ranks))
    local = int(rng.choice([size for size in range(1, world_size + 1) if world_size % size == 0]))
    tables = _tables(rng, round(_log_uniform(rng, 1, most_tables)))
    num_groups = 2 if rng.random() < 0.1 else 1
    task = ShardingTask(
        tables,
        world_size,
        world_size * round(_log_uniform(rng, 16, 8192)),
        _PLENTY,
        str(rng.choice(OPTIMIZERS[: 2 if num_groups > 1 else None])),
        task_id,
        local_world_size=None if rng.random() < 0.2 else local,
        pipelines_input_dist=bool(rng.random() < 0.4),
        comm_precision=str(rng.choice(list(COMM_BYTES))) if rng.random() < 0.4 else "fp32",
        num_replica_groups=num_groups,
        sync_interval=int(rng.integers(1, 20)),
        tiers=bool(rng.random() < 0.1),
        index_dedup=bool(rng.random() < 0.3),
    )
    task = _with_memory(rng, task)
    return replace(task, constraints=_constraints(rng, task)) if rng.random() < 0.4 else task


def _log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))


def _tables(rng: np.random.Generator, count: int) -> list[Table]:
    """Tables of one mix of kinds, widths and sizes; most tasks have few kinds and widths."""
    shares = rng.choice(_MIXES, p=(0.4, 0.15, 0.15, 0.2, 0.1))
    widths = rng.choice([*_WIDTHS, *(_ODD_WIDTHS if rng.random() < 0.3 else ())], size=int(rng.integers(1, 5)))
    most_rows, most_ids = _log_uniform(rng, 100, 2e7), _log_uniform(rng, 1, 200)
    num_modules, share_weighted = int(rng.integers(1, 4)) if rng.random() < 0.3 else 1, rng.choice([0.0, 0.0, 0.5])
    types = ["fp32", "fp16"] if rng.random() < 0.3 else [str(rng.choice(["fp32", "fp32", "fp16"]))]
    several = rng.random() < 0.3
    tables = []
    for number in range(count):
        pooling = str(rng.choice(["sum", "mean", "none"], p=shares))
        table = Table(
            f"t{number}",
            round(_log_uniform(rng, 10, most_rows)),
            int(rng.choice(widths)),
            _log_uniform(rng, 0.2, most_ids),
            data_type=str(rng.choice(types)),
            pooling=pooling,
            module=f"m{rng.integers(num_modules)}" if num_modules > 1 else "",
            num_features=int(rng.integers(1, 4)) if several else 1,
            is_weighted=bool(pooling == "sum" and rng.random() < share_weighted),
        )
        tables.append(table)
    return tables


def _with_memory(rng: np.random.Generator, task: ShardingTask) -> ShardingTask:
    """The task with memory: plenty, tight, or, with host memory, too little for the tables."""
    memory = default_memory()
    needed = sum(memory.table_bytes(table, table.embedding_dim, task) for table in task.tables)
    if rng.random() < 0.07:
        even = needed / float(rng.choice(_BEYOND_GPU_MEMORY)) / task.world_size
        host = max(1, round(2 * needed / task.world_size))
        return replace(task, memory_bytes=max(1, int(even)), host_memory_bytes=host)
    even = needed / float(rng.choice(_TIGHTNESS)) / task.world_size
    if rng.random() < 0.85:
        return replace(task, memory_bytes=max(1, int(even)))
    shares = rng.uniform(0.6, 1.4, task.world_size)
    return replace(task, memory_bytes=[max(1, int(even * share)) for share in shares / shares.mean()])


def _constraints(rng: np.random.Generator, task: ShardingTask) -> Constraints:
    """Constraints on some of the tables, or on all of them."""
    own = [_constraint(rng, table, task.world_size) for table in task.tables if rng.random() < 0.3]
    names = rng.permutation([table.name for table in task.tables]).tolist()
    together = [names[:2]] if len(names) > 1 and rng.random() < 0.2 else []
    most = int(rng.integers(1, 4)) if rng.random() < 0.15 else None
    types = _types(rng) if rng.random() < 0.25 else None
    return Constraints(own, together, 16 if rng.random() < 0.15 else 4, most, types)


def _constraint(rng: np.random.Generator, table: Table, world_size: int) -> TableConstraint:
    some = tuple(rng.choice(world_size, int(rng.integers(1, world_size + 1)), replace=False).tolist())
    return TableConstraint(
        table.name,
        ranks=some if rng.random() < 0.25 else None,
        forbidden_ranks=some if rng.random() < 0.15 else (),
        min_width=int(rng.choice([4, 4, 8, 32])),
        max_shards=int(rng.integers(1, 5)) if rng.random() < 0.2 else None,
        split=bool(rng.random() < 0.85),
        sharding_types=_types(rng) if rng.random() < 0.3 else None,
    )


def _types(rng: np.random.Generator) -> Sequence[str]:
    return [*rng.choice(_NAMES, int(rng.integers(1, 4)), replace=False).tolist()]
