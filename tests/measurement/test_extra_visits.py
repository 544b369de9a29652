from __future__ import annotations

import pandas as pd
import pytest

from neuroshard_pipeline.measurement.chunks import digest, planned_chunks
from neuroshard_pipeline.measurement.extra_visits import extra_chunks, extra_seconds


def rows_of(samples, params, cost_ms, probe_ms):
    """Rows of a campaign with the timings `cost_ms(visit, index)` and `probe_ms(key)`."""
    rows = []
    for chunk in planned_chunks(samples, params, 0, "c"):
        visit = int(chunk.key.split("/")[1].removeprefix("visit-"))
        for index in chunk.indices:
            cost = cost_ms(visit, index)
            rows.append((samples[index].sample_id, digest(samples[index]), chunk.replica, 0, cost, cost, chunk.key))
    columns = ["sample_id", "digest", "replica", "rank", "forward_ms", "backward_ms", "key"]
    frame = pd.DataFrame(rows, columns=columns).assign(seconds=0.5, error=None)
    return frame.assign(probe_ms=[probe_ms(key) for key in frame["key"]])


def quiet(_):
    return 1.0


@pytest.fixture
def limits(compute_params):
    return compute_params(visits=4, disturbed_slowdown=1.5, wide_spread_share=0.2, noise_floor_share=0.0)


def test_a_quiet_campaign_needs_nothing(compute_samples, limits):
    samples = compute_samples(8)
    rows = rows_of(samples, limits, lambda _, index: 1.0 + index, quiet)
    assert extra_chunks(rows, samples, limits, "c") == []
    assert extra_seconds(rows) == 0


def test_a_disturbed_chunk_is_measured_once_more(compute_samples, limits):
    samples = compute_samples(8)
    first = planned_chunks(samples, limits, 0, "c")[0]
    rows = rows_of(samples, limits, lambda *_: 1.0, lambda key: 2.0 if key == first.key else 1.0)
    (extra,) = extra_chunks(rows, samples, limits, "c")
    assert extra.key == first.key.replace("visit-", "again-")
    assert extra.indices == first.indices
    again = pd.concat([rows, rows[rows["key"] == first.key].assign(key=extra.key)])
    assert extra_chunks(again, samples, limits, "c") == []
    assert extra_seconds(again) == 0.5 * len(first.indices)


def test_samples_with_a_wide_spread_get_visits_the_widest_first(compute_samples, limits):
    samples = compute_samples(8)
    wide = {2: 2.0, 5: 4.0}
    rows = rows_of(samples, limits, lambda visit, index: wide[index] if index in wide and visit else 1.0, quiet)
    (extra,) = extra_chunks(rows, samples, limits, "c")
    assert extra.indices == (5, 2)
    assert "/wide-0000/" in extra.key
    measured = rows[rows["sample_id"].isin([samples[5].sample_id, samples[2].sample_id])]
    measured = measured[measured["key"].str.contains("visit-001")]
    more = extra_chunks(pd.concat([rows, measured.assign(key=extra.key)]), samples, limits, "c")
    assert "/wide-0001/" in more[0].key


def test_a_sample_whose_spread_stays_wide_gets_at_most_twice_its_visits(compute_samples, limits):
    samples = compute_samples(4)
    rows = rows_of(samples, limits, lambda visit, _: 4.0 if visit else 1.0, quiet)
    for number in range(limits.visits):
        (extra,) = extra_chunks(rows, samples, limits, "c")
        assert f"/wide-{number:04d}/" in extra.key
        again = rows[rows["key"].str.contains("visit-001")].assign(key=extra.key)
        rows = pd.concat([rows, again])
    assert extra_chunks(rows, samples, limits, "c") == []


def test_a_sample_with_fewer_visits_gets_as_many_fewer_extra_ones(compute_samples, limits):
    samples = compute_samples(1)
    few = limits.model_copy(update={"thorough_lookup_bytes": 1, "least_visits": 2})
    rows = rows_of(samples, few, lambda visit, _: 4.0 if visit else 1.0, quiet)
    for number in range(2):
        (extra,) = extra_chunks(rows, samples, few, "c")
        again = rows[rows["key"].str.contains("visit-003")].assign(key=extra.key)
        rows = pd.concat([rows, again])
        assert extra.key.startswith(f"c/wide-{number:04d}/")
    assert extra_chunks(rows, samples, few, "c") == []
