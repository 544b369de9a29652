"""`DistributedModelParallel` trains with plans of this project to the same losses as the unsharded model."""

from __future__ import annotations

import numpy as np
import pytest
from torchrec_bridge.drawn_plans import HOSTS, TYPES, plans_to_train
from torchrec_bridge.needs_torchrec import QUIET
from torchrec_bridge.rank_functions import counted_operations, losses_under_planner, losses_under_plans
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.trained_models import MODELS

from neuroshard_pipeline.tables.constraints import SEQUENCE_TYPES

pytestmark = [pytest.mark.slow, *QUIET]

LONG = 12


@pytest.mark.parametrize(("world_size", "steps"), [(2, 8), (4, 6), (8, 4)])
def test_losses_under_plans_of_every_type_equal_those_of_the_unsharded_model(tmp_path, world_size, steps):
    """For TorchRec, 4 or 8 ranks are on two hosts. The processes start once and train all plans in turn."""
    local = HOSTS[world_size]
    answers = run_ranks(world_size, tmp_path, losses_under_plans, steps, local_world_size=local)
    assert len(answers[0]) == len(plans_to_train(world_size))
    for name in answers[0]:
        losses = np.array([answer[name] for answer in answers])
        assert losses.shape == (world_size, steps, 2)
        np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=1e-4, err_msg=name)
        assert np.ptp(losses[0, :, 0]) > 0.005, name


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_the_plans_contain_the_difficult_cases(world_size):
    plans = plans_to_train(world_size)
    for kind in MODELS:
        placed: dict[str, list[tuple[int, int]]] = {}
        plan = plans[f"{kind}, columns"][1]
        for shard, rank in zip(plan.shards, plan.ranks, strict=True):
            placed.setdefault(shard.table.name, []).append((shard.embedding_dim, rank))
        assert any(len({width for width, _ in shards}) > 1 for shards in placed.values()), "uneven shards"
        assert any(len({rank for _, rank in shards}) < len(shards) for shards in placed.values()), "two on one rank"
    shards = [shard for _, plan in plans.values() for shard in plan.shards]
    kinds = {(shard.sharding_type, shard.table.pooling) for shard in shards}
    assert kinds >= {(name, "sum") for name in TYPES}
    assert kinds >= {(name, "mean") for name in TYPES if name != "grid_shard"}
    assert kinds >= {(name, "none") for name in SEQUENCE_TYPES}
    for field, value in (("is_weighted", True), ("num_features", 3)):
        types = {shard.sharding_type for shard in shards if getattr(shard.table, field) == value}
        assert types == set(TYPES), field
    rows = {(shard.table.name, shard.num_rows) for shard in shards if shard.sharding_type == "row_wise"}
    assert len(rows) > len({name for name, _ in rows}), "row shards of one table with different numbers of rows"


@pytest.mark.parametrize(("kind", "world_size"), [("dlrm", 4), ("several_collections", 2)])
def test_losses_under_the_planner_equal_those_of_the_unsharded_model(tmp_path, kind, world_size):
    answers = run_ranks(world_size, tmp_path, losses_under_planner, kind, LONG)
    losses = np.array([losses for losses, _ in answers])
    np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=1e-4)
    placed = [of_rank for _, of_rank in answers]
    assert placed == placed[:1] * world_size, "all ranks train with the same plan"


@pytest.mark.parametrize(("unsplit", "times"), [("column_wise", 1), ("table_wise", 2)])
def test_every_table_column_wise_gives_one_lookup_and_one_set_of_all_to_alls(tmp_path, unsplit, times):
    """If whole tables are `table_wise` and split ones `column_wise`, there are two lookups and two sets."""
    for counts in run_ranks(2, tmp_path, counted_operations, unsplit):
        assert counts == {"lookups": times, "all_to_alls": 5 * times}
