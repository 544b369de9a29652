"""Refinement: measures shards and collectives of searched plans, and adds them to the training samples."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from cost_models.machine import true_compute_ms
from search.settings import LOCAL_SEARCH
from search.small_models import small_models
from search.tasks import random_task

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.evaluation.anchors import NO_ANCHORS, AnchorParams, choose_anchors
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.evaluation.refinement import (
    NewSamples,
    RefineParams,
    appended,
    campaign_id,
    candidate_plans,
    measure_new,
    new_comm_samples,
    new_compute_samples,
    next_round,
    of_campaign,
    training_data,
)
from neuroshard_pipeline.measurement import ComputeCampaign
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.frames import tasks_from_frame

from .made_up import TASKS, campaigns, first_campaign, total_ms, train

SETTINGS = SharderSettings(
    search=SearchParams(num_candidates=3, beam_width=2, max_steps=2, num_caps=4, min_cap_ratio=1.0, max_cap_ratio=1.5),
    local_search=LOCAL_SEARCH.model_copy(update={"max_rounds": 5}),
)
PARAMS = RefineParams(
    tasks_per_world_size=(1,), sharders=("neuroshard", "neuroshard_plus"), plans_per_task=4,
    max_compute_samples=1000, max_comm_samples=1000, seed=0,
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
    found = new_compute_samples(plans, set())
    wanted = {tuple(contents(shards)) for plan in plans for shards in plan.shards_by_rank if shards}
    assert sorted(map(tuple, (contents(sample.shards) for sample in found))) == sorted(wanted)
    assert all(sample.sample_id.startswith("rank-") for sample in found)


def test_known_samples_are_not_measured_again_and_limits_hold(plans):
    found = new_compute_samples(plans, set())
    assert new_compute_samples(plans, {sample.sample_id for sample in found}) == []
    collectives = new_comm_samples(plans, set())
    assert new_comm_samples(plans, {collectives[0].sample_id}) == collectives[1:]
    few = PARAMS.model_copy(update={"max_compute_samples": 2, "max_comm_samples": 1})
    assert NewSamples.of(plans, set(), few) == NewSamples(tuple(found[:2]), tuple(collectives[:1]))


def test_collectives_have_the_volumes_and_the_predicted_start_skew_of_their_plans(plans):
    collectives = new_comm_samples(plans, set())
    first, cost = collectives[0], plans[0].predicted
    ready = np.add(cost.compute_ms, cost.backward_comm_ms)
    assert first.dim_sums == plans[0].dim_sums
    assert first.start_skew_ms == pytest.approx(ready - ready.min(), abs=1e-4)
    volumes = [(plan.sharder, *sorted(plan.dim_sums)) for plan in plans]
    assert len(collectives) <= len(set(volumes))
    assert {tuple(sorted(sample.dim_sums)) for sample in collectives} == {each[1:] for each in volumes}


LITTLE = PARAMS.model_copy(
    update={"tasks_per_world_size": (3,), "plans_per_task": 3, "max_compute_samples": 15, "max_comm_samples": 5}
)
ANCHORS = AnchorParams(compute_samples=12, comm_samples=6)
NOTHING = MeasuredSamples(*[pd.DataFrame()] * 6)


@pytest.fixture(scope="module")
def first():
    return first_campaign()


@pytest.fixture(scope="module")
def models(first):
    return train(first)


def one_round(first, known, models, slowdown=1.4):
    tasks = tasks_from_frame(LITTLE.draw_tasks(first.table_pool, TASKS, next_round(known)))
    found = NewSamples.of(candidate_plans(tasks, models, LITTLE, SETTINGS), first.sample_ids | known.sample_ids, LITTLE)
    measured = measure_new(found, first.table_pool, campaigns(slowdown), choose_anchors(first, ANCHORS))
    return appended(known, measured, first)


@pytest.fixture(scope="module")
def refined(first, models):
    """Two rounds on a machine that has become 40 % slower since the first campaign."""
    nothing = dataclasses.replace(NOTHING, table_pool=first.table_pool)
    return one_round(first, one_round(first, nothing, models), models)


def test_every_round_appends_new_samples(first, refined):
    for samples, costs, most in (
        (refined.compute_samples, refined.compute_costs, LITTLE.max_compute_samples),
        (refined.comm_samples, refined.comm_costs, LITTLE.max_comm_samples),
    ):
        assert samples["round"].unique().tolist() == costs["round"].unique().tolist() == [1, 2]
        assert set(samples["sample_id"]) == set(costs["sample_id"])
        assert not set(samples["sample_id"]) & first.sample_ids
        per_round = samples.groupby("round")["sample_id"].nunique()
        assert per_round.between(1, most).all()
        assert per_round.sum() == samples["sample_id"].nunique()
    assert refined.compute_settings["sample_id"].tolist() == refined.compute_samples["sample_id"].unique().tolist()


def test_new_costs_are_those_that_the_first_campaign_would_have_measured(refined):
    samples = {sample.sample_id: sample for sample in refined.compute()}
    truth = [
        true_compute_ms(samples[name].shards, samples[name].batch_size).sum()
        for name in refined.compute_costs.sample_id
    ]
    assert total_ms(refined.compute_costs) == pytest.approx(truth, rel=1e-3)


def test_models_trained_on_the_union_predict_the_new_samples_better(first, models, refined):
    data = training_data(first, refined)
    for field in dataclasses.fields(MeasuredSamples):
        assert list(getattr(data, field.name).columns) == list(getattr(first, field.name).columns)
    samples = refined.compute()
    truth = np.array([true_compute_ms(sample.shards, sample.batch_size).sum() for sample in samples])

    def error(models):
        predicted = np.array([sum(models.compute_ms(sample.shards, sample.batch_size)) for sample in samples])
        return np.abs(predicted / truth - 1).mean()

    assert error(train(data)) < error(models)


def test_every_round_has_other_tasks(first):
    drawn = [LITTLE.draw_tasks(first.table_pool, TASKS, number) for number in (1, 2)]
    tables = [set(frame.groupby("task_id")["table"].apply(frozenset)) for frame in drawn]
    assert not tables[0] & tables[1]
    assert not set(drawn[0]["task_id"]) & set(drawn[1]["task_id"])


def test_samples_of_another_first_campaign_are_ignored_with_a_warning(first, refined, caplog):
    other = dataclasses.replace(first, compute_costs=first.compute_costs.assign(forward_ms=1.0))
    assert campaign_id(other) != campaign_id(first) == campaign_id(dataclasses.replace(first))
    assert of_campaign(refined, other).sample_ids == frozenset()
    assert "the table pool or the first campaign has changed" in caplog.text
    assert training_data(other, refined).sample_ids == other.sample_ids
    assert next_round(of_campaign(refined, other)) == 1


def test_without_new_samples_the_training_data_is_the_first_campaign(first):
    assert training_data(first, NOTHING).sample_ids == first.sample_ids
    nothing = measure_new(NewSamples((), ()), first.table_pool, campaigns(), NO_ANCHORS)
    assert training_data(first, appended(NOTHING, nothing, first)).sample_ids == first.sample_ids


@pytest.mark.parametrize("backend", ["recorded", "fbgemm_cpu"])
def test_the_refusal_of_a_backend_that_measures_nothing_names_those_that_measure(backend):
    found = Campaigns(ComputeCampaign(SimpleNamespace(backend=backend), 0), None)
    if backend == "fbgemm_cpu":
        found.require_measuring()
        return
    with pytest.raises(MeasurementError, match=r"'recorded' cannot measure.*fbgemm_cpu or fbgemm_cuda"):
        found.require_measuring()
