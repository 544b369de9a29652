"""`DistributedModelParallel` trains with plans of this project to the same losses as the unsharded model.

What a plan's price counts is what TorchRec exchanges in a step: collectives, ids, bags and floats.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter

import numpy as np
import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec_bridge.drawn_plans import HOSTS, TYPES, plans_to_train
from torchrec_bridge.rank_functions import counted_operations, losses_under_planner, trained_under_plans
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.trained_models import Batches, built

from neuroshard_pipeline.search.parts import all_to_alls, reductions
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.constraints import SEQUENCE_TYPES
from neuroshard_pipeline.tables.placed import placed_shards
from neuroshard_pipeline.tables.step_work import QUANTITIES, group_of, rank_work, torchrec_type
from neuroshard_pipeline.torchrec_plan.structures import read_sharding_plan

pytestmark = [pytest.mark.slow, *QUIET]

#: World size → training steps; the second one sees the weights that the first one has updated.
STEPS = {2: 4, 4: 2, 6: 3}
#: Names in `torch.distributed` of the reductions that are compared. An all_reduce starts in C++ and is not recorded.
NAMES = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}


@pytest.fixture(scope="module", params=STEPS)
def trained(request, tmp_path_factory) -> tuple[int, list[dict]]:
    """World size, and what each rank returns for every plan; for TorchRec, 4 or 6 ranks are on two hosts."""
    world_size, folder = request.param, tmp_path_factory.mktemp("ranks")
    local = HOSTS[world_size]
    return world_size, run_ranks(world_size, folder, trained_under_plans, STEPS[world_size], local_world_size=local)


def test_losses_under_plans_of_every_type_equal_those_of_the_unsharded_model(trained):
    world_size, answers = trained
    assert len(answers[0]) == len(plans_to_train(world_size))
    for name in answers[0]:
        losses = np.array([answer[name][0] for answer in answers])
        assert losses.shape == (world_size, STEPS[world_size], 2)
        np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=1e-4, err_msg=name)
        assert np.ptp(losses[0, :, 0]) > 0.005, name


def test_the_plans_contain_the_difficult_cases():
    for kind, world_size in (("dlrm", 2), ("several_collections", 4)):
        placed: dict[str, list[tuple[int, int]]] = {}
        plan = plans_to_train(world_size)[f"{kind}, columns"][1]
        for shard, rank in zip(plan.shards, plan.ranks, strict=True):
            placed.setdefault(shard.table.name, []).append((shard.embedding_dim, rank))
        assert any(len({width for width, _ in shards}) > 1 for shards in placed.values()), "uneven shards"
        assert any(len({rank for _, rank in shards}) < len(shards) for shards in placed.values()), "two on one rank"
    plans = plans_to_train(4)
    shards = [shard for _, plan in plans.values() for shard in plan.shards]
    kinds = {(shard.sharding_type, shard.table.pooling) for shard in shards}
    assert kinds >= {(name, "sum") for name in TYPES}
    assert kinds >= {(name, "mean") for name in TYPES if name != "grid_shard"}
    assert kinds >= {(name, "none") for name in SEQUENCE_TYPES}
    for field, value in (("is_weighted", True), ("num_features", 3)):
        types = {shard.sharding_type for shard in shards if getattr(shard.table, field) == value}
        assert types == set(TYPES), field
    of_sequences = ({torchrec_type(s) for s in plan.shards if s.table.pooling == "none"} for _, plan in plans.values())
    assert any(types >= {"table_wise", "column_wise"} for types in of_sequences), "whole sequence tables and cut ones"
    rows = {(shard.table.name, shard.num_rows) for shard in shards if shard.sharding_type == "row_wise"}
    assert len(rows) > len({name for name, _ in rows}), "row shards of one table with different numbers of rows"


def test_losses_under_the_planner_equal_those_of_the_unsharded_model(tmp_path):
    answers = run_ranks(2, tmp_path, losses_under_planner, "several_collections", STEPS[2])
    losses = np.array([losses for losses, _ in answers])
    np.testing.assert_allclose(losses[..., 0], losses[..., 1], rtol=1e-4)
    placed = [of_rank for _, of_rank in answers]
    assert placed == placed[:1] * 2, "all ranks train with the same plan"


@pytest.mark.parametrize(("unsplit", "times"), [("column_wise", 1), ("table_wise", 2)])
def test_every_table_column_wise_gives_one_lookup_and_one_set_of_all_to_alls(tmp_path, unsplit, times):
    """If whole tables are `table_wise` and split ones `column_wise`, there are two lookups and two sets."""
    for counts in run_ranks(2, tmp_path, counted_operations, unsplit):
        assert counts == {"lookups": times, "all_to_alls": 5 * times}


@functools.cache
def trained_plans(world_size: int) -> dict[str, Plan]:
    """The plans as TorchRec holds them, with the tables' ids per sample in the batch of the last step.

    If a table has column shards of different widths on one rank, `to_torchrec` joins the table's shards on every rank.
    """
    plans = {}
    for name, (kind, plan) in plans_to_train(world_size).items():
        model = built(kind)
        batches = Batches(model, world_size)
        ids = {}
        _, drawn, _ = batches.draw(STEPS[world_size] - 1, slice(0, batches.samples))
        for (configs, _), keyed in zip(batches.collections, drawn, strict=True):
            for config in configs:
                ids[config.name] = sum(len(keyed[feature].values()) for feature in config.feature_names)
        tables = {
            table.name: dataclasses.replace(table, pooling_factor=ids[table.name] / batches.samples)
            for table in plan.task.tables
        }
        held = read_sharding_plan(plan.to_torchrec(model, compute_device="cpu"), tables)
        plans[name] = Plan(dataclasses.replace(plan.task, tables=tuple(tables.values())), *held, name)
    return plans


def exchange_groups(plan):
    """Pairs of module and sharding type that exchange ids."""
    return {group_of(shard) for shard in plan.shards if shard.sharding_type != "data_parallel"}


def test_the_number_of_all_to_alls_is_that_of_the_groups(trained):
    """Sizes, lengths, ids and weights of every group that exchanges ids, and outputs forward and backward."""
    world_size, answers = trained
    for name, plan in trained_plans(world_size).items():
        groups = exchange_groups(plan)
        outputs = all_to_alls(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
        expected = sum(3 + module.is_weighted for module, _ in groups) + 2 * len(outputs)
        for of_rank in answers:
            assert sum(call[0] == "all_to_all_single" for call in of_rank[name][1]) == expected, name


def test_reductions_are_those_of_torchrec_on_every_rank(trained):
    world_size, answers = trained
    for name, plan in trained_plans(world_size).items():
        counted = [
            each
            for each in reductions(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
            if each.collective in NAMES
        ]
        for rank, of_rank in enumerate(answers):
            expected = Counter((NAMES[r.collective], r.num_ranks, round(r.size_bytes[rank] / 4)) for r in counted)
            found = Counter(call[:3] for call in of_rank[name][1] if call[0] in NAMES.values())
            assert found == expected, name


def test_ids_and_bags_are_those_of_torchrec(trained):
    world_size, answers = trained
    for name, plan in trained_plans(world_size).items():
        work = dict(zip(QUANTITIES, 1e6 * rank_work(plan.task, plan.shards, plan.ranks).T, strict=True))
        sizes = sum(world_size * (3 + module.is_weighted) for module, _ in exchange_groups(plan))
        sent = [sum(call[2] for call in of_rank[name][1] if call[3] == "torch.int64") - sizes for of_rank in answers]
        assert sum(sent) == pytest.approx((work["sent_bags"] + work["sent_ids"]).sum()), name
        assert sum(sent) == pytest.approx((work["bags"] + work["ids"]).sum()), name


def test_floats_of_outputs_are_those_of_torchrec(trained):
    world_size, answers = trained
    for name, plan in trained_plans(world_size).items():
        outputs = all_to_alls(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
        forward = plan.task.batch_size * np.sum(list(outputs.values()))
        work = dict(zip(QUANTITIES, 1e6 * rank_work(plan.task, plan.shards, plan.ranks).T, strict=True))
        weights = work["weights"].sum()
        assert weights == pytest.approx(work["sent_weights"].sum()), name
        floats = [call for of_rank in answers for call in of_rank[name][1] if call[3] == "torch.float32"]
        sent = sum(call[2] for call in floats if call[0] == "all_to_all_single")
        assert sent == pytest.approx(2 * forward + weights), name
