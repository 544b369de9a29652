"""The models that benchmarks/cost_models/bench_cost_models.py compares with this project's."""

import cost_model_baselines
import numpy as np
import pytest
from cost_model_baselines import BASELINES, fit_predict_baseline
from cost_model_inputs import paper_samples
from paper_networks import PaperCommModel, PaperComputeModel, fit_paper_comm, fit_paper_compute, raw_features

from neuroshard_pipeline.cost_models.compute_training import predict_compute
from neuroshard_pipeline.cost_models.measured import ComputeData, split_samples
from neuroshard_pipeline.cost_models.metrics import mape
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table

from .machine import BATCH_SIZE


def split_of(data):
    return split_samples(data.sample_ids, 0.1, 0.2, 0)


@pytest.fixture(scope="module")
def paper_compute(compute_training, compute_params) -> PaperComputeModel:
    params = compute_params.model_copy(update={"members": 1})
    return fit_paper_compute(compute_training, split_of(compute_training), params)


@pytest.fixture(scope="module")
def paper_comm(comm_training, comm_params) -> PaperCommModel:
    four = comm_training.take([row for row, s in enumerate(comm_training.samples) if s.world_size == 4])
    return fit_paper_comm(four, split_of(four), comm_params)


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_learn_the_machine_roughly(name, compute_training, monkeypatch):
    monkeypatch.setattr(cost_model_baselines, "TREES", 120)
    training, test = compute_training.take(range(200)), compute_training.take(range(200, 250))
    predicted = fit_predict_baseline(name, training.samples, training.costs_ms, test.samples, seed=0)
    assert predicted.shape == test.costs_ms.shape
    assert mape(test.costs_ms.sum(1), predicted.sum(1)) < 0.25


def test_an_unknown_baseline_is_refused(compute_training):
    with pytest.raises(CostModelError, match="use one of gradient_boosting, non_negative_linear"):
        fit_predict_baseline("oracle", compute_training.samples, compute_training.costs_ms, [], seed=0)


def test_our_network_is_more_accurate_than_the_papers(compute_training, compute_model, paper_compute):
    test = compute_training.take(split_of(compute_training).test)
    ours, paper = predict_compute(compute_model, test.samples), paper_compute.predict(test.samples)
    measured = test.costs_ms.sum(axis=1)
    assert mape(measured, ours.sum(axis=1)) < 0.5 * mape(measured, paper.sum(axis=1))


def test_the_papers_costs_follow_from_sums_of_embeddings(paper_compute, compute_training):
    samples = compute_training.samples[:6]
    sums = [paper_compute.shard_embeddings(sample.shards, BATCH_SIZE).sum(axis=0) for sample in samples]
    costs = paper_compute.costs_from_sums(np.stack(sums).reshape(2, 3, -1), BATCH_SIZE)
    np.testing.assert_allclose(costs.reshape(6, 2), paper_compute.predict(samples), rtol=1e-12)


def test_the_papers_features_are_those_of_the_paper():
    table = Table("t", 4096, 64, 2.0, 1024.0, (1.0,) + (0.0,) * 16)
    (features,) = raw_features([Shard(table, 0, 32)], BATCH_SIZE)
    assert features[:5].tolist() == [32, 4096, 2.0, 4096 * 32 * 4, 1024.0]
    assert features[5:].tolist() == list(table.reuse)


def test_the_papers_communication_network_learns_the_machine_roughly(paper_comm, comm_training):
    four = comm_training.take([row for row, s in enumerate(comm_training.samples) if s.world_size == 4])
    test = four.take(split_of(four).test)
    mean = np.broadcast_to(four.take(split_of(four).training).costs_ms.mean(axis=0), test.costs_ms.shape)
    error = mape(test.costs_ms, paper_comm.predict(test.samples))
    assert error < 0.3
    assert error < 0.7 * mape(test.costs_ms, mean)


def test_the_papers_network_refuses_other_world_sizes(paper_comm):
    with pytest.raises(CostModelError, match="trained for 4 ranks and cannot predict for 8"):
        paper_comm.forward_ms([64] * 8, [0] * 8, BATCH_SIZE)


def test_the_papers_networks_have_the_methods_that_a_search_uses(paper_compute, paper_comm, tables):
    embeddings = paper_compute.shard_embeddings([Shard(table, 0, 16) for table in tables[:8]], BATCH_SIZE)
    sums = embeddings.reshape(4, 2, -1).sum(axis=1)
    total = paper_compute.costs_from_sums(sums, BATCH_SIZE).sum(axis=-1)
    assert paper_compute.interval_from_sums(sums, BATCH_SIZE).tolist() == np.stack([total, total], axis=-1).tolist()
    dims, skew = np.full((3, 4), 32), np.zeros((3, 4))
    forward, backward = paper_comm.forward_ms(dims, skew, BATCH_SIZE), paper_comm.backward_ms(dims, BATCH_SIZE)
    assert forward.shape == backward.shape == (3, 4)
    assert paper_comm.forward_interval_ms(dims, skew, BATCH_SIZE)[..., 0].tolist() == forward.tolist()
    assert paper_comm.backward_interval_ms(dims, BATCH_SIZE)[..., 1].tolist() == backward.tolist()


def test_samples_of_the_papers_kind_are_selected():
    def sample(name, batch_size=512, data_type="fp32", optimizer="sgd", table="t1"):
        return ComputeSample(
            name, batch_size, (Shard(Table(table, 100, 8, 1.0, data_type=data_type), 0, 8),), optimizer
        )

    samples = (
        sample("plain"),
        sample("batch", batch_size=1024),
        sample("half", data_type="fp16"),
        sample("stateful", optimizer="rowwise_adagrad"),
        sample("derived", table="t1~512-0001"),
    )
    assert paper_samples(ComputeData(samples, np.ones((5, 2)), 0)).sample_ids == ["plain"]
