import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_task

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.milp import MilpSharder, assign
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

MODELS = small_models()


def best_by_trying_all(task):
    """Least largest sum of single-table costs in ms over all placements that fit; infinite where none does."""
    singles = [
        float(MODELS.compute.costs_from_sums(MODELS.compute.shard_embeddings([whole(table)], 512), 512).sum())
        for table in task.tables
    ]
    sizes = [WEIGHTS_AND_OPTIMIZER.table_bytes(table, table.embedding_dim, task) for table in task.tables]
    best = np.inf
    for ranks in itertools.product(range(task.world_size), repeat=len(sizes)):
        used = np.bincount(ranks, weights=sizes, minlength=task.world_size)
        if (used <= task.memory_limits).all():
            best = min(best, np.bincount(ranks, weights=singles, minlength=task.world_size).max())
    return best


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 3), st.floats(0.3, 1.05), st.booleans())
def test_it_finds_the_optimum_and_its_bound_is_one(seed, num_tables, world_size, tightness, uneven):
    task = random_task(np.random.default_rng(seed), num_tables, world_size, tightness, uneven=uneven)
    best = best_by_trying_all(task)
    found = assign(Problem(task, MODELS, WEIGHTS_AND_OPTIMIZER), time_limit_seconds=10.0, gap=0.0)
    assert found.impossible == np.isinf(best)
    if np.isfinite(best):
        assert found.cost_ms == pytest.approx(best, rel=1e-6)
        assert found.bound_ms <= best * (1 + 1e-6)


def test_the_bound_holds_where_time_ends_the_search():
    task = random_task(np.random.default_rng(1), 40, 4, 0.4)
    found = assign(Problem(task, MODELS, WEIGHTS_AND_OPTIMIZER), time_limit_seconds=2.0, gap=0.05)
    assert 0.0 < found.bound_ms <= found.cost_ms <= found.bound_ms * 1.06


def test_a_task_for_split_tables_only_is_refused_as_proved():
    task = ShardingTask([Table(f"t{index}", 1000, 8, 1.0) for index in range(3)], 2, 16, 50_000)
    sharder = MilpSharder(time_limit_seconds=10.0, gap=0.0)
    with pytest.raises(DoesNotFitError, match=r"milp proved that no placement of whole tables .* 50000 at most"):
        sharder.shard(Problem(task, MODELS, WEIGHTS_AND_OPTIMIZER), np.random.default_rng(0))
