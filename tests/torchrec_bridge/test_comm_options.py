"""TorchRec trains with half-precision communication and in replica groups under plans of this project, on gloo."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec_bridge.drawn_plans import planner
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.replica_ranks import (
    losses_in_precision,
    losses_in_replica_groups,
    mixed_sharder,
    pooled_plan,
    recorded_in_precision,
)
from torchrec_bridge.trained_models import built

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.parts import all_to_alls, reductions
from neuroshard_pipeline.tables.placed import placed_shards
from neuroshard_pipeline.torchrec_bridge import torchrec_sharders
from neuroshard_pipeline.torchrec_plan.comm_precision import precision_of

pytestmark = [pytest.mark.slow, *QUIET]

STEPS = 2
#: Errors of half precision grow with the steps.
STEPS_IN_HALF_PRECISION = 4


def test_losses_in_half_precision_are_close_to_those_in_fp32(tmp_path):
    answers = run_ranks(2, tmp_path, losses_in_precision, "fp16", STEPS_IN_HALF_PRECISION)
    losses = np.array([losses for losses, _ in answers])
    np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=3e-3)
    apart = max(apart for _, apart in answers)
    assert 1e-5 < apart < 1e-2, "fp16, the format on the links, has 11 significant bits"


def test_bytes_of_rows_and_gradients_in_half_precision_are_those_of_torchrec(tmp_path):
    calls = run_ranks(2, tmp_path, recorded_in_precision, "fp16")
    plan = pooled_plan(2)
    task = replace(plan.task, comm_precision="fp16")
    placed = placed_shards(plan.shards, plan.ranks, task.world_size)
    words = sum(dims.sum() for dims in all_to_alls(task, placed).values())
    halves = [call for of_rank in calls for call in of_rank if call[3] == "torch.float16"]
    assert not any(call[3] == "torch.float32" for of_rank in calls for call in of_rank)
    sent = sum(2 * call[2] for call in halves if call[0] == "all_to_all_single")
    assert sent == 2 * 4 * task.batch_size * words
    reduced = [each for each in reductions(task, placed) if each.collective != "all_reduce"]
    found = Counter((call[0].split("_tensor")[0], 2 * call[2]) for call in halves if "all_to_all" not in call[0])
    names = {"reduce_scatter": "reduce_scatter", "all_gather": "all_gather_into"}
    assert found == Counter((names[each.collective], size) for each in reduced for size in each.size_bytes)


@pytest.mark.parametrize(("interval", "is_equal"), [(1, True), (STEPS + 1, False)])
def test_replica_groups_that_average_in_every_step_train_like_one_group(tmp_path, interval, is_equal):
    """With SGD, averaged weights are those after a step with the mean gradient; without averages, the groups differ."""
    answers = run_ranks(4, tmp_path, losses_in_replica_groups, interval, STEPS)
    losses = np.array([losses for losses, _ in answers])
    np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=1e-6 if is_equal else 1e-2)
    assert (max(apart for _, apart in answers) < 1e-6) == is_equal


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_planner_reads_the_precision_from_the_sharders(precision):
    model = built("several_collections")
    ours = planner(model, 2)
    assert ours.task(model, torchrec_sharders(precision)).comm_precision == precision
    assert ours.task(model).comm_precision == "fp32"


def test_formats_that_no_plan_is_priced_for_are_refused():
    with pytest.raises(PlanError, match="comm_precision 'fp8' is unknown; use one of fp32, fp16, bf16"):
        torchrec_sharders("fp8")
    with pytest.raises(PlanError, match=r"communicate in bf16 and fp16; .* PlannerOptions\(comm_precision=...\)"):
        precision_of([mixed_sharder()])
    model = built("dlrm")
    ours = planner(model, 2)
    ours.options = replace(ours.options, comm_precision="bf16", num_replica_groups=2, sync_interval=5)
    task = ours.task(model, [mixed_sharder()])
    assert (task.comm_precision, task.num_replica_groups, task.sync_interval) == ("bf16", 2, 5)
