import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.report import figures
from neuroshard_pipeline.report.diagnostics import buckets, calibration_rows, compute_errors, worst_samples


@pytest.fixture
def errors(inputs):
    return compute_errors(inputs.held_out, inputs.compute_samples, inputs.table_pool)


def test_errors_are_listed_with_the_properties_of_their_samples(inputs, errors):
    assert len(errors) == (inputs.held_out["model"] == "compute").sum()
    row = errors.iloc[3]
    own = inputs.compute_samples[inputs.compute_samples["sample_id"] == row["sample_id"]]
    tables = inputs.table_pool.set_index("table").loc[own["table"]]
    assert (row["tables"], row["rows"]) == (len(own), tables["num_embeddings"].sum())
    assert row["mean_dim"] == pytest.approx(own["embedding_dim"].mean())
    assert row["mean_pooling"] == pytest.approx(tables["pooling_factor"].mean())
    assert row["error"] == pytest.approx(row["predicted_ms"] / row["measured_ms"] - 1)


def test_the_largest_errors_come_first(errors):
    header, *lines = worst_samples(errors)
    assert len(lines) == 10
    assert all(len(line) == len(header) for line in lines)
    shares = [abs(float(line[1].removesuffix(" %"))) for line in lines]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(100 * errors["error"].abs().max(), abs=0.06)


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


def test_every_held_out_sample_is_drawn_once_per_property(inputs, errors):
    figure = figures.errors_by_feature(inputs.held_out, inputs.compute_samples, inputs.table_pool, 0.03)
    points = [trace for trace in figure.data if trace.mode == "markers"]
    assert [len(trace.y) for trace in points] == [len(errors)] * 5
    bands = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert {(shape.y0, shape.y1) for shape in bands} == {(-3.0, 3.0)}
    none = inputs.held_out[inputs.held_out["model"] != "compute"]
    empty = figures.errors_by_feature(none, inputs.compute_samples, inputs.table_pool)
    assert "No compute sample" in empty.layout.annotations[0].text
