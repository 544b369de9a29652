"""The identity of a campaign is what changes its timings; records of other identities are not used."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from neuroshard_pipeline.measurement.identity import (
    IDENTIFYING,
    NOT_IDENTIFYING,
    identity_of,
    name_of,
    other_campaigns,
)
from neuroshard_pipeline.measurement.params import CommMeasureParams, ComputeMeasureParams

HOST = {"device": "cpu", "cores": 2, "libraries": {"torch": "2.13.0", "numpy": "2.3.0"}}
#: Another value of every parameter of the two kinds of campaigns.
OTHER_COMPUTE = {
    "backend": "fbgemm_cuda",
    "engine": "ray",
    "cluster_address": "auto",
    "visits": 3,
    "warmup_iterations": 1,
    "iterations": 2,
    "iteration_statistic": "median",
    "visit_statistic": "lower_quartile",
    "cache_treatment": "warm",
    "shuffle": "chunks",
    "workers": 2,
    "threads": 2,
    "arena_bytes": 2**23,
    "thorough_lookup_bytes": 1000,
    "least_visits": 2,
    "ids_folder": "ids",
    "chunk_samples": 5,
    "noise_floor_share": 0.2,
    "time_budget_s": 9.0,
    "timeout_s": 61.0,
}
OTHER_COMM = {
    "backend": "nccl",
    "iteration_statistic": "min",
    "local_world_size": 2,
    "torchrun_endpoint": "host:29400",
    "buffer_bytes": 2**21,
    "start_margin_ms": 0.4,
    "reduction_visits": 2,
    "reduction_statistic": "median",
} | {
    name: value
    for name, value in OTHER_COMPUTE.items()
    if name in {*CommMeasureParams.model_fields} - {"backend", "iteration_statistic"}
}


def test_every_parameter_is_either_part_of_the_identity_or_not():
    fields = {*ComputeMeasureParams.model_fields, *CommMeasureParams.model_fields}
    assert fields == IDENTIFYING | NOT_IDENTIFYING
    assert not IDENTIFYING & NOT_IDENTIFYING
    assert set(OTHER_COMPUTE) == set(ComputeMeasureParams.model_fields)
    assert set(OTHER_COMM) == set(CommMeasureParams.model_fields)


def changed(params, name, value):
    """The parameters with one changed field, even if validation would ask for a second change."""
    return params.model_copy(update={name: value})


@pytest.mark.parametrize(("name", "value"), OTHER_COMPUTE.items())
def test_a_compute_campaign_is_another_one_if_a_parameter_changes_its_timings(compute_params, name, value):
    before, after = compute_params(), changed(compute_params(), name, value)
    is_same = name_of(identity_of(before, 0, HOST)) == name_of(identity_of(after, 0, HOST))
    assert is_same == (name in NOT_IDENTIFYING)


@pytest.mark.parametrize(("name", "value"), OTHER_COMM.items())
def test_a_communication_campaign_is_another_one_if_a_parameter_changes_its_timings(comm_params, name, value):
    before, after = comm_params(), changed(comm_params(), name, value)
    is_same = name_of(identity_of(before, 0, HOST)) == name_of(identity_of(after, 0, HOST))
    assert is_same == (name in NOT_IDENTIFYING)


def test_seed_and_host_are_part_of_the_identity(compute_params):
    params = compute_params()
    hosts = [HOST, HOST | {"cores": 4}, HOST | {"libraries": {"torch": "2.14.0", "numpy": "2.3.0"}}]
    names = [name_of(identity_of(params, seed, host)) for seed in (0, 1) for host in hosts]
    assert len(set(names)) == len(names)
    assert name_of(identity_of(params, 0, dict(reversed(HOST.items())))) == names[0]


def stored(identity):
    return {f"{name_of(identity)}/visit-{visit:03d}/w0-x": record(identity) for visit in range(2)}


def record(identity):
    return pd.DataFrame({"sample_id": ["a", "b"], "identity": json.dumps(identity)})


def test_records_of_other_campaigns_are_named_with_every_difference(compute_params):
    mine = identity_of(compute_params(), 0, HOST)
    other = identity_of(compute_params(arena_bytes=2**23, shuffle="chunks"), 0, HOST)
    found = other_campaigns({**stored(mine), **stored(other)}, mine)
    assert [(each.name, len(each.keys)) for each in found] == [(name_of(other), 2)]
    assert found[0].difference == 'arena_bytes was 8388608 and is 4194304, shuffle was "chunks" and is "samples"'


def test_a_field_that_one_identity_lacks_is_a_difference(compute_params):
    on_cpu = identity_of(compute_params(), 0, HOST)
    on_gpu = identity_of(compute_params(), 0, HOST | {"gpu_model": "H200"})
    assert other_campaigns(stored(on_gpu), on_cpu)[0].difference == 'gpu_model was "H200" and is unknown'
    assert other_campaigns(stored(on_cpu), on_gpu)[0].difference == 'gpu_model was unknown and is "H200"'


def test_records_of_an_older_version_are_named_as_such(compute_params):
    mine = identity_of(compute_params(), 0, HOST)
    old = {"0123456789ab/visit-000/w0-x": lambda: pd.DataFrame({"sample_id": ["a"]})}
    assert "older version" in other_campaigns({**stored(mine), **old}, mine)[0].difference
