import numpy as np

from neuroshard_pipeline.cost_models.initial_weights import relative_nnls


def test_relative_nnls_finds_prices():
    rng = np.random.default_rng(0)
    work = rng.random((50, 3)) * [1, 10, 100]
    np.testing.assert_allclose(relative_nnls(work, work @ [3.0, 0.0, 0.02] + 1e-12), [3, 0, 0.02], atol=1e-6)
