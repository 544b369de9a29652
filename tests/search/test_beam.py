import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import DoesNotFitError, memory_text
from neuroshard_pipeline.search.beam import beam_search
from neuroshard_pipeline.search.packing import pack_by_size
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.brute_force import best_placement_ms, best_with_halvings_ms
from search.scalar_oracle import ScalarOracle
from search.settings import PAPER_SEARCH, WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_task

SMALL_SEARCH = SearchParams(
    num_candidates=4, beam_width=2, max_steps=3, num_caps=5, min_cap_ratio=1.0, max_cap_ratio=1.5
)


def searched_ms(task, models, params):
    """Cost of the plan found, predicted from the finished plan; None if nothing fits."""
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    try:
        state = beam_search(problem, params)[0]
    except DoesNotFitError:
        return None
    plan = price_plan(problem, problem.placement(state.kinds, state.ranks), "neuroshard")
    assert plan.predicted_cost_ms == pytest.approx(state.cost / 1e9, abs=1e-8)
    return plan.predicted_cost_ms


def oracle_ms(task, models, params):
    found = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, params).search()
    return None if found is None else found[0]


@pytest.mark.parametrize("seed", range(25))
def test_beam_search_finds_the_cost_of_the_scalar_oracle(seed):
    rng = np.random.default_rng(seed)
    task = random_task(
        rng, int(rng.integers(3, 13)), int(rng.integers(1, 5)), rng.uniform(0.3, 1.0), uneven=seed % 2 == 1
    )
    models = small_models(seed)
    expected = oracle_ms(task, models, SMALL_SEARCH)
    found = searched_ms(task, models, SMALL_SEARCH)
    if expected is not None:  # if the oracle's packing gives up, the search tries integer programming
        assert found == pytest.approx(expected, abs=1e-5)


def test_beam_search_finds_the_cost_of_the_oracle_with_the_settings_of_the_paper():
    rng = np.random.default_rng(1)
    task, models = random_task(rng, 6, 3, 0.7), small_models(1)
    assert searched_ms(task, models, PAPER_SEARCH) == pytest.approx(oracle_ms(task, models, PAPER_SEARCH), abs=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_table_wise_search_is_never_cheaper_than_brute_force(seed):
    rng = np.random.default_rng(100 + seed)
    task, models = random_task(rng, int(rng.integers(2, 7)), 2, 0.2), small_models(seed)
    params = SMALL_SEARCH.model_copy(update={"max_steps": 0})
    oracle = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, params)
    state = [(index, table.embedding_dim) for index, table in enumerate(task.tables)]
    optimum, found = best_placement_ms(oracle, state), searched_ms(task, models, params)
    assert optimum is not None  # memory is ample
    assert found is not None
    assert optimum - 1e-9 <= found


@pytest.mark.parametrize("seed", range(5))
def test_search_with_splits_is_never_cheaper_than_brute_force(seed):
    rng = np.random.default_rng(200 + seed)
    task, models = random_task(rng, 3, 2, 0.5), small_models(seed)
    params = SMALL_SEARCH.model_copy(update={"max_steps": 2})
    optimum = best_with_halvings_ms(ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, params), 2)
    found = searched_ms(task, models, params)
    if optimum is not None:
        assert optimum - 1e-9 <= found <= 1.3 * optimum


def missing_in_words(task, missing):
    """What the error says: memory is missing for a shard of 4 columns, all tables, or shards left by packing."""
    limits = task.memory_limits
    narrowest = [WEIGHTS_AND_OPTIMIZER.table_bytes(table, 4, task) for table in task.tables]
    share = (sum(limits) + missing) / task.world_size
    if max(narrowest) > max(limits) and (missing <= 0 or max(narrowest) > share):
        most = max(narrowest)
        return f"needs {memory_text(most)}, {memory_text(most - max(limits))} more than any rank has"
    if missing > 0:
        return f": {memory_text(missing)} are missing"
    shards = [size for size, table in zip(narrowest, task.tables, strict=True) for _ in range(table.embedding_dim // 4)]
    _, left_over = pack_by_size(shards, limits)
    return f" for {len(left_over)} of the shards, {memory_text(sum(shards[index] for index in left_over))} in all"


@given(
    seed=st.integers(0, 2**32 - 1),
    num_tables=st.integers(1, 12),
    world_size=st.integers(1, 6),
    tightness=st.floats(0.2, 1.3),
    uneven=st.booleans(),
)
def test_every_plan_fits_or_the_error_names_the_missing_bytes(seed, num_tables, world_size, tightness, uneven):
    task = random_task(np.random.default_rng(seed), num_tables, world_size, tightness, uneven=uneven)
    problem = Problem(task, small_models(seed), WEIGHTS_AND_OPTIMIZER)
    refusal = None
    try:
        state = beam_search(problem, SMALL_SEARCH)[0]
    except DoesNotFitError as error:
        refusal = str(error)
    missing = int(problem.bytes[problem.whole_tables].sum()) - sum(task.memory_limits)
    if refusal is not None:
        assert refusal.startswith(f"{task.task_id}: ")
        assert missing_in_words(task, missing) in refusal
        return
    assert missing <= 0
    plan = price_plan(problem, problem.placement(state.kinds, state.ranks), "neuroshard")  # checks coverage and memory
    assert sum(plan.dim_sums) == sum(table.embedding_dim for table in task.tables)
    assert all(used <= limit for used, limit in zip(plan.memory_bytes, task.memory_limits, strict=True))
    assert all(shard.embedding_dim % 4 == 0 for shard in plan.shards)


def test_a_table_that_needs_splitting_to_fit_is_split():
    task = ShardingTask([Table("wide", 1000, 16, 1.0)], 4, 512, 16_000)
    problem = Problem(task, small_models(), WEIGHTS_AND_OPTIMIZER)
    assert len(beam_search(problem, SMALL_SEARCH)[0].kinds) >= 4
