import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.columns import beam_search
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import WEIGHTS_AND_OPTIMIZER
from neuroshard_pipeline.search.moves import layout_of
from neuroshard_pipeline.search.params import REFINEMENT, SearchParams
from neuroshard_pipeline.search.placement import placement_costs
from neuroshard_pipeline.search.refine import refine, refined_placements
from neuroshard_pipeline.search.simulator import Caution, with_predicted_cost
from search.brute_force import best_placement_ms
from search.scalar_oracle import ScalarOracle
from search.small_models import small_models
from search.tasks import random_task

SEARCH = SearchParams(num_candidates=3, beam_width=1, max_steps=1, num_caps=3, min_cap_ratio=1.0, max_cap_ratio=1.5)
BRIEF = REFINEMENT.model_copy(update={"max_rounds": 8})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 10), st.integers(1, 5), st.floats(0.3, 1.0), st.booleans())
def test_never_worse_always_within_memory_and_honest_about_its_cost(seed, num_tables, world_size, tightness, uneven):
    task = random_task(np.random.default_rng(seed), num_tables, world_size, tightness, uneven=uneven)
    kinds = ShardKinds(task, small_models(seed), WEIGHTS_AND_OPTIMIZER)
    try:
        start = beam_search(kinds, SEARCH)
    except DoesNotFitError:
        return
    found = refine(start, kinds, BRIEF, np.random.default_rng(0))
    assert found.cost <= start.cost
    assert placement_costs(found.kinds[None], found.ranks[None], kinds)[0] == pytest.approx(found.cost, abs=10)
    kinds.plan(found.kinds, found.ranks, "neuroshard_plus")  # refuses uncovered columns and too little memory


def test_the_same_seed_gives_the_same_plan():
    task, models = random_task(np.random.default_rng(5), 12, 4, 0.6), small_models(5)
    found = []
    for _ in range(2):
        kinds = ShardKinds(task, models, WEIGHTS_AND_OPTIMIZER)
        found.append(refine(beam_search(kinds, SEARCH), kinds, BRIEF, np.random.default_rng(3)))
    assert found[0].cost == found[1].cost
    assert found[0].ranks.tolist() == found[1].ranks.tolist()


def test_more_rounds_never_cost_more_and_beat_the_best_table_wise_plan():
    task, models = random_task(np.random.default_rng(8), 6, 2, 0.3), small_models(8)
    kinds = ShardKinds(task, models, WEIGHTS_AND_OPTIMIZER)
    start = beam_search(kinds, SEARCH)
    costs = [
        refine(start, kinds, REFINEMENT.model_copy(update={"max_rounds": rounds}), np.random.default_rng(0)).cost
        for rounds in (0, 5, 60)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == start.cost
    oracle = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, SEARCH)
    table_wise = best_placement_ms(oracle, [(i, table.embedding_dim) for i, table in enumerate(task.tables)])
    assert costs[-1] / 1e9 <= table_wise + 1e-6


def judged_by_hand(plan, models, caution):
    """The cautious cost out of the predicted costs of a finished plan, rank by rank."""
    cost, dims, batch_size = plan.predicted, np.array(plan.dim_sums), plan.task.batch_size
    ready, late = [], []
    for rank, shards in enumerate(plan.shards_by_rank):
        sums = models.compute.shard_embeddings(shards, batch_size).sum(axis=0) if shards else np.zeros(32)
        upper = models.compute.interval_from_sums(sums, batch_size)[1] if shards else 0.0
        ready.append(cost.compute_ms[rank] + caution.interval * (upper - cost.compute_ms[rank]))
        ready[-1] += cost.backward_comm_ms[rank]
        late.append(models.comm.backward_interval_ms(dims, batch_size)[rank, 1] - cost.backward_comm_ms[rank])
    skew = np.array(ready) - min(ready)
    forward = models.comm.forward_ms(dims, skew, batch_size)
    late += models.comm.forward_interval_ms(dims, skew, batch_size)[:, 1] - forward
    ready += caution.interval * late
    together = models.comm.forward_ms(dims, np.zeros(len(dims)), batch_size).max()
    following = soft_maximum(ready + forward, caution.error)
    return (1 - caution.start_skew) * following + caution.start_skew * (soft_maximum(ready, caution.error) + together)


def soft_maximum(costs, relative_error):
    scale = relative_error * max(costs)
    return scale * math.log(sum(math.exp(c / scale) for c in costs) / len(costs)) if scale else max(costs)


CAUTIONS = [(0.0, 0.0, 0.0), (0.5, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.5, 0.5, 0.03), (1.0, 0.0, 0.1)]


@pytest.mark.parametrize("caution", [Caution(*values) for values in CAUTIONS])
@pytest.mark.parametrize("seed", range(3))
def test_caution_lowers_what_it_judges_by_and_never_raises_the_predicted_cost(seed, caution):
    task, models = random_task(np.random.default_rng(seed), 12, 4, 0.6), small_models(seed)
    kinds = ShardKinds(task, models, WEIGHTS_AND_OPTIMIZER)
    start = beam_search(kinds, SEARCH)
    distrust = {"caution": caution.start_skew, "interval_share": caution.interval, "expected_error": caution.error}
    params = REFINEMENT.model_copy(update={"max_rounds": 20, **distrust})
    assert params.distrust == caution
    found = refine(start, kinds, params, np.random.default_rng(0))
    before, after = (with_predicted_cost(kinds.plan(p.kinds, p.ranks, "any"), models) for p in (start, found))
    assert after.predicted_cost_ms <= before.predicted_cost_ms + 1e-8
    assert judged_by_hand(after, models, caution) <= judged_by_hand(before, models, caution) + 1e-9
    assert found.cost < start.cost or caution != Caution()
    layout = layout_of(found.kinds, found.ranks, kinds, caution)
    assert layout.judged / 1e9 == pytest.approx(judged_by_hand(after, models, caution), abs=1e-7)


def test_a_time_budget_ends_the_search():
    task, models = random_task(np.random.default_rng(8), 6, 2, 0.6), small_models(8)
    kinds = ShardKinds(task, models, WEIGHTS_AND_OPTIMIZER)
    start = beam_search(kinds, SEARCH)
    endless = REFINEMENT.model_copy(update={"max_rounds": 10**9, "time_budget_seconds": 0.05})
    assert refine(start, kinds, endless, np.random.default_rng(0)).cost <= start.cost


def test_runners_up_are_judged_dearer_than_the_best_and_none_costs_more_than_the_start():
    task, models = random_task(np.random.default_rng(11), 12, 4, 0.5), small_models(11)
    kinds = ShardKinds(task, models, WEIGHTS_AND_OPTIMIZER)
    start = beam_search(kinds, SEARCH)
    found = refined_placements(start, kinds, BRIEF, np.random.default_rng(0))
    assert len(found) > 2
    assert all(placement.cost <= start.cost for placement in found)
    judged = [layout_of(placement.kinds, placement.ranks, kinds, BRIEF.distrust).judged for placement in found]
    assert judged == sorted(judged)
    assert any(placement is start for placement in found)
