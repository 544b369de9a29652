"""A chunk is a list of samples that a campaign visits one after another, each of them once, and stores together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.measurement.chunks import (
    Visit,
    digest,
    failed_samples,
    measured_visits,
    missing_rounds,
    planned_chunks,
    rounds_of,
)
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table, whole


def keys(chunks):
    return {chunk.key for chunk in chunks}


def test_every_sample_gets_the_given_number_of_visits(compute_params, compute_samples):
    chunks = planned_chunks(compute_samples(10), compute_params(visits=3), 0, "c")
    visits = Counter(index for chunk in chunks if not chunk.replica for index in chunk.indices)
    assert visits == dict.fromkeys(range(10), 3)
    assert len(keys(chunks)) == len(chunks)


def looking_up(lookup_bytes):
    """A sample whose batch looks up this many bytes of rows."""
    return ComputeSample("sample", 64, (whole(Table("table", 100, 4, lookup_bytes / 64 / 16)),))


@pytest.mark.parametrize(("lookup_bytes", "visits"), [(500, 12), (1000, 12), (2000, 6), (3000, 4), (1e6, 3)])
def test_the_more_a_sample_looks_up_the_fewer_its_visits(compute_params, lookup_bytes, visits):
    sample = looking_up(lookup_bytes)
    assert sample.lookup_bytes == pytest.approx(lookup_bytes)
    params = compute_params(visits=12, thorough_lookup_bytes=1000, least_visits=3)
    assert len(rounds_of(sample, params)) == visits
    assert len(rounds_of(sample, compute_params(visits=12, thorough_lookup_bytes=None))) == 12
    assert len(rounds_of(sample, compute_params(visits=2, thorough_lookup_bytes=1, least_visits=3))) == 2
    planned = planned_chunks([sample], params, 0, "c")
    assert len(planned) == 2 * visits  # it is also measured a second time, with the same number of visits


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    visits=st.integers(1, 40), least=st.integers(1, 40), share=st.floats(0.01, 10), budget_s=st.sampled_from([None, 1])
)
def test_the_rounds_that_visit_a_sample_are_evenly_spaced(compute_params, visits, least, share, budget_s):
    params = compute_params(visits=visits, thorough_lookup_bytes=1000, least_visits=least, time_budget_s=budget_s)
    rounds = sorted(rounds_of(looking_up(1000 / share), params))
    assert min(visits, least) <= len(rounds) <= visits
    assert rounds[0] == 0
    if len(rounds) > 1:
        always_started = -(-visits // 2)
        assert rounds[-1] == (max(always_started, len(rounds)) if budget_s else visits) - 1
        assert np.ptp(np.diff(rounds)) <= 1


def test_chunks_come_round_by_round_and_each_round_has_its_own_order(compute_params, compute_samples):
    chunks = planned_chunks(compute_samples(40), compute_params(visits=2), 0, "c")
    rounds = [[chunk for chunk in chunks if f"/visit-{visit:03d}/" in chunk.key] for visit in range(2)]
    assert chunks == rounds[0] + rounds[1]
    assert [s.indices for s in rounds[0]] != [s.indices for s in rounds[1]]


def visits_of(chunks, samples):
    return {
        Visit(int(chunk.key.split("/")[1].removeprefix("visit-")), digest(samples[index]), chunk.replica)
        for chunk in chunks
        for index in chunk.indices
    }


def test_a_sample_has_other_neighbours_at_every_visit(compute_params, compute_samples):
    params = compute_params(chunk_samples=10, visits=4, noise_floor_share=0.0)
    chunks = planned_chunks(compute_samples(60), params, 0, "c")
    together = [set(chunk.indices) for chunk in chunks if 0 in chunk.indices]
    assert len(together) == 4
    assert len(set.intersection(*together)) < 4  # sample 0 is in all four; 1 or 2 others may be by chance


def test_consecutive_samples_stay_together_if_chunks_are_shuffled(compute_params, compute_samples):
    params = compute_params(chunk_samples=10, visits=4, noise_floor_share=0.0, shuffle="chunks")
    chunks = planned_chunks(compute_samples(60), params, 0, "c")
    assert {frozenset(chunk.indices) for chunk in chunks} == {
        frozenset(range(start, start + 10)) for start in range(0, 60, 10)
    }
    assert len({chunk.indices for chunk in chunks if 0 in chunk.indices}) == 4
    assert len({tuple(min(s.indices) for s in chunks[at : at + 6]) for at in range(0, 24, 6)}) > 1


@pytest.mark.parametrize("count", [1, 9, 10, 11, 25])
def test_chunks_are_about_equally_long(compute_params, compute_samples, count):
    params = compute_params(chunk_samples=10, visits=1, noise_floor_share=0.0)
    lengths = [len(chunk.indices) for chunk in planned_chunks(compute_samples(count), params, 0, "c")]
    assert sum(lengths) == count
    assert max(lengths) <= 10
    assert max(lengths) - min(lengths) <= 1
    assert len(lengths) == -(-count // 10)


def test_measured_visits_are_not_planned_again_whatever_the_order_of_samples(compute_params, compute_samples):
    params = compute_params(chunk_samples=4, noise_floor_share=0.0)
    few, many = compute_samples(10), compute_samples(50)
    done = visits_of(planned_chunks(few, params, 0, "c"), few)
    rest = planned_chunks(many[::-1], params, 0, "c", done)
    left = visits_of(rest, many[::-1])
    assert not left & done
    assert left | done == visits_of(planned_chunks(many, params, 0, "c"), many)
    assert not keys(rest) & keys(planned_chunks(few, params, 0, "c"))


def test_measured_visits_are_read_from_records():
    frame = pd.DataFrame({"digest": ["a", "a", "b"], "rank": [0, 1, 0], "replica": False, "error": None})
    frame["permanent"] = False
    assert measured_visits({"c/visit-003/w2-x": frame}) == {Visit(3, "a", False), Visit(3, "b", False)}


def test_a_failed_visit_is_measured_again_unless_its_failure_is_permanent():
    frame = pd.DataFrame({"digest": ["good", "large", "killed", "killed"], "rank": [0, 0, 0, 1], "replica": False})
    frame["error"], frame["permanent"] = [None, "too large", None, "died"], [False, True, False, False]
    first = {"c/visit-000/w2-x": frame}
    done = {Visit(0, "good", False), Visit(0, "large", False)}
    assert measured_visits(first) == done
    assert failed_samples(first) == {"large", "killed"}
    later = frame[frame["digest"] == "killed"].assign(error=None)
    assert measured_visits({**first, "c/visit-000/w2-y": later}) == done | {Visit(0, "killed", False)}


@pytest.mark.parametrize("change", [{"batch_size": 16}, {"optimizer": "rowwise_adagrad"}])
def test_only_a_changed_sample_is_measured_again(compute_params, compute_samples, change):
    samples, params = compute_samples(8), compute_params(noise_floor_share=0.0)
    changed = [*samples[:5], replace(samples[5], **change), *samples[6:]]
    done = visits_of(planned_chunks(samples, params, 0, "c"), samples)
    again = planned_chunks(changed, params, 0, "c", done)
    assert [chunk.indices for chunk in again] == [(5,)] * params.visits


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), before=st.integers(1, 20), now=st.integers(1, 20), share=st.floats(0.01, 3))
def test_visits_of_a_campaign_with_fewer_or_more_rounds_count(compute_params, data, before, now, share):
    sample, limits = looking_up(1000 / share), {"thorough_lookup_bytes": 1000, "least_visits": 2}
    first, later = (compute_params(visits=visits, **limits) for visits in (before, now))
    measured = data.draw(st.sets(st.sampled_from(sorted(rounds_of(sample, first)))))  # perhaps an unfinished campaign
    missing = missing_rounds(sample, later, measured)
    wanted = rounds_of(sample, later)
    assert missing <= wanted - measured
    assert len(missing) + len(measured) == max(len(wanted), len(measured))
    if before == now:
        assert missing | measured == wanted


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.1, 2), (0.01, 1), (1.0, 20)])
def test_the_given_share_of_samples_is_measured_twice(compute_params, compute_samples, share, expected):
    params = compute_params(noise_floor_share=share, visits=1)
    chunks = planned_chunks(compute_samples(20), params, 0, "c")
    assert sum(len(chunk.indices) for chunk in chunks if chunk.replica) == expected


def test_collectives_are_grouped_by_world_size(comm_params, comm_samples):
    samples = comm_samples(9)
    for chunk in planned_chunks(samples, comm_params(), 0, "c"):
        assert {samples[index].world_size for index in chunk.indices} == {chunk.group}


def test_digest_tells_parts_apart():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest(1) != digest("1")
