"""`workers.map_items` and compute campaigns, with workers on a Ray cluster."""

from __future__ import annotations

import os

import pytest
from workers.item_functions import fail_as_told
from workers.test_mapping import params_for

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import ComputeCampaign
from neuroshard_pipeline.measurement.compute_bench import set_up_worker
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.workers import map_items

pytestmark = pytest.mark.waits

SEED = 5
CONTENT = ["sample_id", "digest", "replica", "rank"]


@pytest.fixture
def on_cluster(compute_params, cluster):
    def make(**changes):
        return compute_params(**{"engine": "ray", "cluster_address": cluster.address, "workers": 2} | changes)

    return make


def test_items_that_raise_or_kill_their_worker_are_errors_and_an_error_of_the_project_ends_the_map(cluster):
    """One worker, because a worker takes seconds to import its modules; the death of a host is tested with two."""
    outcomes = map_items(
        fail_as_told, ["", "raise", "die", "", "refuse"], params_for("ray", cluster.address, workers=1)
    )
    fine, raised, died, after = (next(outcomes) for _ in range(4))
    assert (fine.value, after.value) == ("done", "done")
    assert raised.error == "ZeroDivisionError: as told"
    assert "died" in died.error
    with pytest.raises(MeasurementError, match="no such device"):
        next(outcomes)


@pytest.mark.slow
def test_a_campaign_survives_the_death_of_a_host(on_cluster, compute_params, compute_samples, cluster):
    cluster.add_node(num_cpus=1, include_log_monitor=False)
    samples = compute_samples(12)
    params = on_cluster(chunk_samples=3)
    campaign = ComputeCampaign(params, SEED).run(samples, {})
    records = dict([next(campaign), next(campaign)])
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)  # SIGKILL for all its processes
    records |= dict(campaign)
    local = dict(ComputeCampaign(compute_params(chunk_samples=3), SEED).run(samples, {}))
    # The names of the two campaigns depend on the number of workers, but both measure the same samples in each record.
    content, local_content = (
        {key.partition("/")[2]: frame[CONTENT].to_numpy().tolist() for key, frame in of.items()}
        for of in (records, local)
    )
    assert content == local_content
    costs = ComputeCampaign(params, SEED).costs(records, samples)
    assert costs["error"].isna().all()
    assert (costs["repeats"] == 2).all()
    assert list(ComputeCampaign(params, SEED).run(samples, records)) == []


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
