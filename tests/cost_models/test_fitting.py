import numpy as np
import pytest
import torch

from neuroshard_pipeline.cost_models import CommTrainParams
from neuroshard_pipeline.cost_models.fitting import fit, relative_loss
from neuroshard_pipeline.cost_models.measured import Split

from .conftest import FIT

#: 16 training samples, 4 validation samples and no test samples.
SPLIT = Split(np.arange(16), np.arange(16, 20), np.arange(0))


def params(**changes):
    return CommTrainParams(**{**FIT, "weight_decay": 0.0, **changes})


def towards(target):
    """Loss of every member: each is a line through the origin, whose slope should be `target`."""
    x = torch.arange(20, dtype=torch.float32)
    return lambda weights, rows: ((weights["slope"][:, 0] * x[rows] - target * x[rows]) ** 2).mean(dim=1)


def run(loss, **changes):
    start = {"slope": torch.zeros(3, 1, 1), "once.terms": torch.ones(3, 1, 1)}
    generator = torch.Generator().manual_seed(0)
    return start, fit(start, loss, SPLIT, params(**changes), generator, "line")


def test_every_member_finds_the_line():
    start, fitted = run(towards(0.5), learning_rate=0.1, epochs=200)
    np.testing.assert_allclose(fitted["slope"].ravel(), 0.5, atol=0.02)
    assert torch.all(start["slope"] == 0), "the caller's weights must not change"
    np.testing.assert_array_equal(fitted["once.terms"], np.ones((3, 1, 1)))


def test_the_weights_of_the_best_epoch_are_kept_not_the_last():
    """Training lowers its own loss and raises the validation loss, so that the first epoch is the best."""

    def loss(weights, rows):
        return towards(-1.0 if rows.max() >= 16 else 1.0)(weights, rows)

    _, fitted = run(loss, learning_rate=0.1, epochs=6)
    assert np.all(fitted["slope"] < 0.2)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_relative_loss_does_not_depend_on_scale_and_is_even_in_the_logarithm(factor):
    small = relative_loss(torch.tensor([factor * 0.1]), torch.tensor([0.1]), 0.05)
    large = relative_loss(torch.tensor([factor * 10.0]), torch.tensor([10.0]), 0.05)
    mirrored = relative_loss(torch.tensor([10.0]), torch.tensor([factor * 10.0]), 0.05)
    torch.testing.assert_close(small, large)
    torch.testing.assert_close(large, mirrored)


def test_relative_loss_is_quadratic_within_the_noise_and_linear_beyond():
    at = [relative_loss(torch.exp(torch.tensor([gap])), torch.ones(1), 0.1).item() for gap in (0.05, 0.1, 0.2, 0.3)]
    assert at == pytest.approx([0.125, 0.5, 1.5, 2.5], rel=1e-4)
