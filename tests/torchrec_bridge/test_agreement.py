"""An error on one rank is raised on all ranks."""

from __future__ import annotations

import pytest
from torchrec_bridge.needs_torchrec import QUIET
from torchrec_bridge.rank_functions import collective_plan_errors, subgroup_plan
from torchrec_bridge.ranks import run_ranks

pytestmark = [pytest.mark.slow, *QUIET]


FAILURES = {
    "no room on the first rank": ("DoesNotFitError", "bytes"),
    "table missing on the last rank": ("PlanError", "has other tables, pooling factors or module names than rank 0"),
    "bad constraint on the last rank": ("PlanError", "a constraint names the table 'nowhere'"),
    "other hosts on the last rank": ("PlanError", "rank 1 of 2: other hosts"),
    "more ranks than the process group": (
        "PlanError",
        "the plan is for 4 ranks (those of the topology times the replica groups), but the process group has 2",
    ),
}


def test_every_rank_raises_the_error_and_can_plan_again(tmp_path):
    for errors in run_ranks(2, tmp_path, collective_plan_errors, list(FAILURES)):
        for (kind, message), (expected, words) in zip(errors, FAILURES.values(), strict=True):
            assert kind == expected
            assert words in message


def test_a_group_without_rank_0_plans(tmp_path):
    first, *placements = run_ranks(3, tmp_path, subgroup_plan)
    assert first == []
    assert placements[0]
    assert placements[0] == placements[1]
