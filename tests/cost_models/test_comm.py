from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models import CommCostModel
from neuroshard_pipeline.cost_models.comm import (
    COMM_CONTEXT_FEATURES,
    COMM_WORK_TERMS,
    comm_features,
    ranks_per_host_of,
    remote_peers,
)
from neuroshard_pipeline.cost_models.metrics import mape
from neuroshard_pipeline.cost_models.training_comm import predict_comm
from neuroshard_pipeline.errors import CostModelError

from .machine import BATCH_SIZE, make_comm_sample, true_comm_ms


@pytest.mark.parametrize(("world_size", "limit"), [(2, 0.05), (4, 0.05), (8, 0.05), (3, 0.08), (6, 0.08), (12, 0.2)])
def test_one_network_holds_on_seen_and_unseen_world_sizes(comm_models, world_size, limit):
    rng = np.random.default_rng(5)
    samples = [make_comm_sample(rng, index, world_size) for index in range(30)]
    predicted = np.concatenate(predict_comm(comm_models["universal"], samples))
    truth = np.concatenate([true_comm_ms(sample) for sample in samples])
    assert mape(truth[:, 0], predicted[:, 0]) < limit
    assert mape(truth[:, 1], predicted[:, 1]) < limit


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_permuting_ranks_permutes_costs(comm_models, world_size, seed):
    rng = np.random.default_rng(seed)
    dims, skew = 4 * rng.integers(0, 300, world_size), rng.uniform(0, 9, world_size)
    order = rng.permutation(world_size)
    straight = comm_models["universal"].predict(dims, skew, BATCH_SIZE)
    permuted = comm_models["universal"].predict(dims[order], skew[order], BATCH_SIZE)
    for before, after in zip(straight, permuted, strict=True):
        np.testing.assert_allclose(after, before[order], rtol=1e-12)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_features_of_permuted_ranks_are_permuted_to_the_bit(direction):
    rng = np.random.default_rng(0)
    dims, skew, order = rng.random((5, 7)) * 99, rng.random((5, 7)), rng.permutation(7)
    for straight, permuted in zip(
        comm_features(dims, skew, 512, direction),
        comm_features(dims[:, order], skew[:, order], 512, direction),
        strict=True,
    ):
        np.testing.assert_array_equal(permuted, straight[:, order])


def test_volumes_are_what_a_pencil_says():
    work, context = comm_features([4, 8, 12, 0], [0, 1, 3, 1], 2**20, "forward")
    named = dict(zip(COMM_WORK_TERMS, work.T, strict=True))
    assert named["wait"].tolist() == [3, 2, 0, 2]
    assert named["send_bytes"].tolist() == [12, 24, 36, 0]
    assert named["receive_bytes"].tolist() == [20, 16, 12, 24]
    assert set(named["total_bytes"]) == {72}
    assert set(named["largest_receive_bytes"]) == {24}
    assert context.shape == (4, len(COMM_CONTEXT_FEATURES))
    assert named["remote_peers"].tolist() == named["remote_send_bytes"].tolist() == [0, 0, 0, 0]
    back = dict(zip(COMM_WORK_TERMS, comm_features([4, 8, 12, 0], [0] * 4, 2**20, "backward")[0].T, strict=True))
    assert back["send_bytes"].tolist() == named["receive_bytes"].tolist()
    assert back["receive_bytes"].tolist() == named["send_bytes"].tolist()


def test_collectives_at_once_cost_the_same_as_each_alone(comm_models):
    rng = np.random.default_rng(1)
    dims, skew = 4 * rng.integers(1, 99, (2, 3, 4)), rng.random((2, 3, 4))
    forward, backward = comm_models["universal"].predict(dims, skew, BATCH_SIZE)
    assert forward.shape == backward.shape == (2, 3, 4)
    alone = comm_models["universal"].predict(dims[1, 2], skew[1, 2], BATCH_SIZE)
    np.testing.assert_allclose(forward[1, 2], alone[0], rtol=1e-12)
    np.testing.assert_allclose(backward[1, 2], alone[1], rtol=1e-12)


def test_backward_does_not_know_the_start_skew(comm_models):
    model = comm_models["universal"]
    _, still = model.predict([64, 128], [0, 0], BATCH_SIZE)
    _, skewed = model.predict([64, 128], [0, 5], BATCH_SIZE)
    np.testing.assert_array_equal(still, skewed)


@pytest.mark.parametrize("architecture", ["universal", "paper"])
def test_a_reload_predicts_identically(comm_models, architecture, tmp_path):
    model = comm_models[architecture]
    model.save(tmp_path)
    again = CommCostModel.load(tmp_path)
    asked = ([64, 128, 4, 256], [0, 1, 2, 3], BATCH_SIZE)
    for before, after in zip(model.predict(*asked), again.predict(*asked), strict=True):
        np.testing.assert_array_equal(before, after)
    assert again.world_sizes == model.world_sizes


def test_the_papers_network_refuses_other_world_sizes(comm_models):
    with pytest.raises(CostModelError, match=r"trained for 4 ranks and cannot be asked for 8.*architecture: universal"):
        comm_models["paper"].predict([64] * 8, [0] * 8, BATCH_SIZE)


@pytest.mark.parametrize(
    ("dims", "skew", "batch"), [([1, 2], [0], 512), (4, 0, 512), ([], [], 512), ([4, 4], [0, 0], 0)]
)
def test_impossible_questions_are_refused(comm_models, dims, skew, batch):
    with pytest.raises(CostModelError):
        comm_models["universal"].predict(dims, skew, batch)


def test_a_compute_model_is_not_a_comm_model(compute_models, tmp_path):
    compute_models["universal"].save(tmp_path)
    with pytest.raises(CostModelError, match="kind is 'ComputeCostModel', not 'CommCostModel'"):
        CommCostModel.load(tmp_path)


@pytest.mark.parametrize(
    ("world", "per_host", "remote"), [(8, None, 0), (8, 8, 0), (12, 8, 8), (16, 8, 8), (32, 8, 24)]
)
def test_most_remote_peers_by_counting_hosts(world, per_host, remote):
    hosts = [rank // (per_host or world) for rank in range(world)]
    assert remote_peers(world, per_host) == remote == max(sum(other != mine for other in hosts) for mine in hosts)


def test_volume_across_hosts_is_the_share_of_remote_peers():
    dims = np.arange(16.0) * 4
    work, _ = comm_features(dims, np.zeros(16), 512, "forward", ranks_per_host=8)
    named = dict(zip(COMM_WORK_TERMS, work.T, strict=True))
    np.testing.assert_allclose(named["remote_send_bytes"], named["send_bytes"] * 8 / 15)
    np.testing.assert_allclose(named["largest_remote_receive_bytes"], named["largest_receive_bytes"] * 8 / 15)


@pytest.mark.parametrize(("world", "per_host"), [(12, 8), (6, 4), (9, 4), (8, 4), (7, 3)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_largest_volume_across_hosts_is_the_median_over_orders_of_the_ranks(world, per_host, direction):
    """Against every choice of ranks for the last host; volumes so close that no full host has the largest."""
    dims = 100.0 + np.random.default_rng(world).random(world)
    work, _ = comm_features(dims, np.zeros(world), 512, direction, ranks_per_host=per_host)
    named = dict(zip(COMM_WORK_TERMS, work.T, strict=True))
    last = world % per_host or per_host
    for way in ("send", "receive"):
        volumes = named[f"{way}_bytes"]
        found = named[f"largest_remote_{way}_bytes"] * (world - 1) / (world - last)
        assert (found == found[0]).all()
        if last == per_host:
            assert found[0] == pytest.approx(volumes.max())
            continue
        largest = [max(volumes[list(ranks)]) for ranks in combinations(range(world), last)]
        assert found[0] == pytest.approx(max(np.quantile(largest, 0.5, method="higher"), volumes.mean()))


def test_a_dominating_rank_counts_even_on_a_full_host():
    dims = np.array([1000.0, *[1.0] * 11])
    work, _ = comm_features(dims, np.zeros(12), 512, "forward", ranks_per_host=8)
    named = dict(zip(COMM_WORK_TERMS, work.T, strict=True))
    np.testing.assert_allclose(named["largest_remote_send_bytes"], named["send_bytes"].max() * 4 / 11)


def test_a_model_knows_the_hosts_of_a_modelled_cluster_only():
    assert ranks_per_host_of({"hardware": {"topology": {"gpus_per_host": 8}}}) == 8
    assert ranks_per_host_of({"hardware": {"cores": 2}}) is None
    assert ranks_per_host_of({}) is None
