import json

import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.summary import summarise
from neuroshard_pipeline.evaluation.totals import plan_costs_frame

from .test_plan_samples import plans


def test_means_are_over_tasks_that_all_solved():
    costs = pd.concat([plan_costs_frame(plans()[:2], ([(9.0, 1.0, 0.0), (1.0, 1.0, 2.0)], *[[(0.0,) * 3] * 2] * 2))])
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
    assert one["failures"] == {"second": "second: 5 bytes are missing"}
    assert two["mean_seconds_per_task"] == pytest.approx(0.3)
