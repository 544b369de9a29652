import numpy as np
import pytest
import torch

from neuroshard_pipeline.cost_models.compute_training import fit_compute, predict_compute
from neuroshard_pipeline.cost_models.distillation import SelfDistillation
from neuroshard_pipeline.cost_models.measured import ComputeData, split_samples
from neuroshard_pipeline.cost_models.metrics import mape

COSTS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def started(weight):
    """One member, which predicts `weights["cost"]` for every sample, plus the noise of the channel (0 or 0.5)."""

    def predict(weights, rows, noise):
        return (weights["cost"] + noise).expand(1, len(rows), 2)

    def loss(predicted, target):
        return ((predicted - target) ** 2).mean(dim=(1, 2))

    return SelfDistillation(predict, loss, COSTS, members=1, weight=weight, view_noise=0.5)


def test_each_channel_learns_from_the_earlier_prediction_of_the_other():
    loss = started(0.25)
    rows = np.array([2, 0])
    measured = COSTS[[2, 0]]

    def plain(cost):
        return float(((cost - measured) ** 2).mean())

    first = loss({"cost": torch.tensor(1.0)}, rows)
    assert float(first) == pytest.approx((plain(1.0) + plain(1.5)) / 2)
    second = loss({"cost": torch.tensor(4.0)}, rows)
    clean = 0.75 * plain(4.0) + 0.25 * (4.0 - 1.5) ** 2
    noisy = 0.75 * plain(4.5) + 0.25 * (4.5 - 1.0) ** 2
    assert float(second) == pytest.approx((clean + noisy) / 2)
    third = loss({"cost": torch.tensor(4.0)}, rows)  # its soft targets are the predictions of the second call
    assert float(third) == pytest.approx((0.75 * plain(4.0) + 0.75 * plain(4.5) + 2 * 0.25 * 0.5**2) / 2)
    assert loss.soft[:, 0, 1].isnan().all()  # was never in a batch


def test_soft_targets_are_not_learned_through():
    loss = started(0.5)
    cost = torch.tensor(1.0, requires_grad=True)
    loss({"cost": cost}, np.array([0]))
    assert not loss.soft.requires_grad


def with_wrong_labels(data, share, seed):
    """The data with some costs multiplied or divided by a factor of up to three."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(len(data.samples)) < share
    factor = np.exp(rng.uniform(-1.1, 1.1, len(data.samples)))
    return ComputeData(data.samples, np.where(wrong[:, None], data.costs_ms * factor[:, None], data.costs_ms), 0)


def test_training_with_smc2_is_deterministic_and_learns_from_noisy_labels(compute_training, compute_params):
    split = split_samples(compute_training.sample_ids, 0.1, 0.2, 0)
    noisy = with_wrong_labels(compute_training, 0.2, seed=0)
    params = compute_params.model_copy(update={"distillation": "smc2", "epochs": 20})
    model, _ = fit_compute(noisy, split, params, {})
    again, _ = fit_compute(noisy, split, params, {})
    plain, _ = fit_compute(noisy, split, params.model_copy(update={"distillation": "none"}), {})
    for name, value in model.network.weights.items():
        np.testing.assert_array_equal(again.network.weights[name], value)
    assert any(not np.array_equal(plain.network.weights[name], value) for name, value in model.network.weights.items())
    clean = compute_training.take(split.test)
    assert mape(clean.costs_ms.sum(axis=1), predict_compute(model, clean.samples).sum(axis=1)) < 0.12
