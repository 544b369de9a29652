import json

import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.summary import summarise
from neuroshard_pipeline.evaluation.totals import plan_costs_frame

from .test_plan_samples import COST, plans


def test_mean_costs_are_over_tasks_that_all_sharders_solved():
    none = [(0.0,) * 3] * 2
    compute = [(9.0, 1.0, 0.0), (1.0, 1.0, 2.0)]
    costs = plan_costs_frame(plans()[:2], {"compute": compute, "forward_comm": none, "backward_comm": none})
    costs = pd.concat([costs, costs[costs["sharder"] == "two"].assign(task_id="second", measured_compute_ms=500.0)])
    attempts = pd.DataFrame(
        [
            ("first", "one", 0.1, None),
            ("first", "two", 0.2, None),
            ("second", "one", 0.3, "second: 5 bytes are missing"),
            ("second", "two", 0.4, None),
        ],
        columns=["task_id", "sharder", "seconds", "error"],
    )
    summary = json.loads(json.dumps(summarise(costs, attempts)))
    assert summary["num_tasks"] == 2
    assert summary["num_common_tasks"] == summary["num_measured_tasks"] == 1
    one, two = summary["sharders"]["one"], summary["sharders"]["two"]
    assert (one["tasks_solved"], one["tasks_tried"], two["tasks_solved"]) == (1, 2, 2)
    assert (one["mean_measured_ms"], two["mean_measured_ms"]) == (9.0, 2.0)
    assert one["mean_predicted_ms"] == one["mean_step_ms"] == COST.embedding_cost_ms
    assert one["failures"] == {"second": "second: 5 bytes are missing"}
    assert two["mean_seconds_per_task"] == pytest.approx(0.3)


def test_sharders_are_compared_by_the_whole_step_if_no_plan_was_measured():
    """The plan of `two` has cheaper lookups, but the exchange of ids makes its step more expensive."""
    costs = pd.concat(
        [
            plan_costs_frame(plans()[:2]).assign(task_id=f"task-{index}", predicted_input_dist_ms=[1.0] * 3 + [9.0] * 3)
            for index in range(5)
        ]
    )
    attempts = costs[["task_id", "sharder"]].drop_duplicates().assign(seconds=0.1, error=None)
    attempts["sharder"] = attempts["sharder"].replace("one", "neuroshard_plus")
    costs["sharder"] = costs["sharder"].replace("one", "neuroshard_plus")
    costs.loc[costs["sharder"] == "two", "predicted_compute_ms"] = 0.0
    summary = summarise(costs, attempts)
    ours, other = summary["sharders"]["neuroshard_plus"], summary["sharders"]["two"]
    assert ours["mean_predicted_ms"] > other["mean_predicted_ms"]
    assert ours["mean_step_ms"] < other["mean_step_ms"]
    (pair,) = summary["pairs"]
    assert pair["ratio"] == pytest.approx(ours["mean_step_ms"] / other["mean_step_ms"])
