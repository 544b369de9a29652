"""The local search over changes of one table at a time: what it returns is legal, and no dearer than its start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.search import polish
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.polish import polished
from neuroshard_pipeline.search.price import placement_cost_ms, placement_costs, price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.step_work import torchrec_type
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models


def on_rank_0(task: ShardingTask) -> Placement:
    return Placement(tuple(map(whole, task.tables)), (0,) * len(task.tables))


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(8, 5000), st.sampled_from(["sum", "mean", "none"])), min_size=1, max_size=4),
    st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    st.floats(1.0, 6.0),
)
def test_plans_stay_legal_and_get_no_dearer(rows, ranks, room):
    tables = [Table(f"t{at}", number, 16, 5.0, pooling=pooling) for at, (number, pooling) in enumerate(rows)]
    memory = [round(room * sum(table.weight_bytes for table in tables)) + 4096] * ranks[0]
    task = ShardingTask(tables, ranks[0], 512, memory, local_world_size=ranks[1], constraints=Constraints(max_shards=2))
    problem = Problem(task, step_models(ms_per_mib=0.1), WEIGHTS_AND_OPTIMIZER)
    start = on_rank_0(task)
    found = price_plan(problem, polished(problem, start, usable_types), "any")  # refuses plans that are not legal
    assert found.predicted_cost_ms <= placement_cost_ms(problem, start) * (1 + 1e-9)


@pytest.mark.parametrize("ms_per_mib", [0.01, 0.3])
def test_column_shards_of_sequence_tables_of_a_module_keep_one_width(ms_per_mib):
    tables = [Table(f"t{at}", 9000, 64, 8.0, pooling="none") for at in range(3)]
    task = ShardingTask(tables, 8, 4096, 2**34)
    problem = Problem(task, step_models(ms_per_mib=ms_per_mib), WEIGHTS_AND_OPTIMIZER)
    found = polished(problem, on_rank_0(task), usable_types)
    widths = {shard.embedding_dim for shard in found.shards if torchrec_type(shard) == "column_wise"}
    assert len(widths) <= 1
    assert len(set(found.ranks)) > 1


def test_all_sequence_tables_of_a_module_are_cut_where_the_cut_of_one_does_not_help():
    """Cut tables have an input dist of their own beside that of whole ones."""
    tables = [Table(f"t{at}", 25 + at, 256, 0.5 + at / 2, pooling="none") for at in range(2)]
    options = {"local_world_size": 3, "pipelines_input_dist": True, "index_dedup": True, "comm_precision": "fp16"}
    task = ShardingTask(tables, 6, 2136, 2**30, constraints=Constraints(sharding_types=("column_wise",)), **options)
    problem = Problem(task, load_cost_models("h100"), WEIGHTS_AND_OPTIMIZER)
    cut = Placement(tuple(Shard(table, first, 128) for table in tables for first in (0, 128)), (0, 3, 1, 4))
    found = polished(problem, Placement(tuple(map(whole, tables)), (3, 0)), usable_types)
    assert placement_cost_ms(problem, found) <= placement_cost_ms(problem, cut) * (1 + 1e-9)


def test_two_tables_change_places_where_only_that_helps():
    """Each rank has memory for one of the tables, so that no single one can move."""
    tables = [Table("large", 4000, 16, 2.0), Table("small", 3900, 16, 60.0)]
    limits = [round(1.2 * tables[0].weight_bytes)] * 2
    task = ShardingTask(tables, 2, 512, limits, constraints=Constraints(max_shards=1, sharding_types=("table_wise",)))
    problem = Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER)
    costs = [
        placement_cost_ms(problem, polished(problem, Placement(tuple(map(whole, tables)), ranks), usable_types))
        for ranks in ((0, 1), (1, 0))
    ]
    assert np.ptp(costs) <= 1e-3 * min(costs)


@pytest.mark.parametrize("sharding_type", ["column_wise", "grid_shard"])
def test_blocks_of_a_table_go_to_the_ranks_that_others_load_least(sharding_type):
    """They may stay where the table is: its own load, which a cut takes away, does not count there."""
    tables = [Table("whole", 4000, 64, 60.0), Table("cut", 3900, 64, 90.0)]
    own = [TableConstraint("whole", split=False), TableConstraint("cut", sharding_types=(sharding_type,))]
    task = ShardingTask(tables, 3, 512, 2**30, local_world_size=1, constraints=Constraints(own))
    problem = Problem(task, step_models(ms_per_mib=0.01), WEIGHTS_AND_OPTIMIZER)
    found = polished(problem, Placement(tuple(map(whole, tables)), (0, 1)), usable_types)
    placed = {(shard.table.name, rank) for shard, rank in zip(found.shards, found.ranks, strict=True)}
    assert placed == {("whole", 0), ("cut", 1), ("cut", 2)}


def test_tables_that_are_kept_together_move_together():
    tables = [Table("a", 400, 16, 30.0), Table("b", 300, 16, 20.0), Table("pinned", 500, 16, 50.0)]
    own = [TableConstraint("pinned", ranks=[0])]
    constraints = Constraints(own, together=[("a", "b")], sharding_types=("table_wise",))
    task = ShardingTask(tables, 2, 512, 2**30, constraints=constraints)
    problem = Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER)
    found = polished(problem, Placement(tuple(map(whole, tables)), (0, 0, 0)), usable_types)
    assert found.ranks == (1, 1, 0)


def test_a_table_goes_past_ranks_without_room():
    """The rank with the lowest load is full of a table that is hardly looked up."""
    tables = [Table("idle", 4000, 16, 0.001), Table("other", 100, 16, 5.0), Table("cut", 1000, 16, 90.0)]
    own = [TableConstraint("idle", ranks=[2]), TableConstraint("other", ranks=[0])]
    constraints = Constraints(own, sharding_types=("column_wise",))
    limits = [round(1.1 * tables[0].weight_bytes)] * 3
    task = ShardingTask(tables, 3, 4096, limits, constraints=constraints)
    problem = Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER)
    found = polished(problem, Placement(tuple(map(whole, tables)), (2, 0, 1)), usable_types)
    assert {rank for shard, rank in zip(found.shards, found.ranks, strict=True) if shard.table.name == "cut"} == {0, 1}


def test_the_blocks_of_a_table_are_joined_on_one_of_its_own_ranks():
    """Another rank has less load, but a lookup kernel of its own, whose pooling the cut table does not share."""
    tables = [Table("alike", 400, 16, 5.0), Table("mean", 100, 16, 1.0, pooling="mean"), Table("cut", 300, 64, 4.0)]
    own = [TableConstraint("alike", ranks=[0]), TableConstraint("mean", ranks=[1])]
    task = ShardingTask(tables, 2, 64, 2**30, constraints=Constraints(own, sharding_types=("column_wise",)))
    problem = Problem(task, load_cost_models("h100"), WEIGHTS_AND_OPTIMIZER)
    halves = Shard(tables[2], 0, 32), Shard(tables[2], 32, 32)
    found = polished(problem, Placement((*map(whole, tables[:2]), *halves), (0, 1, 0, 1)), usable_types)
    assert found.ranks == (0, 1, 0)


def test_no_placement_is_priced_twice(monkeypatch):
    """The exchange of two tables is a change of either, and equal blocks of a table may change places."""
    tables = [Table(f"t{at}", 400 + at, 32, 5.0 + at) for at in range(4)]
    task = ShardingTask(tables, 3, 512, 2**30, constraints=Constraints(sharding_types=("column_wise",)))
    problem, priced = Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER), list[tuple]()

    def recorded(problem, placements):
        for each in placements:
            held = zip(each.shards, each.ranks, strict=True)
            priced.append(tuple(sorted((shard.table.name, shard.embedding_dim, rank) for shard, rank in held)))
        return placement_costs(problem, placements)

    monkeypatch.setattr(polish, "placement_costs", recorded)
    polished(problem, on_rank_0(task), usable_types)
    assert len(priced) > 30
    assert len(set(priced)) == len(priced)
