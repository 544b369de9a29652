import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.report import figures
from neuroshard_pipeline.report.diagnostics import buckets, calibration_rows


def test_buckets_have_equally_many_rows_in_rising_order():
    rows = pd.DataFrame({"cost": np.arange(30.0)[::-1]})
    numbers = buckets(rows, "cost", 5)
    assert numbers.value_counts().tolist() == [6] * 5
    assert rows["cost"].groupby(numbers).max().is_monotonic_increasing
    assert set(buckets(pd.DataFrame({"cost": [2.0, 2.0, 2.0]}), "cost", 5)) == {0}


def test_calibration_of_six_samples_with_one_outlier():
    rows = pd.DataFrame({"model": "compute", "predicted_ms": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]})
    rows["measured_ms"] = rows["predicted_ms"] * [1.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    rows = rows.assign(low_ms=0.9 * rows["predicted_ms"], high_ms=1.1 * rows["predicted_ms"])
    (line,) = calibration_rows(rows, count=1).to_dict("records")
    assert line["coverage"] == pytest.approx(5 / 6)
    assert line["ratio"] == 1.0
    assert line["tau"] == pytest.approx((15 - 2 * 4) / 15)  # predictions rank 2.2 ms below four smaller costs
    assert calibration_rows(rows, count=3)["tau"].isna().all()  # buckets of two samples are too small for Kendall's tau


def test_only_models_with_prediction_intervals_appear_in_the_calibration(inputs):
    assert set(calibration_rows(inputs.held_out)["model"]) == {"compute", "comm_forward", "comm_backward"}
    without = inputs.held_out.assign(low_ms=np.nan, high_ms=np.nan)
    assert "No held-out prediction" in figures.calibration(without).layout.annotations[0].text
