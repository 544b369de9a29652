from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from neuroshard_pipeline.measurement.stretches import campaign_hash, digest, planned_stretches

HOST = {"device": "cpu", "cores": 2}


def keys(stretches):
    return {stretch.key for stretch in stretches}


def test_every_sample_is_visited_as_often_as_asked(compute_params, compute_samples):
    stretches = planned_stretches(compute_samples(10), compute_params(visits=3), 0, "c")
    visits = Counter(index for stretch in stretches if not stretch.replica for index in stretch.indices)
    assert visits == dict.fromkeys(range(10), 3)
    assert len(keys(stretches)) == len(stretches)


def test_visits_are_rounds_and_each_round_has_its_own_order(compute_params, compute_samples):
    stretches = planned_stretches(compute_samples(40), compute_params(visits=2), 0, "c")
    rounds = [[stretch for stretch in stretches if f"/visit-{visit:03d}/" in stretch.key] for visit in range(2)]
    assert stretches == rounds[0] + rounds[1]
    assert [s.indices for s in rounds[0]] != [s.indices for s in rounds[1]]


def test_asking_for_more_samples_keeps_the_keys_of_full_chunks(compute_params, compute_samples):
    params = compute_params(chunk_samples=4, noise_floor_share=0.3)
    few, many = (planned_stretches(compute_samples(count), params, 0, "c") for count in (10, 50))
    full = {stretch.key for stretch in few if "-0002-" not in stretch.key}  # 10 = 4 + 4 + 2
    assert full
    assert full <= keys(many)
    assert not (keys(few) - full) & keys(many)


@pytest.mark.parametrize("change", [{"batch_size": 16}, {"optimizer": "rowwise_adagrad"}])
def test_a_changed_sample_changes_the_key_of_its_chunk_alone(compute_params, compute_samples, change):
    samples = compute_samples(8)
    changed = [*samples[:5], replace(samples[5], **change), *samples[6:]]
    before, after = (planned_stretches(list_, compute_params(), 0, "c") for list_ in (samples, changed))
    assert all("-0001-" in key for key in keys(before) ^ keys(after))
    assert keys(before) != keys(after)


@pytest.mark.parametrize(
    "change",
    [{"visits": 3}, {"arena_bytes": 2**23}, {"threads": 2}, {"iterations": 2}],
)
def test_any_changed_parameter_is_another_campaign(compute_params, change):
    assert campaign_hash(compute_params(), 0, HOST) != campaign_hash(compute_params(**change), 0, HOST)


def test_how_visits_become_a_cost_measures_nothing_anew(compute_params):
    names = {campaign_hash(compute_params(visit_statistic=name), 0, HOST) for name in ("min", "lower_quartile")}
    assert len(names) == 1


def test_seed_and_host_are_part_of_the_campaign(compute_params):
    params = compute_params()
    names = {campaign_hash(params, 0, HOST), campaign_hash(params, 1, HOST), campaign_hash(params, 0, {"cores": 4})}
    assert len(names) == 3
    assert campaign_hash(params, 0, HOST) == campaign_hash(compute_params(), 0, dict(reversed(HOST.items())))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.1, 5), (1.0, 20)])
def test_the_asked_share_of_every_chunk_is_measured_twice(compute_params, compute_samples, share, expected):
    params = compute_params(noise_floor_share=share, visits=1)
    stretches = planned_stretches(compute_samples(20), params, 0, "c")
    assert sum(len(stretch.indices) for stretch in stretches if stretch.replica) == expected


def test_collectives_are_grouped_by_world_size(comm_params, comm_samples):
    samples = comm_samples(9)
    for stretch in planned_stretches(samples, comm_params(), 0, "c"):
        assert {samples[index].world_size for index in stretch.indices} == {stretch.group}


def test_digest_tells_parts_apart():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest(1) != digest("1")
