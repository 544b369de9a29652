import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models import CommCostModel
from neuroshard_pipeline.cost_models.comm import rank_costs, ranks_per_host_of
from neuroshard_pipeline.cost_models.comm_features import (
    COMM_CONTEXT_FEATURES,
    COMM_WORK_TERMS,
    REMOTE_TERMS,
    comm_features,
)
from neuroshard_pipeline.cost_models.comm_training import predict_comm
from neuroshard_pipeline.cost_models.metrics import mape
from neuroshard_pipeline.errors import CostModelError

from .machine import BATCH_SIZE, make_comm_sample, true_comm_ms


@pytest.mark.parametrize(("world_size", "limit"), [(2, 0.05), (4, 0.05), (8, 0.05), (3, 0.08), (6, 0.08), (12, 0.2)])
def test_one_model_is_accurate_for_seen_and_unseen_world_sizes(comm_model, world_size, limit):
    rng = np.random.default_rng(5)
    samples = [make_comm_sample(rng, index, world_size) for index in range(30)]
    predicted = predict_comm(comm_model, samples)
    truth = np.concatenate([true_comm_ms(sample) for sample in samples])
    assert mape(truth[:, 0], predicted[:, 0]) < limit
    assert mape(truth[:, 1], predicted[:, 1]) < limit


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_permuting_ranks_permutes_costs(comm_model, world_size, seed):
    rng = np.random.default_rng(seed)
    dims, skew = 4 * rng.integers(0, 300, world_size), rng.uniform(0, 9, world_size)
    order = rng.permutation(world_size)
    straight = comm_model.predict(dims, skew, BATCH_SIZE)
    permuted = comm_model.predict(dims[order], skew[order], BATCH_SIZE)
    for before, after in zip(straight, permuted, strict=True):
        np.testing.assert_allclose(after, before[order], rtol=1e-12)


def test_a_single_rank_communicates_at_no_cost_and_without_uncertainty(comm_model):
    dims = np.array([[0.0], [8.0], [4000.0]])
    for costs in comm_model.predict(dims, np.zeros((3, 1)), BATCH_SIZE):
        np.testing.assert_array_equal(costs, np.zeros((3, 1)))
    np.testing.assert_array_equal(
        comm_model.forward_interval_ms(dims, np.zeros((3, 1)), BATCH_SIZE), np.zeros((3, 1, 2))
    )
    np.testing.assert_array_equal(comm_model.backward_interval_ms(dims, BATCH_SIZE), np.zeros((3, 1, 2)))
    chosen = comm_model.forward_ms(dims, np.zeros((3, 1)), BATCH_SIZE, np.zeros((3, 1), dtype=np.int64))
    np.testing.assert_array_equal(chosen, np.zeros((3, 1)))


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


def test_volumes_match_a_calculation_by_hand():
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


def test_a_collective_costs_the_same_in_a_batch_and_alone(comm_model):
    rng = np.random.default_rng(1)
    dims, skew = 4 * rng.integers(1, 99, (2, 3, 4)), rng.random((2, 3, 4))
    forward, backward = comm_model.predict(dims, skew, BATCH_SIZE)
    assert forward.shape == backward.shape == (2, 3, 4)
    alone = comm_model.predict(dims[1, 2], skew[1, 2], BATCH_SIZE)
    np.testing.assert_allclose(forward[1, 2], alone[0], rtol=1e-12)
    np.testing.assert_allclose(backward[1, 2], alone[1], rtol=1e-12)


def test_backward_does_not_depend_on_the_start_skew(comm_model):
    model = comm_model
    _, still = model.predict([64, 128], [0, 0], BATCH_SIZE)
    _, skewed = model.predict([64, 128], [0, 5], BATCH_SIZE)
    np.testing.assert_array_equal(still, skewed)


def test_a_loaded_model_predicts_identically(comm_model, tmp_path):
    model = comm_model
    model.save(tmp_path)
    again = CommCostModel.load(tmp_path)
    asked = ([64, 128, 4, 256], [0, 1, 2, 3], BATCH_SIZE)
    for before, after in zip(model.predict(*asked), again.predict(*asked), strict=True):
        np.testing.assert_array_equal(before, after)
    assert again.world_sizes == model.world_sizes


@pytest.mark.parametrize(
    ("dims", "skew", "batch"), [([1, 2], [0], 512), (4, 0, 512), ([], [], 512), ([4, 4], [0, 0], 0)]
)
def test_invalid_inputs_are_refused(comm_model, dims, skew, batch):
    with pytest.raises(CostModelError):
        comm_model.predict(dims, skew, batch)


def test_a_compute_model_is_not_a_comm_model(compute_model, tmp_path):
    compute_model.save(tmp_path)
    with pytest.raises(CostModelError, match="kind is 'ComputeCostModel', not 'CommCostModel'"):
        CommCostModel.load(tmp_path)


CLUSTERS = [(16, 8), (12, 8), (6, 4), (9, 4), (8, 4), (7, 3), (5, 4)]


def message_by_message(dims, direction, per_host):
    """Terms of traffic between hosts for every rank, from single messages; a message has 1 MiB per column."""
    world = range(len(dims))
    far = {(p, q) for p in world for q in world if p // per_host != q // per_host}
    size = {(p, q): dims[p] if direction == "forward" else dims[q] for p, q in far}
    send = [sum(size[p, q] for p, q in far if p == rank) for rank in world]
    receive = [sum(size[p, q] for p, q in far if q == rank) for rank in world]
    peers = [sum(p == rank for p, _ in far) for rank in world]
    met = [[rank, *(q for p, q in far if p == rank)] for rank in world]
    port = [max(max(send[q], receive[q]) for q in of_rank) for of_rank in met]
    most = [max(peers[q] for q in of_rank) for of_rank in met]
    return {"remote_peers": most, "remote_send_bytes": send, "remote_receive_bytes": receive, "remote_port_bytes": port}


@pytest.mark.parametrize(("world", "per_host"), CLUSTERS)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_traffic_between_hosts_follows_from_its_messages(world, per_host, direction):
    dims = 4.0 * np.random.default_rng(world).integers(0, 100, world)
    batch_size = world * 2**18  # 1 MiB per column and receiving rank
    work, _ = comm_features(dims, np.zeros(world), batch_size, direction, per_host)
    named = dict(zip(COMM_WORK_TERMS, work.T, strict=True))
    for name, expected in message_by_message(dims, direction, per_host).items():
        np.testing.assert_allclose(named[name], expected, err_msg=name)


@pytest.mark.parametrize(("world", "per_host"), CLUSTERS)
def test_remote_wait_is_the_wait_for_ranks_on_other_hosts(world, per_host):
    skew = np.random.default_rng(world).uniform(0, 9, world)
    _, context = comm_features(np.ones(world), skew, 512, "forward", per_host)
    host = np.arange(world) // per_host
    waits = [max(0.0, *(skew[host != host[rank]] - skew[rank])) for rank in range(world)]
    found = context[:, list(COMM_CONTEXT_FEATURES).index("log_remote_wait")]
    np.testing.assert_allclose(np.exp(found) - 1e-2, waits, atol=1e-12)


@pytest.mark.parametrize(("world", "per_host"), CLUSTERS)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_permuting_hosts_and_the_ranks_of_each_host_permutes_features(world, per_host, direction):
    rng = np.random.default_rng(world)
    dims, skew = 4.0 * rng.integers(0, 300, (5, world)), rng.uniform(0, 9, (5, world))
    full = rng.permutation(world // per_host)  # permutes whole hosts; a smaller last host stays last
    hosts = [*full, *([len(full)] if world % per_host else [])]
    ranks = [np.arange(host * per_host, min((host + 1) * per_host, world)) for host in hosts]
    order = np.concatenate([rng.permutation(of_host) for of_host in ranks])
    straight = comm_features(dims, skew, 512, direction, per_host)
    renamed = comm_features(dims[:, order], skew[:, order], 512, direction, per_host)
    for before, after in zip(straight, renamed, strict=True):
        np.testing.assert_allclose(after, before[:, order], rtol=1e-12)


@pytest.mark.parametrize("per_host", [None, 8, 9])
def test_a_single_host_has_no_remote_traffic(per_host):
    work, _ = comm_features(np.arange(8.0), np.arange(8.0), 512, "forward", per_host)
    assert not any(work[:, list(COMM_WORK_TERMS).index(name)].any() for name in REMOTE_TERMS)


def test_only_a_modelled_cluster_has_ranks_per_host():
    assert ranks_per_host_of({"hardware": {"topology": {"gpus_per_host": 8}}}) == 8
    assert ranks_per_host_of({"hardware": {"cores": 2}}) is None
    assert ranks_per_host_of({}) is None


def test_costs_do_not_depend_on_the_ranks_that_are_predicted_together(comm_model):
    rng = np.random.default_rng(11)
    dims = rng.choice([0, 32, 64], size=(50, 8))
    skew = rng.choice([0.0, 1.5], size=dims.shape)
    forward, backward = comm_model.predict(dims, skew, BATCH_SIZE)
    for index in range(len(dims)):
        by_hand = rank_costs_by_hand(comm_model, "backward", dims[index], np.zeros(8))
        np.testing.assert_allclose(backward[index], by_hand, rtol=1e-12)
        np.testing.assert_allclose(
            forward[index], rank_costs_by_hand(comm_model, "forward", dims[index], skew[index]), rtol=1e-12
        )
    chosen = rng.integers(8, size=(50, 3))
    part = comm_model.forward_ms(dims, skew, BATCH_SIZE, chosen)
    np.testing.assert_allclose(part, np.take_along_axis(forward, chosen, axis=-1), rtol=1e-12)


def rank_costs_by_hand(model, direction, dims, skew):
    """Costs of one collective, (W,); the correction of the network is computed for every rank alone."""
    network = model.networks[direction]
    work, context = comm_features(dims, skew, BATCH_SIZE, direction)
    scaling = network.normalisation
    by_member = [
        rank_costs(np, network.weights, scaling.work(work[[rank]]), scaling.context(context[[rank]]))[:, 0]
        for rank in range(len(dims))
    ]
    return np.mean(by_member, axis=1)
