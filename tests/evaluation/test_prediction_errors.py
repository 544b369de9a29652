import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.plan_intervals import BOUND_COLUMNS
from neuroshard_pipeline.evaluation.prediction_errors import prediction_errors
from neuroshard_pipeline.evaluation.totals import MEASURED_COLUMNS, PREDICTED_COLUMNS


def test_prediction_errors_by_hand():
    none = dict.fromkeys([*PREDICTED_COLUMNS, *MEASURED_COLUMNS], np.nan)
    costs = pd.DataFrame({"task_id": ["t", "t"], "sharder": ["s", "s"], "rank": [0, 1]}).assign(
        **none | {"predicted_step_ms": 6.0, "measured_step_ms": 8.0}
    )
    costs["predicted_compute_ms"], costs["measured_compute_ms"] = [1.1, 0.0], [1.0, 0.0]  # rank 1 is empty
    costs["predicted_forward_comm_ms"], costs["measured_forward_comm_ms"] = [2.0, 3.0], [4.0, 2.0]
    costs["predicted_backward_comm_ms"] = 1.0  # not measured
    bounds = pd.DataFrame({"task_id": "t", "sharder": "s", "rank": [0, 1]}).assign(
        **dict.fromkeys(BOUND_COLUMNS, np.nan)
    )
    bounds["low_forward_comm_ms"], bounds["high_forward_comm_ms"] = [1.0, 1.5], [3.0, 4.5]
    errors = prediction_errors(costs, bounds)
    assert set(errors) == {"compute", "forward_comm", "step"}
    assert errors["step"] == pytest.approx({"mape": 0.25, "bias": -0.25, "count": 1})
    assert errors["forward_comm"] == pytest.approx(
        {"mape": 0.5, "bias": 0.0, "count": 2, "coverage_90": 0.5, "mean_relative_width": 1.0}
    )
    assert {name: errors["compute"][name] for name in ("mape", "bias", "count")} == pytest.approx(
        {"mape": 0.1, "bias": 0.1, "count": 1}
    )
