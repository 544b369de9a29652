"""Modules whose tables have tiers train to the same losses as the unsharded model, and keep its state."""

from __future__ import annotations

import numpy as np
import pytest
from torchrec_bridge.needs_torchrec import QUIET
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.tiered_ranks import STEPS, Case, losses_with_tiers

pytestmark = [pytest.mark.slow, *QUIET]

CASES = {
    2: [
        Case("sgd", "column_wise", False, 2),
        Case("rowwise_adagrad", "row_wise", False, 2),
        Case("rowwise_adagrad", "table_wise", True, 2),
        Case("sgd", "row_wise", True, 1),
    ],
    4: [
        Case("rowwise_adagrad", "table_wise", False, 2),
        Case("sgd", "column_wise", True, 2),
        Case("rowwise_adagrad", "row_wise", True, 2),
    ],
    8: [Case("rowwise_adagrad", "row_wise", False, 4)],
}


@pytest.mark.parametrize("world_size", CASES)
def test_losses_equal_those_of_the_unsharded_model(tmp_path, world_size):
    answers = run_ranks(world_size, tmp_path, losses_with_tiers, CASES[world_size])
    losses = np.array(answers)  # (ranks, cases, steps, 2)
    assert losses.shape == (world_size, len(CASES[world_size]), STEPS, 2)
    np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=1e-4)
    assert (np.ptp(losses[..., 0], axis=2) > 0.01).all()
