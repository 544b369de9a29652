import numpy as np
import pytest
from cost_models.machine import true_compute_ms

from evaluation.refinement.made_up import TASKS, campaigns, total_ms, train
from evaluation.refinement.test_candidates import SETTINGS
from neuroshard_pipeline.evaluation.refinement import RefineParams, refine_models
from neuroshard_pipeline.tables.frames import compute_samples_from_frame, tasks_from_frame

PARAMS = RefineParams(
    rounds=2, tasks_per_world_size=(3,), sharders=("neuroshard", "neuroshard_plus"), plans_per_task=3,
    max_compute_samples=15, max_comm_samples=5, compute_anchors=12, comm_anchors=6, seed=11,
)  # fmt: skip


@pytest.fixture(scope="module")
def refined(first, trained):
    tasks = tasks_from_frame(PARAMS.draw(first.table_pool, TASKS, "refine-"))
    return refine_models(trained.models, tasks, PARAMS, SETTINGS, campaigns(first, slowdown=1.4), train)


def test_every_round_adds_new_samples_to_the_training_set(first, refined):
    assert [entry["round"] for entry in refined.history] == [1, 2]
    for entry in refined.history:
        assert 0 < entry["compute_samples"] <= 15
        assert 0 < entry["comm_samples"] <= 5
        assert {"compute", "comm_forward", "comm_backward"} <= set(entry["errors"])
    for kind in ("compute", "comm"):
        samples, costs = (getattr(refined.training_set, f"{kind}_{what}") for what in ("samples", "costs"))
        assert set(samples["sample_id"]) == set(costs["sample_id"])
        added = sum(entry[f"{kind}_samples"] for entry in refined.history)
        known = getattr(first, f"{kind}_samples")["sample_id"]
        assert samples["sample_id"].nunique() == known.nunique() + added
        assert refined.new(f"{kind}_samples")["round"].unique().tolist() == [1, 2]


def test_new_costs_join_as_the_first_campaign_would_have_measured_them(refined):
    joined, measured = refined.training_set, refined.new("compute_costs")
    new = joined.compute_costs[joined.compute_costs["sample_id"].isin(measured["sample_id"])]
    samples = compute_samples_from_frame(refined.new("compute_samples"), joined.table_pool)
    truth = {sample.sample_id: true_compute_ms(sample.shards, sample.batch_size).sum() for sample in samples}
    assert total_ms(new) == pytest.approx([truth[name] for name in new["sample_id"]], rel=1e-3)
    assert total_ms(measured) == pytest.approx([1.4 * truth[name] for name in measured["sample_id"]], rel=1e-6)
    assert refined.history[0]["drift"]["compute"]["forward_ms"]["ratio"] == pytest.approx(1.4)


def test_the_models_know_the_new_samples_better_than_before(trained, refined):
    samples = compute_samples_from_frame(refined.new("compute_samples"), refined.training_set.table_pool)
    truth = np.array([true_compute_ms(sample.shards, sample.batch_size).sum() for sample in samples])

    def error(models):
        predicted = np.array([sum(models.compute_ms(sample.shards, sample.batch_size)) for sample in samples])
        return np.abs(predicted / truth - 1).mean()

    assert error(refined.trained.models) < error(trained.models)


def test_the_tasks_of_two_draws_differ(first):
    others = PARAMS.model_copy(update={"seed": 12})
    drawn = [
        params.draw(first.table_pool, TASKS, prefix) for params, prefix in ((PARAMS, "refine-"), (others, "judge-"))
    ]
    tables = [frame.groupby("task_id")["table"].apply(frozenset).tolist() for frame in drawn]
    assert not set(tables[0]) & set(tables[1])
    assert not set(drawn[0]["task_id"]) & set(drawn[1]["task_id"])
