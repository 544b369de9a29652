import json

import numpy as np
import pandas as pd
import pytest
from report.verdicts import task_costs, verdicts_of

from neuroshard_pipeline.evaluation.verdicts import best_rival, find_pair
from neuroshard_pipeline.evaluation.verdicts import task_costs as task_costs_of_plans


def compared(**kwargs):
    found = verdicts_of(task_costs(**kwargs))
    json.dumps(found)
    return found["suites"]["some"]


def test_the_best_sharder_is_named():
    found = compared()
    assert found["best"] == "neuroshard_plus"
    assert found["possibly_best"] == ["neuroshard_plus"]
    assert found["sharders"]["neuroshard_plus"]["relative"]["value"] == pytest.approx(1.0, abs=0.01)
    assert found["sharders"]["random"]["relative"]["value"] == pytest.approx(1.5 / 0.8, rel=0.03)
    pair = find_pair(found, "neuroshard_plus", "random")
    assert pair["verdict"] == "cheaper"
    assert pair["low"] < 0.8 / 1.5 < pair["high"]
    assert best_rival(found) == "milp"


def test_no_sharder_is_best_without_a_measurable_difference():
    found = compared(factors={"neuroshard": 0.9, "milp": 0.9, "random": 1.5})
    assert found["best"] is None
    assert sorted(found["possibly_best"]) == ["milp", "neuroshard"]
    assert find_pair(found, "neuroshard", "milp")["verdict"] == "no measurable difference"


def test_common_tasks_are_those_that_all_compared_sharders_solved_and_pairs_have_their_own():
    hard = {(index, "milp") for index in range(3)}
    found = compared(unsolved=hard | {(index, "random") for index in range(15)})
    assert found["compared"] == ["neuroshard_plus", "neuroshard", "milp"]
    assert found["common_tasks"] == 17
    assert found["sharders"]["random"] == {
        **found["sharders"]["random"], "solved": 5, "tried": 20, "cost_ms": None, "relative": None
    }  # fmt: skip
    assert find_pair(found, "neuroshard", "random")["tasks"] == 5
    assert find_pair(found, "neuroshard_plus", "neuroshard")["tasks"] == 20


def test_few_tasks_give_no_verdict():
    found = compared(count=4)
    assert (found["best"], found["possibly_best"]) == (None, [])
    assert found["sharders"]["random"]["relative"]["low"] is None
    assert find_pair(found, "neuroshard_plus", "random")["verdict"] == "too few tasks"


def test_a_suite_that_was_not_measured_is_compared_by_predicted_cost():
    costs = task_costs(is_measured=False)
    found = verdicts_of(costs)["suites"]["some"]
    assert found["basis"] == "predicted"
    assert found["common_tasks"] == found["tasks"]


def test_a_suite_of_which_all_solve_too_few_tasks_has_no_common_tasks():
    everyone = ("neuroshard_plus", "neuroshard", "milp", "random")
    unsolved = {(index, name) for name in everyone for index in range(19)}
    found = compared(unsolved=unsolved)
    assert (found["compared"], found["common_tasks"], found["best"]) == ([], 0, None)
    assert find_pair(found, "neuroshard", "random")["tasks"] == 1


def test_a_sharder_of_another_suite_is_listed_as_not_run():
    other = task_costs(factors={"neuroshard_plus": 0.8}).assign(suite="other")
    found = verdicts_of(pd.concat([task_costs(), other]))["suites"]
    assert found["some"]["not_run"] == []
    assert found["other"]["not_run"] == ["neuroshard", "milp", "random"]


def test_task_costs_are_those_of_attempts_and_plans():
    tasks = pd.DataFrame({"task_id": ["t"], "suite": "some", "group": "all", "is_measured": True})
    attempts = pd.DataFrame({"task_id": "t", "sharder": ["a", "b"], "seconds": [1.0, 2.0], "error": [None, "no room"]})
    plan_costs = pd.DataFrame({"task_id": "t", "sharder": "a", "rank": [0, 1]}).assign(
        predicted_compute_ms=[1.0, 3.0], measured_compute_ms=[2.0, 6.0], predicted_forward_comm_ms=0.0,
        predicted_backward_comm_ms=0.0, predicted_reduction_ms=np.nan, predicted_step_ms=4.0, measured_step_ms=7.0,
    )  # fmt: skip
    found = task_costs_of_plans(tasks, attempts, plan_costs).set_index("sharder")
    names = ["seconds", "predicted_step_ms", "paper_cost_ms", "measured_step_ms"]
    assert found.loc["a", names].tolist() == [1.0, 4.0, 3.0, 7.0]
    assert found["solved"].tolist() == [True, False]
    assert found.loc["b", "error"] == "no room"
    assert np.isnan(found.loc["b", "measured_step_ms"])
