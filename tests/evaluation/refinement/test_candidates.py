import numpy as np
import pytest
from search.small_models import small_models
from search.tasks import random_task

from neuroshard_pipeline.evaluation.refinement import RefineParams
from neuroshard_pipeline.evaluation.refinement.candidates import candidate_plans, new_comm_samples, new_compute_samples
from neuroshard_pipeline.search.params import REFINEMENT, SearchParams
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import shard

SETTINGS = SharderSettings(
    search=SearchParams(num_candidates=3, beam_width=2, max_steps=2, num_caps=4, min_cap_ratio=1.0, max_cap_ratio=1.5),
    plus=REFINEMENT.model_copy(update={"max_rounds": 5}),
)
PARAMS = RefineParams(
    rounds=1, tasks_per_world_size=(1,), sharders=("neuroshard", "neuroshard_plus"), plans_per_task=4,
    max_compute_samples=1000, max_comm_samples=1000, compute_anchors=0, comm_anchors=0, seed=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def tasks():
    fits, does_not = (
        random_task(np.random.default_rng(seed), 8, 3, tightness) for seed, tightness in ((0, 0.4), (2, 1.1))
    )
    return [fits, does_not]


@pytest.fixture(scope="module")
def plans(tasks):
    return candidate_plans(tasks, small_models(), PARAMS, SETTINGS)


def contents(shards):
    return sorted((part.table.name, part.embedding_dim) for part in shards)


def test_best_plans_come_first_and_a_task_that_cannot_fit_has_none(tasks, plans):
    best = [shard(tasks[0], small_models(), name, SETTINGS) for name in PARAMS.sharders]
    assert [plan.ranks for plan in plans[:2]] == [plan.ranks for plan in best]
    assert [plan.sharder for plan in plans[:2]] == list(PARAMS.sharders)
    assert {plan.task for plan in plans} == {tasks[0]}


def test_every_shard_set_is_measured_once(plans):
    found = new_compute_samples(plans, set(), 1000)
    wanted = {tuple(contents(shards)) for plan in plans for shards in plan.shards_by_rank if shards}
    assert sorted(map(tuple, (contents(sample.shards) for sample in found))) == sorted(wanted)
    assert all(sample.sample_id.startswith("rank-") for sample in found)


def test_what_is_known_is_not_measured_again_and_limits_hold(plans):
    found = new_compute_samples(plans, set(), 1000)
    assert new_compute_samples(plans, {sample.sample_id for sample in found}, 1000) == []
    assert new_compute_samples(plans, set(), 2) == found[:2]
    collectives = new_comm_samples(plans, set(), 1000)
    assert new_comm_samples(plans, {collectives[0].sample_id}, 2) == collectives[1:3]


def test_collectives_have_the_volumes_and_the_simulated_start_skew_of_their_plans(plans):
    collectives = new_comm_samples(plans, set(), 1000)
    first, cost = collectives[0], plans[0].predicted
    ready = np.add(cost.compute_ms, cost.backward_comm_ms)
    assert first.dim_sums == plans[0].dim_sums
    assert first.start_skew_ms == pytest.approx(ready - ready.min(), abs=1e-4)
    volumes = [(plan.sharder, *sorted(plan.dim_sums)) for plan in plans]
    assert len(collectives) <= len(set(volumes))
    assert {tuple(sorted(sample.dim_sums)) for sample in collectives} == {each[1:] for each in volumes}
