import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from neuroshard_pipeline.evaluation.bootstrap import Bootstrap

BOOTSTRAP = Bootstrap(confidence=0.95, resamples=4000, seed=0)


def paired_costs(count=30, gain=0.9):
    rng = np.random.default_rng(3)
    theirs = np.exp(rng.normal(1.0, 0.8, count))
    return theirs * gain * np.exp(rng.normal(0.0, 0.05, count)), theirs


def test_the_interval_agrees_with_scipy():
    ours, theirs = paired_costs()
    interval = BOOTSTRAP.ratio_of_means(ours, theirs)
    reference = stats.bootstrap(
        (ours, theirs),
        lambda a, b, axis: a.mean(axis=axis) / b.mean(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=4000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert interval.value == pytest.approx(ours.mean() / theirs.mean())
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high), abs=0.003)


def test_pairing_removes_what_tasks_differ_by():
    ours, theirs = paired_costs(gain=0.95)
    paired = BOOTSTRAP.ratio_of_means(ours, theirs)
    unpaired = BOOTSTRAP.ratio_of_means(np.random.default_rng(0).permutation(ours), theirs)
    assert paired.high < 1.0 < unpaired.high


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20), st.floats(0.1, 10.0))
def test_a_constant_factor_leaves_no_doubt(theirs, factor):
    interval = Bootstrap(0.9, 100, 0).ratio_of_means(factor * np.array(theirs), np.array(theirs))
    assert (interval.low, interval.value, interval.high) == pytest.approx((factor,) * 3)


def test_more_confidence_is_a_wider_interval():
    ours, _ = paired_costs()
    narrow, wide = (Bootstrap(level, 2000, 0).mean(ours) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
