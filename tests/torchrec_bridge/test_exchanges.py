"""What a plan's price counts is what TorchRec exchanges in a step: collectives, ids, bags and floats."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from torchrec_bridge.drawn_plans import HOSTS, plans_to_train
from torchrec_bridge.needs_torchrec import QUIET
from torchrec_bridge.rank_functions import recorded_exchanges
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.trained_models import Batches, built

from neuroshard_pipeline.search.parts import all_to_alls, reductions
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.placed import placed_shards
from neuroshard_pipeline.tables.step_work import QUANTITIES, exchange_groups, rank_work
from neuroshard_pipeline.torchrec_plan.structures import read_sharding_plan

pytestmark = [pytest.mark.slow, *QUIET]

#: Names in `torch.distributed` of the reductions that are compared. An all_reduce starts in C++ and is not recorded.
NAMES = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}


@pytest.fixture(scope="module", params=[2, 4])
def recorded(request, tmp_path_factory) -> tuple[int, list[dict]]:
    """World size, and the collectives of each rank: of two ranks on one host, and of four ranks on two hosts."""
    world_size, folder = request.param, tmp_path_factory.mktemp("ranks")
    return world_size, run_ranks(world_size, folder, recorded_exchanges, local_world_size=HOSTS[world_size])


def trained_plans(world_size: int) -> dict[str, Plan]:
    """The plans as TorchRec holds them, with the tables' ids per sample in the batch that the ranks exchanged.

    If a table has column shards of different widths on one rank, `to_torchrec` joins the table's shards on every rank.
    """
    plans = {}
    for name, (kind, plan) in plans_to_train(world_size).items():
        model = built(kind)
        batches = Batches(model, world_size)
        ids = {}
        for (configs, _), keyed in zip(batches.collections, batches.draw(0, slice(0, batches.samples))[1], strict=True):
            for config in configs:
                ids[config.name] = sum(len(keyed[feature].values()) for feature in config.feature_names)
        tables = {
            table.name: dataclasses.replace(table, pooling_factor=ids[table.name] / batches.samples)
            for table in plan.task.tables
        }
        held = read_sharding_plan(plan.to_torchrec(model, compute_device="cpu"), tables)
        plans[name] = Plan(dataclasses.replace(plan.task, tables=tuple(tables.values())), *held, name)
    return plans


def test_the_number_of_all_to_alls_is_that_of_the_groups(recorded):
    """Sizes, lengths, ids and weights of every group that exchanges ids, and outputs forward and backward."""
    world_size, calls = recorded
    for name, plan in trained_plans(world_size).items():
        groups = exchange_groups(plan.shards)
        outputs = all_to_alls(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
        expected = sum(3 + module.is_weighted for module, _ in groups) + 2 * len(outputs)
        for of_rank in calls:
            assert sum(call[0] == "all_to_all_single" for call in of_rank[name]) == expected, name


def test_reductions_are_those_of_torchrec_on_every_rank(recorded):
    world_size, calls = recorded
    for name, plan in trained_plans(world_size).items():
        counted = [
            each
            for each in reductions(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
            if each.collective in NAMES
        ]
        for rank, of_rank in enumerate(calls):
            expected = Counter((NAMES[r.collective], r.num_ranks, round(r.size_bytes[rank] / 4)) for r in counted)
            found = Counter(call[:3] for call in of_rank[name] if call[0] in NAMES.values())
            assert found == expected, name


def test_ids_and_bags_are_those_of_torchrec(recorded):
    world_size, calls = recorded
    for name, plan in trained_plans(world_size).items():
        work = dict(zip(QUANTITIES, 1e6 * rank_work(plan.task, plan.shards, plan.ranks).T, strict=True))
        sizes = sum(world_size * (3 + module.is_weighted) for module, _ in exchange_groups(plan.shards))
        sent = [sum(call[2] for call in of_rank[name] if call[3] == "torch.int64") - sizes for of_rank in calls]
        assert sum(sent) == pytest.approx((work["sent_bags"] + work["sent_ids"]).sum()), name
        assert sum(sent) == pytest.approx((work["bags"] + work["ids"]).sum()), name


def test_floats_of_outputs_are_those_of_torchrec(recorded):
    world_size, calls = recorded
    for name, plan in trained_plans(world_size).items():
        outputs = all_to_alls(plan.task, placed_shards(plan.shards, plan.ranks, plan.task.world_size))
        forward = plan.task.batch_size * np.sum(list(outputs.values()))
        work = dict(zip(QUANTITIES, 1e6 * rank_work(plan.task, plan.shards, plan.ranks).T, strict=True))
        weights = work["weights"].sum()
        assert weights == pytest.approx(work["sent_weights"].sum()), name
        floats = [call for of_rank in calls for call in of_rank[name] if call[3] == "torch.float32"]
        sent = sum(call[2] for call in floats if call[0] == "all_to_all_single")
        assert sent == pytest.approx(2 * forward + weights), name
