"""Tiny random tasks with random limits and constraints, and a check that tries all arrangements of their shards."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from hypothesis import strategies as st

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER

#: A memory model that counts weights, optimizer state and all buffers, and keeps a reserve.
EVERYTHING = MemoryModel(optimizer_state=True, input_buffers=True, output_buffers=True, reserve_fraction=0.1)


@st.composite
def constrained_tasks(draw):
    """A task and a memory model; about a third of the tasks cannot be solved."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    world_size = draw(st.integers(1, 4))
    tables = [
        Table(f"t{i}", int(rng.integers(50, 2000)), int(rng.choice([4, 8, 12, 16, 20])), float(rng.uniform(1, 20)))
        for i in range(draw(st.integers(1, 6)))
    ]
    memory = draw(st.sampled_from([WEIGHTS_AND_OPTIMIZER, EVERYTHING]))
    optimizer = str(rng.choice(["sgd", "rowwise_adagrad", "adam"]))
    probe = ShardingTask(tables, world_size, 16, 2**40, optimizer)
    needed = sum(memory.table_bytes(table, table.embedding_dim, probe) for table in tables)
    even = needed / draw(st.floats(0.2, 1.15)) / world_size / (1 - memory.reserve_fraction)
    shares = rng.uniform(0.5, 1.5, world_size) if draw(st.booleans()) else np.ones(world_size)
    limits = [max(1, int(even * share)) for share in shares / shares.mean()]
    task = dataclasses.replace(probe, memory_bytes=limits)
    while True:
        try:
            return dataclasses.replace(task, constraints=_constraints(rng, tables, world_size)), memory
        except TaskError:  # a table or a group of tables has no allowed rank: draw again
            continue


def _constraints(rng, tables, world_size):
    single = []
    for table in tables:
        if rng.random() < 0.5:
            continue
        some = tuple(rng.choice(world_size, rng.integers(1, world_size + 1), replace=False).tolist())
        single.append(
            TableConstraint(
                table.name,
                ranks=some if rng.random() < 0.3 else None,
                forbidden_ranks=some if rng.random() < 0.2 else (),
                min_width=int(rng.choice([1, 4, 8, 12])),
                max_shards=None if rng.random() < 0.6 else int(rng.integers(1, 4)),
                split=rng.random() < 0.8,
            )
        )
    names = rng.permutation([table.name for table in tables]).tolist()
    together = [names[:2]] if len(names) > 1 and rng.random() < 0.3 else []
    if len(names) > 4 and rng.random() < 0.2:
        together.append(names[2:5])
    return Constraints(
        single,
        together,
        min_width=8 if rng.random() < 0.15 else 4,
        max_shards=2 if rng.random() < 0.15 else None,
    )


def fits_somehow(task: ShardingTask, memory: MemoryModel) -> bool:
    """Whether any arrangement of column shards keeps every limit and constraint. Tries all of them, table by table."""
    constraints = task.constraints
    group_of = {name: group for group in constraints.together for name in group}
    by_name = {table.name: table for table in task.tables}
    pieces = []  # for every table, or tables kept together, bytes per rank of all arrangements
    for table in task.tables:
        group = group_of.get(table.name)
        if group is None:
            pieces.append(_ways(table, task, memory))
        elif table.name == group[0]:
            ranks = set.intersection(*({*constraints.of(name).allowed_ranks(task.world_size)} for name in group))
            size = sum(memory.table_bytes(by_name[name], by_name[name].embedding_dim, task) for name in group)
            pieces.append([tuple(size * (rank == r) for r in range(task.world_size)) for rank in ranks])
    pieces.sort(key=lambda ways: len(ways))

    @functools.cache
    def fits(index, free):
        if index == len(pieces):
            return True
        rests = (tuple(f - used for f, used in zip(free, way, strict=True)) for way in pieces[index])
        return any(min(rest) >= 0 and fits(index + 1, rest) for rest in rests)

    return fits(0, tuple(memory.limits(task)))


def _ways(table, task, memory):
    constraint = task.constraints.of(table.name)
    allowed = constraint.allowed_ranks(task.world_size)
    least = min(-(-constraint.min_width // 4), table.embedding_dim // 4)
    ways = []
    for steps in _compositions(table.embedding_dim // 4, task.world_size):
        shards = [(rank, count) for rank, count in enumerate(steps) if count]
        if any(rank not in allowed or count < least for rank, count in shards):
            continue
        if constraint.max_shards is None or len(shards) <= constraint.max_shards:
            ways.append(tuple(memory.table_bytes(table, 4 * count, task) if count else 0 for count in steps))
    return ways


@functools.cache
def _compositions(total, parts):
    if parts == 1:
        return [(total,)]
    return [(first, *rest) for first in range(total + 1) for rest in _compositions(total - first, parts - 1)]
