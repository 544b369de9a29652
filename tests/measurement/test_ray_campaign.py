"""`workers.map_items` and compute campaigns, with workers on a Ray cluster."""

from __future__ import annotations

import os

import pytest
from workers.test_mapping import (
    params_for,
    test_an_error_of_the_project_ends_the_map,
    test_an_item_that_keeps_killing_its_worker_is_an_error_and_the_others_are_done,
    test_an_item_that_raises_is_an_error,
)

from measurement.team_functions import set_up_mortal_worker
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import ComputeCampaign, compute_bench
from neuroshard_pipeline.measurement.compute_bench import set_up_worker
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table, whole

__all__ = [  # tests of `map_items` that run here, too
    "test_an_error_of_the_project_ends_the_map",
    "test_an_item_that_keeps_killing_its_worker_is_an_error_and_the_others_are_done",
    "test_an_item_that_raises_is_an_error",
]
pytestmark = pytest.mark.waits

SEED = 5
CONTENT = ["sample_id", "digest", "replica", "rank"]


@pytest.fixture
def params(cluster):
    """One worker, because a worker takes seconds to import its modules; the death of a host is tested with two."""
    return params_for("ray", cluster.address, workers=1)


@pytest.fixture
def on_cluster(compute_params, cluster):
    def make(**changes):
        return compute_params(**{"engine": "ray", "cluster_address": cluster.address, "workers": 2} | changes)

    return make


@pytest.mark.slow
def test_a_campaign_survives_the_death_of_a_host(on_cluster, compute_params, compute_samples, cluster):
    cluster.add_node(num_cpus=1)
    samples = compute_samples(30)
    params = on_cluster(visits=4, chunk_samples=3)
    campaign = ComputeCampaign(params, SEED).run(samples, {})
    records = dict([next(campaign), next(campaign)])
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)  # SIGKILL for all its processes
    records |= dict(campaign)
    local = dict(ComputeCampaign(compute_params(visits=4, chunk_samples=3), SEED).run(samples, {}))
    # The names of the two campaigns depend on the number of workers, but both measure the same samples in each record.
    content, local_content = (
        {key.partition("/")[2]: frame[CONTENT].to_numpy().tolist() for key, frame in of.items()}
        for of in (records, local)
    )
    assert content == local_content
    costs = ComputeCampaign(params, SEED).costs(records, samples)
    assert costs["error"].isna().all()
    assert (costs["repeats"] == 4).all()
    assert list(ComputeCampaign(params, SEED).run(samples, records)) == []


@pytest.mark.slow
def test_a_sample_that_kills_its_workers_is_an_error_row(on_cluster, compute_samples, monkeypatch):
    deadly = ComputeSample("compute-deadly", 8, (whole(Table("deadly", 10, 4, 1.0)),))
    monkeypatch.setattr(compute_bench, "set_up_worker", set_up_mortal_worker)
    params = on_cluster(visits=1, noise_floor_share=0.0, workers=1)
    frame = ComputeCampaign(params, SEED).measure([*compute_samples(2), deadly])
    assert frame["error"].notna().tolist() == [False, False, True]
    assert "died" in frame["error"][2]


def test_a_finished_campaign_needs_no_cluster(compute_params, compute_samples):
    samples = compute_samples(4)
    records = dict(ComputeCampaign(compute_params(), SEED).run(samples, {}))
    params = compute_params(engine="ray", cluster_address="127.0.0.1:1")
    assert list(ComputeCampaign(params, SEED).run(samples, records)) == []


def test_a_host_of_another_kind_is_refused(compute_params, compute_samples):
    """The worker is set up in this process. The check must come first, so that the process is not pinned to a core."""
    other = fingerprint("fbgemm_cpu") | {"cores": 96}
    cores = os.sched_getaffinity(0)
    with pytest.raises(
        MeasurementError, match=r"a host of this campaign has cores .*, not 96: measure with hosts of one"
    ):
        set_up_worker(0, 0, compute_samples(1), compute_params(engine="ray"), SEED, other)
    assert os.sched_getaffinity(0) == cores
