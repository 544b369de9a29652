import numpy as np
import pytest

from neuroshard_pipeline.cost_models.baselines import BASELINES, fit_predict_baseline
from neuroshard_pipeline.cost_models.initialise import relative_nnls
from neuroshard_pipeline.cost_models.metrics import mape
from neuroshard_pipeline.errors import CostModelError


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_learn_the_machine_roughly(name, compute_training):
    training, test = compute_training.take(range(200)), compute_training.take(range(200, 250))
    predicted = fit_predict_baseline(name, training.samples, training.costs, test.samples, seed=0)
    assert predicted.shape == test.costs.shape
    assert mape(test.costs.sum(1), predicted.sum(1)) < 0.25


def test_an_unknown_baseline_is_refused(compute_training):
    with pytest.raises(CostModelError, match="use one of gradient_boosting, non_negative_linear"):
        fit_predict_baseline("oracle", compute_training.samples, compute_training.costs, [], seed=0)


def test_relative_nnls_finds_prices():
    rng = np.random.default_rng(0)
    work = rng.random((50, 3)) * [1, 10, 100]
    np.testing.assert_allclose(relative_nnls(work, work @ [3.0, 0.0, 0.02] + 1e-12), [3, 0, 0.02], atol=1e-6)
