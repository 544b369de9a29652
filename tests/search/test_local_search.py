import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.beam import beam_search
from neuroshard_pipeline.search.local_search import local_search
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.search.problem import Problem
from search.brute_force import best_placement_ms
from search.scalar_oracle import ScalarOracle
from search.settings import LOCAL_SEARCH, WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_task

SEARCH = SearchParams(num_candidates=3, beam_width=1, max_steps=1, num_caps=3, min_cap_ratio=1.0, max_cap_ratio=1.5)
BRIEF = LOCAL_SEARCH.model_copy(update={"max_rounds": 8})


@given(st.integers(0, 2**32 - 1), st.integers(1, 10), st.integers(1, 5), st.floats(0.3, 1.0), st.booleans())
def test_local_search_returns_a_valid_plan_that_is_never_worse(seed, num_tables, world_size, tightness, uneven):
    task = random_task(np.random.default_rng(seed), num_tables, world_size, tightness, uneven=uneven)
    problem = Problem(task, small_models(seed), WEIGHTS_AND_OPTIMIZER)
    try:
        start = beam_search(problem, SEARCH)[0]
    except DoesNotFitError:
        return
    found = local_search(start, problem, BRIEF, np.random.default_rng(0))[0]
    assert found.cost <= start.cost
    placement = problem.placement(found.kinds, found.ranks)
    plan = price_plan(problem, placement, "neuroshard_plus")  # refuses an invalid plan
    assert plan.predicted_cost_ms == pytest.approx(found.cost / 1e9, abs=1e-8)


def test_the_same_seed_gives_the_same_plan():
    task, models = random_task(np.random.default_rng(5), 12, 4, 0.6), small_models(5)
    found = []
    for _ in range(2):
        problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
        found.append(local_search(beam_search(problem, SEARCH)[0], problem, BRIEF, np.random.default_rng(3))[0])
    assert found[0].cost == found[1].cost
    assert found[0].ranks.tolist() == found[1].ranks.tolist()


def test_more_rounds_never_cost_more_and_beat_the_best_table_wise_plan():
    """The best placement of whole tables costs less than the start but more than the final plan, which has splits."""
    task, models = random_task(np.random.default_rng(38), 6, 2, 0.9), small_models(38)
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    start = beam_search(problem, SEARCH)[0]
    costs = [
        local_search(start, problem, LOCAL_SEARCH.model_copy(update={"max_rounds": rounds}), np.random.default_rng(0))[
            0
        ].cost
        for rounds in (0, 5, 60)
    ]
    assert start.cost == costs[0] > costs[1] > costs[2]
    oracle = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, SEARCH)
    table_wise = best_placement_ms(oracle, [(i, table.embedding_dim) for i, table in enumerate(task.tables)])
    assert costs[-1] / 1e9 < 0.99 * table_wise < table_wise < start.cost / 1e9


def test_a_time_budget_ends_the_search():
    task, models = random_task(np.random.default_rng(8), 6, 2, 0.6), small_models(8)
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    start = beam_search(problem, SEARCH)[0]
    endless = LOCAL_SEARCH.model_copy(update={"max_rounds": 10**9, "time_budget_seconds": 0.05})
    assert local_search(start, problem, endless, np.random.default_rng(0))[0].cost <= start.cost


@pytest.mark.parametrize("seed", range(3))
def test_fifty_rounds_lower_the_predicted_cost_of_the_plan(seed):
    task, models = random_task(np.random.default_rng(seed), 12, 4, 0.6), small_models(seed)
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    start = beam_search(problem, SEARCH)[0]
    params = LOCAL_SEARCH.model_copy(update={"max_rounds": 50})
    found = local_search(start, problem, params, np.random.default_rng(0))[0]
    before, after = (price_plan(problem, problem.placement(s.kinds, s.ranks), "any") for s in (start, found))
    assert after.predicted_cost_ms < before.predicted_cost_ms
    assert after.predicted_cost_ms == pytest.approx(found.cost / 1e9, abs=1e-8)


def test_runners_up_are_in_order_of_cost_and_none_costs_more_than_the_start():
    task, models = random_task(np.random.default_rng(11), 12, 4, 0.5), small_models(11)
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    start = beam_search(problem, SEARCH)[0]
    found = local_search(start, problem, BRIEF, np.random.default_rng(0))
    assert len(found) > 2
    costs = [state.cost for state in found]
    assert costs == sorted(costs)
    assert costs[-1] <= start.cost
    assert any(state is start for state in found)
