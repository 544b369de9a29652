from __future__ import annotations

import pytest

from measurement.team_functions import deadly_job
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.execution import Executor
from neuroshard_pipeline.measurement import cluster_crew as crew_module
from neuroshard_pipeline.measurement import reduce_compute, run_compute_campaign
from neuroshard_pipeline.measurement.stretches import Stretch
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table, whole

SEED = 5
CONTENT = ["sample_id", "digest", "replica", "rank"]


@pytest.fixture
def on_cluster(compute_params, cluster):
    def make(**changes):
        return compute_params(engine="ray", cluster_address=cluster.address, workers=2, **changes)

    return make


@pytest.mark.slow
def test_a_host_killed_in_mid_campaign_loses_nothing(on_cluster, compute_params, compute_samples, cluster):
    samples = compute_samples(30)
    params = on_cluster(visits=4, chunk_samples=3)
    campaign = run_compute_campaign(samples, params, SEED, {})
    shards = dict([next(campaign), next(campaign)])
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)  # SIGKILL for all its processes
    shards |= dict(campaign)
    alone = dict(run_compute_campaign(samples, compute_params(visits=4, chunk_samples=3), SEED, {}))
    # How many measure at the same time is part of a campaign's name, and nothing else differs.
    content, content_alone = (
        {key.partition("/")[2]: frame[CONTENT].to_numpy().tolist() for key, frame in of.items()}
        for of in (shards, alone)
    )
    assert content == content_alone
    costs = reduce_compute(shards, samples, params, SEED)
    assert costs["error"].isna().all()
    assert (costs["repeats"] == 4).all()
    assert list(run_compute_campaign(samples, params, SEED, shards)) == []
    cluster.add_node(num_cpus=1)


def test_a_sample_that_kills_its_workers_is_an_error_row(compute_params, compute_samples, monkeypatch):
    """With two local workers, whose deaths are those of a cluster's."""
    deadly = ComputeSample("compute-deadly", 8, (whole(Table("deadly", 10, 4, 1.0)),))
    monkeypatch.setattr(crew_module, "measure_job", deadly_job)
    samples, params = [*compute_samples(2), deadly], compute_params(workers=2)
    with Executor(params.executor) as executor:
        crew = crew_module.ClusterCrew(samples, params, SEED, executor)
        ((stretch, shard),) = crew.run([Stretch("c/visit-000/x", (0, 2, 1), 0, replica=False)])
    assert stretch.indices == (0, 2, 1)
    assert shard["sample_id"].tolist() == [samples[index].sample_id for index in stretch.indices]
    assert shard["error"].notna().tolist() == [False, True, False]
    assert "died" in shard["error"][1]


def test_a_host_of_another_kind_is_refused(compute_params, compute_samples):
    """In this process, as a local worker would do it."""
    other = tuple((name, "96" if name == "cores" else value) for name, value in crew_module._machine("fbgemm_cpu"))
    with pytest.raises(
        MeasurementError, match=r"a host of the cluster has cores .*, not 96: measure with hosts of one"
    ):
        crew_module.measure_job(crew_module.Job(tuple(compute_samples(1)), compute_params(), SEED, other))
