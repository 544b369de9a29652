"""`DistributedModelParallel` trains with plans of this project to the same losses as the unsharded model."""

from __future__ import annotations

import numpy as np
import pytest
from torchrec_bridge.needs_torchrec import QUIET
from torchrec_bridge.rank_functions import counted_operations, losses_under_planner, losses_under_random_plan
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.training import MODELS, built, random_plan

pytestmark = [pytest.mark.slow, *QUIET]

STEPS = 20
CASES = [(kind, world_size) for kind in MODELS for world_size in (2, 4, 8)]


@pytest.mark.parametrize(("kind", "world_size"), CASES)
def test_losses_under_a_plan_equal_those_of_the_unsharded_model(tmp_path, kind, world_size):
    losses = np.array(run_ranks(world_size, tmp_path, losses_under_random_plan, kind, STEPS))
    assert losses.shape == (world_size, STEPS, 2)
    np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=1e-4)
    assert np.ptp(losses[0, :, 0]) > 0.01


@pytest.mark.parametrize(("kind", "world_size"), CASES)
def test_the_plans_contain_the_difficult_cases(kind, world_size):
    plan = random_plan(built(kind), world_size)
    placed: dict[str, list[tuple[int, int]]] = {}
    for shard, rank in zip(plan.shards, plan.ranks, strict=True):
        placed.setdefault(shard.table.name, []).append((shard.embedding_dim, rank))
    assert any(len({width for width, _ in shards}) > 1 for shards in placed.values()), "uneven shards"
    assert any(len({rank for _, rank in shards}) < len(shards) for shards in placed.values()), "two on one rank"


@pytest.mark.parametrize(("kind", "world_size"), [("dlrm", 4), ("several_collections", 2)])
def test_losses_under_the_planner_equal_those_of_the_unsharded_model(tmp_path, kind, world_size):
    answers = run_ranks(world_size, tmp_path, losses_under_planner, kind, STEPS)
    losses = np.array([losses for losses, _ in answers])
    np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=1e-4)
    assert len({splits for _, splits in answers}) == 1, "all ranks train with the same plan"


@pytest.mark.parametrize(("unsplit", "times"), [("column_wise", 1), ("table_wise", 2)])
def test_every_table_column_wise_gives_one_lookup_and_one_set_of_all_to_alls(tmp_path, unsplit, times):
    for counts in run_ranks(2, tmp_path, counted_operations, unsplit):
        assert counts == {"lookups": times, "all_to_alls": 5 * times}
