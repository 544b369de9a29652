import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.evaluation.prediction_errors import prediction_errors


def test_prediction_errors_by_hand():
    costs = pd.DataFrame(
        {
            "task_id": ["t", "t"],
            "sharder": ["s", "s"],
            "rank": [0, 1],
            "predicted_compute_ms": [1.1, 0.0],
            "predicted_forward_comm_ms": [2.0, 3.0],
            "predicted_backward_comm_ms": [1.0, 1.0],
            "measured_compute_ms": [1.0, 0.0],  # rank 1 is empty
            "measured_forward_comm_ms": [4.0, 2.0],
            "measured_backward_comm_ms": [np.nan, np.nan],
        }
    )
    errors = prediction_errors(costs)
    assert errors["compute"] == pytest.approx({"mape": 0.1, "bias": 0.1, "count": 1})
    assert errors["forward_comm"] == pytest.approx({"mape": 0.5, "bias": 0.0, "count": 2})
    assert set(errors) == {"compute", "forward_comm"}  # without a backward cost no plan has an embedding cost
