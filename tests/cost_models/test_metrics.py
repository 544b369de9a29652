import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_percentage_error, r2_score

from neuroshard_pipeline.cost_models import metrics
from neuroshard_pipeline.errors import CostModelError

pairs = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=3, max_size=30)


@settings(max_examples=40)
@given(pairs)
def test_metrics_agree_with_scikit_learn(values):
    truth, guess = np.array(values, dtype=float).T
    assert metrics.mape(truth, guess) == pytest.approx(mean_absolute_percentage_error(truth, guess))
    if len(set(truth)) > 1:
        assert metrics.accuracy(truth, guess, None)["r2"] == pytest.approx(r2_score(truth, guess))


def test_constant_truth_has_no_order_and_no_r2():
    assert np.isnan(metrics.accuracy([2.0, 2.0], [1.0, 3.0], None)["r2"])
    assert np.isnan(metrics.kendall_tau([2.0, 2.0], [1.0, 3.0]))


def test_perfect_predictions():
    figures = metrics.accuracy([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], 0.02)
    assert figures == {
        "mape": 0, "median_ape": 0, "bias": 0, "r2": 1, "kendall_tau": 1, "noise_floor": 0.02
    }  # fmt: skip


def test_sign_of_bias():
    assert metrics.accuracy([2.0, 2.0], [1.0, 1.0], None)["bias"] == -0.5


def test_kendall_tau_counts_pairs_in_equal_and_opposite_order():
    assert metrics.kendall_tau([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0]) == pytest.approx((5 - 1) / 6)
    assert metrics.kendall_tau([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("truth", "guess"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([-1.0], [1.0]), ([1.0], [np.nan])]
)
def test_impossible_input_is_refused(truth, guess):
    with pytest.raises(CostModelError, match="metrics need"):
        metrics.mape(truth, guess)
