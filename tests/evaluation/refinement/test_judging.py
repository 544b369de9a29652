import numpy as np
import pandas as pd
import pytest

from evaluation.refinement.made_up import TASKS, campaigns, train
from evaluation.refinement.test_candidates import SETTINGS
from neuroshard_pipeline.evaluation.refinement import (
    AFTER,
    BEFORE,
    JudgingParams,
    TrainingSet,
    judge_plans,
    summarise_refinement,
)
from neuroshard_pipeline.evaluation.refinement.summary import mean_with_interval, plan_changes
from neuroshard_pipeline.tables.frames import tasks_from_frame

PARAMS = JudgingParams(
    tasks_per_world_size=(3,), sharders=("neuroshard", "neuroshard_plus"), compute_anchors=10, comm_anchors=5, seed=12
)


@pytest.fixture(scope="module")
def tasks(first):
    return tasks_from_frame(PARAMS.draw(first.table_pool, TASKS, "judge-"))


def test_equal_models_differ_in_nothing(first, trained, tasks):
    pairs = {BEFORE: trained.models, AFTER: trained.models}
    judged = judge_plans(pairs, tasks, PARAMS, SETTINGS, campaigns(first))
    summary = summarise_refinement([], judged, "now")
    for values in summary["plans"].values():
        assert (values["tasks"], values["equal"], values["change"]) == (3, 3, 0.0)
        assert values["interval"] == [0.0, 0.0]
    assert summary["errors"][BEFORE] == summary["errors"][AFTER]
    assert judged.predictions["chosen"].all()


def test_each_pair_of_models_is_judged_on_what_it_chose(first, trained, tasks):
    few = first.compute_costs.head(20)
    known = first.compute_samples["sample_id"].isin(few["sample_id"])
    poor = train(
        TrainingSet(
            first.table_pool,
            first.compute_samples[known],
            first.compute_settings,
            few,
            first.comm_samples,
            first.comm_costs,
        )
    )
    judged = judge_plans({BEFORE: poor.models, AFTER: trained.models}, tasks, PARAMS, SETTINGS, campaigns(first, 1.2))
    assert judged.plan_costs.groupby(["models", "sharder"])["task_id"].nunique().tolist() == [3] * 4
    errors = summarise_refinement([], judged, "now")["errors"]
    count = {name: errors[name]["all"]["compute"]["count"] for name in (BEFORE, AFTER)}
    assert count[BEFORE] == count[AFTER] >= max(errors[name]["chosen"]["compute"]["count"] for name in count)
    measured = judged.predictions.pivot_table(index=["model", "sample_id"], columns="models", values="measured_ms")
    assert measured[BEFORE].to_numpy() == pytest.approx(measured[AFTER].to_numpy())  # one campaign for both
    assert judged.drift["compute"]["forward_ms"]["ratio"] == pytest.approx(1.2)


def test_the_interval_is_student_s():
    # The 97.5 % quantile of Student's t with one degree of freedom is 12.706, with nine it is 2.262.
    assert mean_with_interval(np.array([-0.1, 0.1]))["interval"] == pytest.approx([-1.2706, 1.2706], abs=1e-4)
    ten = np.arange(10) / 100
    reach = 2.262 * 0.0302765 / np.sqrt(10)
    assert mean_with_interval(ten)["change"] == pytest.approx(0.045)
    assert mean_with_interval(ten)["interval"] == pytest.approx([0.045 - reach, 0.045 + reach], abs=1e-5)
    assert mean_with_interval(np.array([0.2])) == {"change": 0.2, "interval": None}
    assert mean_with_interval(np.array([]))["change"] is None


def test_plans_are_compared_on_tasks_measured_with_both_models():
    rows = [
        ("one", BEFORE, 4.0), ("one", AFTER, 3.0),
        ("two", BEFORE, 2.0), ("two", AFTER, 2.2),
        ("three", BEFORE, 5.0),
        ("four", BEFORE, 5.0), ("four", AFTER, np.nan),
    ]  # fmt: skip
    costs = pd.DataFrame(rows, columns=["task_id", "models", "measured_compute_ms"]).assign(
        sharder="neuroshard", rank=0, predicted_compute_ms=1.0, predicted_forward_comm_ms=0.0,
        predicted_backward_comm_ms=0.0, measured_forward_comm_ms=0.0, measured_backward_comm_ms=0.0,
    )  # fmt: skip
    found = plan_changes(costs)["neuroshard"]
    assert (found["tasks"], found["before_ms"], found["after_ms"]) == (2, 3.0, 2.6)
    assert found["change"] == pytest.approx((-0.25 + 0.1) / 2)
    assert (found["better"], found["worse"], found["equal"]) == (1, 1, 0)
    assert found["changes"] == pytest.approx({"one": -0.25, "two": 0.1})
