import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from neuroshard_pipeline.evaluation.plan_intervals import BOUND_COLUMNS
from neuroshard_pipeline.evaluation.summary import summarise

NOISE = {"tasks": 3, "difference": 0.02, "per_task": 0.03, "other_programs": 0.0}
NO_INTERVALS = pd.DataFrame(columns=["task_id", "sharder", "rank", *BOUND_COLUMNS])


def costs_of(steps):
    """`search.plan_costs` on two ranks from `{(task, sharder): (predicted step, measured step)}`."""
    parts = ("compute", "forward_comm", "backward_comm", "input_dist", "reduction", "module")
    rows = [
        {
            "task_id": task,
            "sharder": sharder,
            "rank": rank,
            **{f"{kind}_{part}_ms": 1.0 for kind in ("predicted", "measured") for part in parts},
            "predicted_step_ms": predicted,
            "measured_step_ms": measured,
        }
        for (task, sharder), (predicted, measured) in steps.items()
        for rank in range(2)
    ]
    return pd.DataFrame(rows)


def summary_of(steps, failed=()):
    pairs = [*((*key, None) for key in steps), *((*key, f"{key[0]}: 5 bytes are missing") for key in failed)]
    attempts = pd.DataFrame(pairs, columns=["task_id", "sharder", "error"]).assign(seconds=0.5)
    return json.loads(json.dumps(summarise(costs_of(steps), attempts, NO_INTERVALS, NOISE, "judged by hand.")))


def test_means_are_over_the_tasks_that_all_compared_sharders_solved():
    nan = float("nan")
    steps = {("a", "one"): (9.0, 10.0), ("a", "two"): (1.0, 2.0), ("b", "two"): (5.0, 500.0), ("c", "one"): (1.0, nan)}
    steps |= {("c", "two"): (1.0, nan), ("b", "one"): (1.0, nan)}
    summary = summary_of(steps, [("b", "rare"), ("a", "rare")])
    assert (summary["num_tasks"], summary["num_common_tasks"], summary["basis"]) == (3, 1, "measured")
    one, two, rare = (summary["sharders"][name] for name in ("one", "two", "rare"))
    assert (one["mean_measured_step_ms"], two["mean_measured_step_ms"]) == (10.0, 2.0)
    assert (one["mean_predicted_step_ms"], rare["mean_measured_step_ms"]) == (9.0, None)
    assert (rare["tasks_solved"], rare["tasks_tried"]) == (0, 2)
    assert rare["failures"]["b"] == "b: 5 bytes are missing"
    assert two["mean_seconds_per_task"] == 0.5
    assert summary["noise"]["resolution"] == pytest.approx(1.03**1.96 - 1, rel=0.03)
    assert (summary["judge"], summary["world_sizes"]) == ("judged by hand.", [2])


@pytest.mark.parametrize(("tasks", "verdict"), [(4, "too few tasks"), (5, "cheaper")])
def test_sharders_are_compared_by_predicted_steps_if_no_plan_was_measured(tasks, verdict):
    steps = {}
    for index in range(tasks):
        steps |= {
            (f"task-{index}", "neuroshard_plus"): (1.0, None),
            (f"task-{index}", "two"): (2.0 + 0.1 * index, None),
        }
    summary = summary_of(steps)
    assert (summary["basis"], summary["num_common_tasks"]) == ("predicted", tasks)
    (pair,) = summary["pairs"]
    assert pair["ratio"] == pytest.approx(1.0 / (2.0 + 0.05 * (tasks - 1)))
    assert pair["verdict"] == verdict
    assert summary["agreement"]["median_error"] is None


def test_agreement_counts_equal_plans_once_and_ranks_plans_within_tasks():
    steps = {("a", "one"): (1.0, 2.0), ("a", "two"): (2.0, 4.0), ("a", "three"): (3.0, 3.0), ("a", "same"): (1.0, 2.0)}
    found = summary_of(steps)["agreement"]
    assert found["plans"] == 3
    assert found["median_ratio"] == found["median_error"] == 0.5
    assert found["tau"] == pytest.approx(1 / 3)
    assert found["tau_limit"] == pytest.approx(1.0, abs=1e-6)  # the noise of 3 % does not swap such steps


@pytest.mark.parametrize("logs", [[0.0, 0.02, 0.04, 0.06], [0.0, 0.02, 0.05, 0.2], [0.0, 0.1, 0.2, 0.5]])
def test_noise_limits_the_tau_of_a_prediction_without_error(logs):
    noise = np.random.default_rng(0).normal(0.0, NOISE["per_task"] / np.sqrt(2.0), (200, len(logs)))
    steps = {
        (f"{task}", str(log)): (1.0, np.exp(log + own[at]))
        for task, own in enumerate(noise)
        for at, log in enumerate(logs)
    }
    taus = [kendalltau(logs, logs + own).statistic for own in noise]
    assert summary_of(steps)["agreement"]["tau_limit"] == pytest.approx(np.mean(taus), abs=0.05)
