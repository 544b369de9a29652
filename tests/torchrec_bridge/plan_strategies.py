"""Hypothesis strategies for random plans: all types but `host_row_wise`, uneven widths, several shards on one rank."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.tables.constraints import SEQUENCE_TYPES, UNCONSTRAINED, Constraints, TableConstraint
from neuroshard_pipeline.tables.row_blocks import row_blocks, row_shards
from neuroshard_pipeline.tables.table import NUM_REUSE_BINS, POOLINGS, SHARDING_TYPES, Shard, Table, whole
from neuroshard_pipeline.tables.task import COMM_BYTES, OPTIMIZERS, ShardingTask

#: Memory of a rank, half of which may be reserved. 6 tables of 10**9 rows and 256 columns take at most 24 bytes per
#: weight: the weight, Adam's state, the gradient of a replica, and the rows that 10**6 samples of 1000 ids look up.
ROOMY = st.integers(2**47, 2**50)

#: Types of tables that are not tiers.
WHOLE_TABLE_TYPES = tuple(name for name in SHARDING_TYPES if name != "host_row_wise")

any_names = st.text(min_size=1, max_size=8).filter(str.strip)
#: Names that PyTorch also accepts for submodules.
module_names = st.text(st.characters(exclude_characters="."), max_size=8).map("t_{}".format)

costs_ms = st.floats(0, 1e6, allow_nan=False)


@st.composite
def tables(draw, name: str, batch_size: int) -> Table:
    rows, pooling_factor = draw(st.integers(1, 10**9)), draw(st.floats(0.01, 1000))
    unique_rows, reuse = None, None
    if draw(st.booleans()):
        unique_rows = draw(st.floats(0.5, 1.0)) * min(rows, batch_size * pooling_factor)
        shares = np.random.default_rng(draw(st.integers(0, 2**32))).dirichlet(np.ones(NUM_REUSE_BINS))
        reuse = tuple(shares)
    pooling = draw(st.sampled_from(POOLINGS))
    is_weighted = pooling == "sum" and draw(st.booleans())
    return Table(
        name,
        rows,
        4 * draw(st.integers(1, 64)),
        pooling_factor,
        unique_rows,
        reuse,
        draw(st.sampled_from(["fp32", "fp16"])),
        pooling,
        f"s_{name}" if pooling == "none" else "weighted" if is_weighted else "plain",
        draw(st.integers(1, 3)),
        is_weighted,
        popularity=draw(st.sampled_from([None, ((rows / 3, 0.75),)])),
    )


@st.composite
def plans(draw, names: st.SearchStrategy[str] = any_names) -> Plan:
    world_size = draw(st.integers(1, 16))
    local = draw(st.sampled_from([None, *(n for n in range(1, world_size + 1) if world_size % n == 0)]))
    batch_size = draw(st.integers(1, 10**6))
    chosen = [draw(tables(name, batch_size)) for name in draw(st.lists(names, min_size=1, max_size=6, unique=True))]
    memory = draw(st.one_of(ROOMY, st.lists(ROOMY, min_size=world_size, max_size=world_size).map(tuple)))
    pinned = TableConstraint(
        chosen[0].name,
        ranks=range(world_size),
        min_width=4,
        max_shards=draw(st.integers(100, 200)),
        sharding_types=SHARDING_TYPES,
    )
    constraints = draw(st.sampled_from([UNCONSTRAINED, Constraints((pinned,), max_shards=200)]))
    optimizer = draw(st.sampled_from(OPTIMIZERS))
    task = ShardingTask(
        chosen,
        world_size,
        batch_size,
        memory,
        optimizer,
        constraints=constraints,
        local_world_size=local,
        pipelines_input_dist=draw(st.booleans()),
        comm_precision=draw(st.sampled_from(list(COMM_BYTES))),
        sync_interval=draw(st.integers(1, 100)),
    )
    placed = draw(st.permutations([entry for table in chosen for entry in draw(placed_shards(table, task))]))
    shards, ranks = zip(*placed, strict=True)
    cost = draw(plan_costs(world_size))
    memory_model = MemoryModel(
        optimizer_state=draw(st.booleans()),
        input_buffers=draw(st.booleans()),
        output_buffers=draw(st.booleans()),
        reserve_fraction=draw(st.floats(0, 0.5)),
    )
    return Plan(task, shards, ranks, "neuroshard", cost, memory_model)


@st.composite
def placed_shards(draw, table: Table, task: ShardingTask) -> list[tuple[Shard, int]]:
    """Shards of the table and their ranks, of a type that TorchRec trains correctly beside tables of any type."""
    local = task.ranks_per_host
    types = ("column_wise", "data_parallel") if table.pooling == "mean" else WHOLE_TABLE_TYPES
    sharding_type = draw(st.sampled_from(SEQUENCE_TYPES if table.pooling == "none" else types))
    group = task.world_size if sharding_type == "row_wise" else local
    if sharding_type == "data_parallel":
        return [(whole(table, "data_parallel"), rank) for rank in range(task.world_size)]
    if sharding_type == "column_wise" or row_blocks(table.num_embeddings, group)[-1][1] == 0:
        shards = [whole(table)] if table.pooling == "none" else draw(columns_of(table))
        return [(shard, draw(st.integers(0, task.world_size - 1))) for shard in shards]
    placed = []
    for block in draw(columns_of(table)) if sharding_type == "grid_shard" else [whole(table)]:
        first = group * draw(st.integers(0, task.world_size // group - 1))
        rows = row_shards(table, sharding_type, group, block.column_offset, block.embedding_dim)
        placed += [(shard, first + at) for at, shard in enumerate(rows)]
    return placed


@st.composite
def columns_of(draw, table: Table) -> list[Shard]:
    """Shards of uneven widths that cover the table."""
    cuts = draw(st.sets(st.integers(1, table.embedding_dim // 4), max_size=4)) | {table.embedding_dim // 4}
    ends = [4 * cut for cut in sorted(cuts)]
    return [Shard(table, start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@st.composite
def plan_costs(draw, world_size: int) -> PlanCost | None:
    if draw(st.booleans()):
        return None
    return PlanCost(*(tuple(draw(st.lists(costs_ms, min_size=world_size, max_size=world_size))) for _ in range(4)))
