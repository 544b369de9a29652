import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_task

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.milp import MilpSharder
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

MODELS = small_models()


def table_costs_ms(task):
    """Predicted compute cost of every table alone on a rank."""
    embeddings = (MODELS.compute.shard_embeddings([whole(table)], 512) for table in task.tables)
    return [float(MODELS.compute.costs_from_sums(embedding, 512).sum()) for embedding in embeddings]


def largest_sum_ms(task, ranks):
    """Cost of the most expensive rank; a rank costs the sum of what each of its tables would cost alone."""
    return np.bincount(ranks, weights=table_costs_ms(task), minlength=task.world_size).max()


def best_by_trying_all(task):
    """The lowest `largest_sum_ms` of all placements that fit; infinite if none does."""
    sizes = [WEIGHTS_AND_OPTIMIZER.table_bytes(table, table.embedding_dim, task) for table in task.tables]
    costs, best = table_costs_ms(task), np.inf
    for ranks in itertools.product(range(task.world_size), repeat=len(sizes)):
        used = np.bincount(ranks, weights=sizes, minlength=task.world_size)
        if (used <= task.memory_limits).all():
            best = min(best, np.bincount(ranks, weights=costs, minlength=task.world_size).max())
    return best


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 3), st.floats(0.3, 1.05), st.booleans())
def test_milp_finds_the_optimum_or_proves_that_nothing_fits(seed, num_tables, world_size, tightness, uneven):
    task = random_task(np.random.default_rng(seed), num_tables, world_size, tightness, uneven=uneven)
    best = best_by_trying_all(task)
    problem = Problem(task, MODELS, WEIGHTS_AND_OPTIMIZER)
    try:
        placement = MilpSharder(time_limit_seconds=10.0, gap=0.0).shard(problem, np.random.default_rng(0))
    except DoesNotFitError:
        assert np.isinf(best)
    else:
        assert largest_sum_ms(task, placement.ranks) == pytest.approx(best, rel=1e-6)


def test_a_task_that_fits_only_with_split_tables_is_refused_with_a_proof():
    task = ShardingTask([Table(f"t{index}", 1000, 8, 1.0) for index in range(3)], 2, 16, 50_000)
    sharder = MilpSharder(time_limit_seconds=10.0, gap=0.0)
    with pytest.raises(DoesNotFitError, match=r"milp proved that no placement of whole tables .* at most 50000 bytes"):
        sharder.shard(Problem(task, MODELS, WEIGHTS_AND_OPTIMIZER), np.random.default_rng(0))


def test_tables_may_fill_the_memory_of_their_ranks_to_the_last_byte():
    tables = [Table(f"t{index}", 1000, 8, 1.0) for index in range(2)]
    size = WEIGHTS_AND_OPTIMIZER.table_bytes(tables[0], 8, ShardingTask(tables, 2, 16, 2**30))
    problem = Problem(ShardingTask(tables, 2, 16, size), MODELS, WEIGHTS_AND_OPTIMIZER)
    placement = MilpSharder(time_limit_seconds=10.0, gap=0.0).shard(problem, np.random.default_rng(0))
    assert sorted(placement.ranks) == [0, 1]
