"""The search over tables on single hosts: plans are valid and never dearer than the first one, and a
table that overloads its host is cut.
"""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.search.host_blocks import improved_on_hosts
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import placement_cost_ms
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import joined, spread_tables
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER

MODELS = load_cost_models("h100")
HEAVY = Table("heavy", 10**7, 256, 200.0)


def problem_of(tables, memory_bytes=2**36, constraints=None) -> Problem:
    given = {} if constraints is None else {"constraints": constraints}
    task = ShardingTask(tables, 24, 24 * 8192, memory_bytes, local_world_size=8, **given)
    return Problem(task, MODELS, WEIGHTS_AND_OPTIMIZER)


def on_hosts(problem: Problem) -> Placement:
    types = {table.name: "table_row_wise" for table in problem.task.tables}
    return joined(problem, None, spread_tables(types, problem.task, problem.memory))


def blocks_of(placement: Placement, name: str) -> set[tuple[int, int, int]]:
    """Columns and hosts of the blocks of a table."""
    placed = zip(placement.shards, placement.ranks, strict=True)
    return {(s.column_offset, s.embedding_dim, rank // 8) for s, rank in placed if s.table.name == name}


def test_a_table_that_loads_one_host_is_cut_beside_smaller_tables_on_other_hosts():
    problem = problem_of([HEAVY, Table("a", 10**6, 64, 2.0), Table("b", 10**6, 64, 1.0)])
    first = on_hosts(problem)
    found = improved_on_hosts(problem, first, usable_types)
    assert placement_cost_ms(problem, found) < 0.95 * placement_cost_ms(problem, first)
    assert len({host for *_, host in blocks_of(found, "heavy")}) > 1
    assert {shard.sharding_type for shard in found.shards} <= {"grid_shard", "data_parallel"}


def test_a_small_table_becomes_a_replica_to_make_room_for_half_of_the_heavy_one():
    problem = problem_of([HEAVY, Table("a", 10**6, 64, 10.0), Table("small", 200, 64, 10.0)])
    found = improved_on_hosts(problem, on_hosts(problem), usable_types)
    types = {shard.table.name: shard.sharding_type for shard in found.shards}
    assert types["small"] == "data_parallel"


@pytest.mark.parametrize("seed", range(4))
def test_plans_are_valid_and_never_dearer_within_memory_and_constraints(seed):
    rng = np.random.default_rng(seed)
    tables = [
        Table(f"t{i}", int(10 ** rng.uniform(2, 7)), int(rng.choice((4, 64, 128))), float(rng.choice((1, 5, 60))))
        for i in range(int(rng.integers(1, 7)))
    ]
    constraints = Constraints(max_shards=1) if seed % 2 else None
    problem = problem_of(tables, 2**31, constraints)
    first = on_hosts(problem)
    found = improved_on_hosts(problem, first, usable_types)
    Plan(problem.task, found.shards, found.ranks, "test", memory=WEIGHTS_AND_OPTIMIZER)
    assert placement_cost_ms(problem, found) <= placement_cost_ms(problem, first) * (1 + 1e-9)
    if constraints:
        assert all(len(blocks_of(found, table.name)) in (1, 3) for table in tables)  # 3: a replica, on all hosts


def test_blocks_stay_within_host_memory():
    """Every host has one table in its host memory, and no room there for half of another one."""
    in_host = [Table(name, 10**7, 128, ids, compute_kernel="fused_uvm") for name, ids in (("a", 10.0), ("b", 1.0))]
    tables = [*in_host, replace(in_host[1], name="c"), replace(HEAVY, pooling_factor=60.0)]
    task = replace(problem_of([HEAVY]).task, tables=tables, host_memory_bytes=HEAVY.weight_bytes // 8)
    problem = Problem(task, MODELS, WEIGHTS_AND_OPTIMIZER)
    shards = [shard for table in tables for shard in row_shards(table, "table_row_wise", 8)]
    first = Placement(tuple(shards), tuple(8 * host + place for host in (0, 1, 2, 0) for place in range(8)))
    found = improved_on_hosts(problem, first, usable_types)
    assert placement_cost_ms(problem, found) < 0.95 * placement_cost_ms(problem, first)
    Plan(task, found.shards, found.ranks, "test", memory=WEIGHTS_AND_OPTIMIZER)


def test_a_placement_without_tables_on_hosts_stays():
    problem = problem_of([Table("a", 10**5, 64, 2.0)])
    first = joined(problem, None, spread_tables({"a": "row_wise"}, problem.task, problem.memory))
    assert improved_on_hosts(problem, first, usable_types) is first
