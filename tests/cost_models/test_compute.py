import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.cost_models import ComputeCostModel
from neuroshard_pipeline.cost_models.compute import embed, price
from neuroshard_pipeline.cost_models.compute_features import shard_features
from neuroshard_pipeline.cost_models.metrics import mape
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.table import Shard

from .machine import BATCH_SIZE, DIMS, make_shards, make_table, true_compute_ms


def fresh_samples(tables, count, fewest, most, seed=7):
    rng = np.random.default_rng(seed)
    samples = [make_shards(rng, tables, int(rng.integers(fewest, most + 1))) for _ in range(count)]
    return samples, np.array([true_compute_ms(shards, BATCH_SIZE) for shards in samples])


def test_it_learns_the_machine(compute_model, tables):
    samples, truth = fresh_samples(tables, 100, 1, 15)
    assert mape(truth.sum(1), compute_model.predict(samples, BATCH_SIZE).sum(1)) < 0.04


def test_it_is_accurate_for_larger_sets_than_any_training_sample(compute_model, tables):
    samples, truth = fresh_samples(tables, 40, 25, 60)
    predicted = compute_model.predict(samples, BATCH_SIZE)
    assert mape(truth.sum(1), predicted.sum(1)) < 0.08


def test_it_is_accurate_for_tables_outside_the_training_samples(compute_model):
    rng = np.random.default_rng(99)
    samples, truth = fresh_samples([make_table(rng, f"new{index}") for index in range(60)], 60, 1, 15)
    assert mape(truth.sum(1), compute_model.predict(samples, BATCH_SIZE).sum(1)) < 0.06


@given(data=st.data())
def test_adding_a_shard_never_lowers_a_cost(compute_model, tables, data):
    """This holds by construction, and therefore also far outside the training range."""
    model = compute_model
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shards = list(make_shards(rng, tables, int(rng.integers(1, 60))))
    added = Shard(make_table(rng, "added"), 0, int(rng.choice(DIMS)))
    before, after = model.predict([shards, [*shards, added]], BATCH_SIZE)
    assert np.all(after >= before)
    assert np.all(before > 0)


def test_embeddings_are_not_negative(compute_model, tables):
    assert np.all(compute_model.shard_embeddings([Shard(t, 0, 8) for t in tables], BATCH_SIZE) >= 0)


def test_costs_follow_from_sums_of_embeddings(compute_model, tables):
    model = compute_model
    samples, _ = fresh_samples(tables, 12, 1, 9)
    expected = model.predict(samples, BATCH_SIZE)
    sums = np.stack([model.shard_embeddings(shards, BATCH_SIZE).sum(axis=0) for shards in samples])
    np.testing.assert_allclose(model.costs_from_sums(sums, BATCH_SIZE), expected, rtol=1e-12)
    grid = model.costs_from_sums(sums.reshape(3, 4, -1), BATCH_SIZE)
    np.testing.assert_allclose(grid, expected.reshape(3, 4, 2), rtol=1e-12)


def test_a_set_costs_the_same_in_a_batch_and_alone(compute_model, tables):
    model = compute_model
    base = model.shard_embeddings([Shard(t, 0, 8) for t in tables], BATCH_SIZE)
    sums = np.random.default_rng(0).random((9000, base.shape[1])) * base.mean(axis=0) * 8
    sums.flags.writeable = False
    together = model.costs_from_sums(sums, BATCH_SIZE)
    for row in (0, 4095, 8999):
        np.testing.assert_allclose(model.costs_from_sums(sums[row], BATCH_SIZE), together[row], rtol=1e-12)


def test_equal_sums_of_a_call_cost_the_same_as_one_of_them(compute_model, tables):
    model, rng = compute_model, np.random.default_rng(0)
    base = model.shard_embeddings([Shard(t, 0, 8) for t in tables], BATCH_SIZE)
    sums = rng.random((40, base.shape[1])) * base.mean(axis=0) * 8
    sums[20:, :2] = sums[:20, :2]  # sums that agree in the first numbers, but not in all
    which = rng.integers(0, 40, 500)
    alone = np.stack([model.costs_from_sums(row, BATCH_SIZE) for row in sums])
    np.testing.assert_allclose(model.costs_from_sums(sums[which], BATCH_SIZE), alone[which], rtol=1e-12)


def test_numpy_and_torch_compute_the_same(compute_model, tables):
    model = compute_model
    network = model.network
    samples, _ = fresh_samples(tables, 1, 7, 7)
    work, context = shard_features(samples[0], BATCH_SIZE)
    inputs = [torch.from_numpy(v) for v in (network.normalisation.work(work), network.normalisation.context(context))]
    weights = {name: torch.from_numpy(value) for name, value in network.weights.items()}
    sums = embed(torch, weights, *inputs).sum(dim=1, keepdim=True)
    costs = price(torch, weights, sums).mean(dim=0).numpy()
    np.testing.assert_allclose(costs, model.predict(samples, BATCH_SIZE), rtol=1e-9)


def test_an_empty_batch_of_sets_has_no_costs(compute_model, tables):
    model = compute_model
    none = model.shard_embeddings(make_shards(np.random.default_rng(0), tables, 1), BATCH_SIZE)[:0]
    assert model.costs_from_sums(none, BATCH_SIZE).shape == (0, 2)


def test_no_shards_cost_nothing(compute_model, tables):
    costs = compute_model.predict([[], [Shard(tables[0], 0, 8)], []], BATCH_SIZE)
    assert costs[0].tolist() == costs[2].tolist() == [0, 0]
    assert np.all(costs[1] > 0)
    assert compute_model.predict([[]], BATCH_SIZE).tolist() == [[0, 0]]


def test_a_loaded_model_predicts_identically(compute_model, tables, tmp_path):
    model = compute_model
    samples, _ = fresh_samples(tables, 20, 1, 20)
    model.save(tmp_path / "model")
    again = ComputeCostModel.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(samples, BATCH_SIZE), model.predict(samples, BATCH_SIZE))
    assert again.batch_size == BATCH_SIZE
    assert again.provenance == model.provenance


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("architecture", "paper", "architecture is 'paper', not 'universal'"),
        ("context_features", ["log_dim"], "context_features of model and code differ"),
        ("work_terms", None, "work_terms"),
        ("batch_size", None, "batch_size"),
    ],
)
def test_an_incompatible_description_is_refused(compute_model, tmp_path, field, value, message):
    compute_model.save(tmp_path)
    description = json.loads((tmp_path / "model.json").read_text())
    description[field] = value
    if value is None:
        del description[field]
    (tmp_path / "model.json").write_text(json.dumps(description))
    with pytest.raises(CostModelError, match=message) as caught:
        ComputeCostModel.load(tmp_path)
    assert "kedro run --pipeline pretrain" in str(caught.value)
