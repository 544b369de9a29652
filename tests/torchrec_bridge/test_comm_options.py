"""TorchRec trains with half-precision communication and in replica groups under plans of this project, on gloo."""

from __future__ import annotations

import numpy as np
import pytest
from torchrec_bridge.needs_torchrec import QUIET
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.replica_ranks import losses_in_precision, losses_in_replica_groups

from neuroshard_pipeline.torchrec_plan.comm_precision import torchrec_sharders

pytestmark = [pytest.mark.slow, *QUIET]

STEPS = 6


def test_losses_in_half_precision_are_close_to_those_in_fp32(tmp_path):
    answers = run_ranks(2, tmp_path, losses_in_precision, "fp16", STEPS)
    losses = np.array([losses for losses, _ in answers])
    np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=3e-3)
    apart = max(apart for _, apart in answers)
    assert 1e-5 < apart < 1e-2, "the numbers on the links have 11 bits"


@pytest.mark.parametrize(("interval", "is_equal"), [(1, True), (STEPS + 1, False)])
def test_replica_groups_that_average_in_every_step_train_like_one_group(tmp_path, interval, is_equal):
    """SGD's average of two groups is a step with the mean gradient; before it, the groups have different weights."""
    answers = run_ranks(4, tmp_path, losses_in_replica_groups, interval, STEPS)
    losses = np.array([losses for losses, _ in answers])
    np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=1e-6 if is_equal else 1e-2)
    assert (max(apart for _, apart in answers) < 1e-6) == is_equal


def test_unknown_precisions_are_refused():
    with pytest.raises(ValueError, match="comm_precision 'fp8' is unknown; use one of fp32, fp16, bf16"):
        torchrec_sharders("fp8")
