import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from neuroshard_pipeline.evaluation.comparison import Bootstrap, Comparison

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


def test_pairing_removes_the_differences_between_tasks():
    ours, theirs = paired_costs(gain=0.95)
    paired = BOOTSTRAP.ratio_of_means(ours, theirs)
    unpaired = BOOTSTRAP.ratio_of_means(np.random.default_rng(0).permutation(ours), theirs)
    assert paired.high < 1.0 < unpaired.high


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20), st.floats(0.1, 10.0))
def test_a_constant_factor_gives_an_interval_of_width_zero(theirs, factor):
    interval = Bootstrap(0.9, 100, 0).ratio_of_means(factor * np.array(theirs), np.array(theirs))
    assert (interval.low, interval.value, interval.high) == pytest.approx((factor,) * 3)


def test_more_confidence_widens_the_interval():
    ours, _ = paired_costs()
    narrow, wide = (Bootstrap(level, 2000, 0).mean(ours) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def costs(count, gain, noise=0.02):
    rng = np.random.default_rng(1)
    theirs = np.exp(rng.normal(1.0, 0.8, count))
    return pd.DataFrame({"ours": theirs * gain * np.exp(rng.normal(0.0, noise, count)), "rival": theirs})


def compare(count=24, gain=0.85, noise=0.02, basis="measured"):
    return Comparison(BOOTSTRAP, 5, basis).compare(costs(count, gain, noise), "ours", "rival")


@pytest.mark.parametrize(
    ("gain", "noise", "verdict", "statement"),
    [
        (
            0.85,
            0.02,
            "cheaper",
            r"ours costs 1\d\.\d % less than rival \(24 tasks, measured, 95 % confidence interval -",
        ),
        (1.2, 0.02, "more expensive", r"ours costs [12]\d\.\d % more than rival \(24 tasks, measured, 95 % confidence"),
        (
            1.0,
            0.2,
            "no measurable difference",
            r"no measurable difference between ours and rival \(24 tasks, measured, ",
        ),
    ],
)
def test_the_verdict_and_the_statement_follow_from_the_interval(gain, noise, verdict, statement):
    found = compare(gain=gain, noise=noise)
    assert found["verdict"] == verdict
    assert re.match(statement, found["statement"])
    assert re.search(r"interval [+-]\d+\.\d % to [+-]\d+\.\d %\)$", found["statement"])


def test_few_tasks_give_no_interval():
    found = compare(count=4)
    assert (found["verdict"], found["low"], found["high"]) == ("too few tasks", None, None)
    assert "less than rival (4 tasks, measured, too few for a confidence interval)" in found["statement"]
    assert "(1 task, " in compare(count=1)["statement"]
    assert compare(count=1, gain=1.0, noise=0.0)["statement"].startswith("ours costs as much as rival")


def test_predicted_costs_are_named_as_such():
    assert "(24 tasks, predicted, 95 %" in compare(basis="predicted")["statement"]


def test_no_common_task_is_stated():
    table = pd.DataFrame({"ours": [1.0, np.nan], "rival": [np.nan, 2.0]})
    found = Comparison(BOOTSTRAP, 5, "measured").compare(table, "ours", "rival")
    assert (found["tasks"], found["ratio"], found["verdict"]) == (0, None, "too few tasks")
    assert found["statement"] == "no task has costs of both ours and rival"


def test_ours_are_compared_with_every_other_sharder():
    table = pd.DataFrame(1.0, index=range(6), columns=["random", "neuroshard", "neuroshard_plus"])
    pairs = Comparison(BOOTSTRAP, 5, "measured").compare_ours(table, list(table.columns))
    assert [(pair["ours"], pair["rival"]) for pair in pairs] == [
        ("neuroshard_plus", "random"),
        ("neuroshard_plus", "neuroshard"),
        ("neuroshard", "random"),
        ("neuroshard", "neuroshard_plus"),
    ]
