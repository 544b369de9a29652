"""Costs of samples and the noise floor, from the raw rows of all visits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.chunks import digest
from neuroshard_pipeline.measurement.costs import (
    RAW_COLUMNS,
    load_rows,
    other_programs_share,
    reduce_rows,
    relative_disagreement,
)

SAVED_AT = "2026-11-20T12:00:00+00:00"


def raw(samples, timings, replica=False, rank=0):
    """Raw rows from (sample index, forward, backward, error)."""
    rows = [
        (
            *(samples[i].sample_id, digest(samples[i]), replica, rank, forward, backward, 0.1, error, False, SAVED_AT),
            *(0.0, "{}"),
        )
        for i, forward, backward, error in timings
    ]
    return pd.DataFrame(rows, columns=list(RAW_COLUMNS))


def test_costs_are_the_smallest_visits_forward_and_backward_apart(compute_samples):
    samples = compute_samples(2)
    timings = [(0, 1.0, 9.0, None), (0, 3.0, 4.0, None), (1, 5.0, 6.0, None), (0, 2.0, 8.0, None)]
    frame = reduce_rows(load_rows({"c/visit-000/x": raw(samples, timings)}, "c"), samples, "min")
    assert frame["sample_id"].tolist() == [sample.sample_id for sample in samples]
    assert frame["forward_ms"].tolist() == [1.0, 5.0]
    assert frame["backward_ms"].tolist() == [4.0, 6.0]
    assert frame["repeats"].tolist() == [3, 1]
    assert frame["spread_ms"][0] == pytest.approx(np.quantile([10.0, 7.0, 10.0], 0.25) - 7.0)
    assert np.isnan(frame["spread_ms"][1])
    assert frame["error"].isna().all()


def test_the_lower_quartile_lies_a_quarter_of_the_way_up_in_each_direction(compute_samples):
    samples = compute_samples(1)
    visits = [(0, forward, 10 * forward, None) for forward in (5.0, 1.0, 2.0, 30.0, 3.0)]
    frame = reduce_rows(raw(samples, visits), samples, "lower_quartile")
    assert (frame["forward_ms"][0], frame["backward_ms"][0]) == (2.0, 20.0)


def test_the_median_is_taken_in_each_direction(compute_samples):
    samples = compute_samples(1)
    frame = reduce_rows(raw(samples, [(0, x, 2 * x, None) for x in (3.0, 1.0, 10.0)]), samples, "median")
    assert (frame["forward_ms"][0], frame["backward_ms"][0]) == (3.0, 6.0)


def test_a_sample_that_failed_once_is_measured_and_one_that_always_failed_is_a_row(compute_samples):
    samples = compute_samples(2)
    bad = float("nan")
    timings = [(0, bad, bad, "died"), (0, 2.0, 3.0, None), (1, bad, bad, "out of memory"), (1, bad, bad, "died")]
    frame = reduce_rows(raw(samples, timings), samples, "min")
    assert frame["error"].tolist() == [None, "out of memory; another run may succeed"]
    assert frame["repeats"].tolist() == [1, 0]
    assert frame["forward_ms"][0] == 2.0
    assert np.isnan(frame["forward_ms"][1])


def test_failures_alone_still_give_the_columns(compute_samples):
    samples = compute_samples(1)
    frame = reduce_rows(raw(samples, [(0, np.nan, np.nan, "no")]), samples, "min")
    assert list(frame) == ["sample_id", "rank", "forward_ms", "backward_ms", "spread_ms", "repeats", "error"]
    assert frame["error"].tolist() == ["no; another run may succeed"]


def test_the_error_is_that_of_the_last_failure_and_says_whether_it_is_permanent(compute_samples):
    samples = compute_samples(2)
    failures = [(index, np.nan, np.nan, "died") for index in range(2)]
    first = raw(samples, failures)
    later = raw(samples[:1], [(0, np.nan, np.nan, "too large")]).assign(permanent=True, saved_at="2026-11-21T12:00:00")
    frame = reduce_rows(pd.concat([later, first]), samples, "min")
    assert frame["error"].tolist() == ["too large; it fails in every run", "died; another run may succeed"]


def test_rows_of_changed_samples_and_other_campaigns_do_not_count(compute_samples):
    samples = compute_samples(2)
    stale = raw(samples, [(0, 0.1, 0.1, None)]).assign(digest="other")
    good = raw(samples, [(0, 1.0, 1.0, None), (1, 1.0, 1.0, None)])
    rows = load_rows({"c/a": lambda: good, "c/b": stale, "d/a": raw(samples, [(0, 0.2, 0.2, None)])}, "c")
    assert reduce_rows(rows, samples, "min")["forward_ms"].tolist() == [1.0, 1.0]


def test_an_unfinished_campaign_is_refused(compute_samples):
    samples = compute_samples(3)
    with pytest.raises(MeasurementError, match="2 of 3 samples were never measured"):
        reduce_rows(raw(samples, [(1, 1.0, 1.0, None)]), samples, "min")


def test_noise_floor_compares_independent_measurements(compute_samples):
    samples = compute_samples(3)
    first = raw(samples, [(0, 1.0, 1.0, None), (1, 2.0, 2.0, None), (2, 1.0, 1.0, None)])
    again = raw(samples, [(0, 1.0, 1.0, None), (1, 3.0, 2.0, None), (2, 1.1, 1.0, None)], replica=True)
    floor = relative_disagreement(pd.concat([first, again]), samples, "min")
    assert floor["samples"] == 3
    assert floor["backward"] == {"median": 0.0, "p90": 0.0}
    assert floor["forward"]["median"] == pytest.approx(0.1 / 1.05)
    assert floor["total"]["p90"] == pytest.approx(np.quantile([0, 1 / 4.5, 0.1 / 2.05], 0.9))


def test_noise_floor_is_null_if_nothing_was_measured_twice(compute_samples):
    samples = compute_samples(1)
    floor = relative_disagreement(raw(samples, [(0, 1.0, 1.0, None)]), samples, "min")
    assert floor == {"samples": 0} | {name: {"median": None, "p90": None} for name in ("forward", "backward", "total")}


def test_the_share_of_other_programs_is_the_mean_of_the_lower_quartiles_of_the_visits(compute_samples):
    samples = compute_samples(2)
    visits = {0: [0.1, 0.9, 0.5, 0.9, 0.9], 1: [0.0, 0.0, 0.0, 0.0, 0.6]}  # lower quartiles 0.5 and 0.0
    records = {
        f"c/visit-{number:03d}/{index}": raw(samples, [(index, 1.0, 1.0, None)]).assign(other_programs=share)
        for index, shares in visits.items()
        for number, share in enumerate(shares)
    }
    records["c/visit-009/failed"] = raw(samples, [(1, np.nan, np.nan, "no")]).assign(other_programs=1.0)
    assert other_programs_share(load_rows(records, "c"), samples) == pytest.approx(0.25)
    assert other_programs_share(load_rows(records, "c"), samples[1:]) == 0.0


def test_records_of_older_versions_state_no_share_of_other_programs(compute_samples):
    samples = compute_samples(1)
    old = raw(samples, [(0, 1.0, 1.0, None)]).drop(columns="other_programs")
    assert other_programs_share(load_rows({"c/visit-000/x": old}, "c"), samples) is None
