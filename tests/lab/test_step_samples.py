"""Samples of steps: linear prices per unit of work describe the lab's formulas."""

from __future__ import annotations

import numpy as np
import pytest

from neuroshard_pipeline.cost_models.step import PARTS as PARTS_OF_STEP
from neuroshard_pipeline.cost_models.step import fit_prices
from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.step_samples import PARTS, step_samples
from neuroshard_pipeline.tables.step_work import QUANTITIES


@pytest.fixture(scope="module")
def samples():
    """Plans on three hosts of two ranks."""
    network = network_preset("h100-ib400").model_copy(update={"gpus_per_host": 2})
    return step_samples(modelled_device("h100"), network, 6, 32, np.random.default_rng(0))


def test_every_rank_of_every_plan_has_work_and_costs(samples):
    assert samples.work.shape == (32 * 6, len(QUANTITIES))
    assert {part: values.shape for part, values in samples.cost_ms.items()} == dict.fromkeys(PARTS, (192,))
    assert np.bincount(samples.plan).tolist() == [6] * 32


def test_some_plans_communicate_in_half_precision_send_ids_once_or_have_tiers(samples):
    for name in ("converted", "deduplicated", "expanded"):
        has_work = samples.work[:, list(QUANTITIES).index(name)].reshape(32, 6).any(axis=1)
        assert 0.05 < has_work.mean() < 0.5, name


@pytest.mark.parametrize("part", ["input_dist", "module"])
def test_linear_prices_of_other_plans_are_close(samples, part):
    held_out = samples.plan % 4 == 0
    cost_ms = samples.cost_ms[part][~held_out]
    prices = fit_prices(PARTS_OF_STEP[part], samples.work[~held_out], cost_ms, cost_ms)
    predicted = samples.work[held_out] @ np.array([prices.get(name, 0.0) for name in QUANTITIES])
    errors = np.abs(predicted / samples.cost_ms[part][held_out] - 1)
    assert np.median(errors) < 0.15


def test_dense_gradients_cost_in_proportion_to_their_bytes(samples):
    """Three passes for gradients and three of SGD at 85.71 % of 3.35 TB/s, three launches per kernel of replicas."""
    gradients, modules = samples.work[:, [list(QUANTITIES).index(name) for name in ("gradients", "replicas")]].T
    passes_ms = 6 * 4 * gradients * 1e6 / (0.8571 * 3350e6)
    launches_ms = 3 * modelled_device("h100").kernels.forward_launch_us / 1e3
    kernels = (samples.cost_ms["dense"] - passes_ms) / launches_ms
    assert kernels == pytest.approx(np.round(kernels), abs=1e-6)
    assert (np.round(kernels) >= modules).all(), "a module has at least one kernel"
