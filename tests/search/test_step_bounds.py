"""Lower bounds of benchmarks/search/step_bounds.py on whole steps, against the cheapest of all plans of tiny tasks."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from step_bounds import step_bound

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.price import placement_costs
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models


@cache
def shipped_models():
    return load_cost_models("h100")


def ways(table, problem):
    """All ways to shard and place a table of at most 8 columns. Each way is a list of pairs of a shard and its rank."""
    task, found = problem.task, []
    ranks, local = range(task.world_size), task.ranks_per_host
    halves = [Shard(table, 0, 4), Shard(table, 4, 4)] if table.embedding_dim == 8 else []
    for kind in usable_types(table, problem):
        if kind == "column_wise":
            found += [[(whole(table), rank)] for rank in ranks]
            if halves and table.pooling != "none":
                found += [list(zip(halves, pair, strict=True)) for pair in itertools.product(ranks, repeat=2)]
        elif kind == "data_parallel":
            found.append([(whole(table, kind), rank) for rank in ranks])
        elif kind == "row_wise":
            found.append(list(zip(row_shards(table, kind, task.world_size), ranks, strict=True)))
        else:
            hosts = [range(first, first + local) for first in range(0, task.world_size, local)]
            blocks = [(0, table.embedding_dim)]
            if kind == "grid_shard" and halves:
                blocks = [(0, 4), (4, 4)]
            placed = [[list(zip(row_shards(table, kind, local, *b), h, strict=True)) for h in hosts] for b in blocks]
            found += [list(itertools.chain(*chosen)) for chosen in itertools.product(*placed)]
    return found


def cheapest_ms(problem):
    """The lowest predicted cost of all plans that fit memory."""
    fitting = []
    for chosen in itertools.product(*(ways(table, problem) for table in problem.task.tables)):
        shards, ranks = zip(*itertools.chain(*chosen), strict=True)
        used = problem.memory.bytes_of_ranks(shards, ranks, problem.task)
        if (used <= problem.limits).all():
            fitting.append(Placement(shards, ranks))
    return min(cost_ms for cost_ms, _ in placement_costs(problem, fitting))


def drawn_tables(rng, count, **fields):
    return [
        Table(
            f"t{index}",
            int(10 ** rng.uniform(2, 7)),
            int(rng.choice((4, 8))),
            float(rng.choice((1, 3, 20, 100))),
            num_features=int(rng.integers(1, 3)),
            **fields,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(("count", "world_size", "local"), [(1, 2, 2), (3, 2, 2), (2, 2, 1), (1, 4, 2), (2, 4, 2)])
def test_no_plan_is_cheaper_than_the_bound(seed, count, world_size, local):
    rng = np.random.default_rng([seed, count, world_size, local])
    task = ShardingTask(
        drawn_tables(rng, count),
        world_size,
        int(rng.choice((256, 8192, 65536))),
        2**40,
        optimizer="rowwise_adagrad",
        local_world_size=local,
        pipelines_input_dist=bool(rng.integers(2)),
    )
    problem = Problem(task, shipped_models(), WEIGHTS_AND_OPTIMIZER)
    bound, cheapest = step_bound(problem), cheapest_ms(problem)
    assert 0.2 * cheapest < bound.step_ms <= cheapest + 1e-9
    assert sum(bound.types.values()) == count


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_of_a_sequence_table_beside_another_module_is_cheaper_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    drawn = drawn_tables(rng, 2, module="a")
    tables = [replace(drawn[0], pooling="none", module="b", num_features=1), drawn[1]]
    task = ShardingTask(tables, 2, 4096, 2**40)
    problem = Problem(task, shipped_models(), WEIGHTS_AND_OPTIMIZER)
    assert step_bound(problem).step_ms <= cheapest_ms(problem) + 1e-9


def test_a_table_that_no_rank_has_memory_for_must_have_its_rows_cut():
    task = ShardingTask([Table("giant", 40_000_000, 4, 1.0)], 4, 1024, 2**40)
    free = Problem(task, shipped_models(), WEIGHTS_AND_OPTIMIZER)
    tight = Problem(replace(task, memory_bytes=200_000_000), shipped_models(), WEIGHTS_AND_OPTIMIZER)
    assert set(step_bound(free).types) == {"column_wise"}
    assert set(step_bound(tight).types) == {"row_wise"}
    assert step_bound(free).step_ms <= step_bound(tight).step_ms <= cheapest_ms(tight) + 1e-9


def test_nothing_is_proved_for_other_models_or_for_replica_groups():
    task = ShardingTask([Table("a", 1000, 8, 2.0)], 2, 256, 2**40)
    assert step_bound(Problem(task, small_models(), WEIGHTS_AND_OPTIMIZER)) is None
    groups = replace(task, num_replica_groups=2, sync_interval=10)
    assert step_bound(Problem(groups, shipped_models(), WEIGHTS_AND_OPTIMIZER)) is None
