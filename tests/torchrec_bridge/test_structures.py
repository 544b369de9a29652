"""Plans survive TorchRec's structures, and what TorchRec cannot hold is joined."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec import DataType, EmbeddingBagCollection, EmbeddingBagConfig
from torchrec_bridge.plan_strategies import module_names, plans

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.joining import joined_for_torchrec
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json
from neuroshard_pipeline.torchrec_bridge.structures import from_torchrec, to_torchrec

pytestmark = QUIET


def model_of(plan: Plan) -> torch.nn.Module:
    tables = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            feature_names=[table.name],
            data_type=DataType[table.data_type.upper()],
        )
        for table in plan.task.tables
    ]
    return torch.nn.ModuleDict({"m": EmbeddingBagCollection(tables=tables, device=torch.device("meta"))})


def placed(plan: Plan) -> set:
    return set(zip(plan.shards, plan.ranks, strict=True))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans(module_names))
def test_200_random_plans_survive_torchrecs_structures(plan):
    back = from_torchrec(plan.to_torchrec(model_of(plan)), plan.task, plan.sharder, plan.memory)
    held = joined_for_torchrec(plan)
    assert placed(back) == placed(held)
    assert back.dim_sums == plan.dim_sums
    assert all(new <= old for new, old in zip(back.memory_bytes, plan.memory_bytes, strict=True))


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans(module_names))
def test_joined_plans_hold_equal_widths_per_table_and_rank_and_touch_nothing_else(plan):
    held = joined_for_torchrec(plan)
    widths = defaultdict(set)
    for shard, rank in zip(held.shards, held.ranks, strict=True):
        widths[shard.table.name, rank].add(shard.embedding_dim)
    assert all(len(of_rank) == 1 for of_rank in widths.values())
    before = defaultdict(set)
    for shard, rank in zip(plan.shards, plan.ranks, strict=True):
        before[shard.table.name, rank].add(shard.embedding_dim)
    untouched = {table.name for table in plan.task.tables} - {t for (t, _), w in before.items() if len(w) > 1}
    assert {p for p in placed(held) if p[0].table.name in untouched} == {
        p for p in placed(plan) if p[0].table.name in untouched
    }
    assert joined_for_torchrec(held) is held


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans(module_names))
def test_json_and_structures_say_the_same(plan):
    document = plan_to_json(plan, compute_device="cpu", module_path="m")["plan"]["m"]
    for name, parameter in to_torchrec(plan, model_of(plan), compute_device="cpu").plan["m"].items():
        assert document[name] == {
            "sharding_type": parameter.sharding_type,
            "compute_kernel": parameter.compute_kernel,
            "ranks": parameter.ranks,
            "sharding_spec": {
                "shards": [
                    {
                        "shard_offsets": shard.shard_offsets,
                        "shard_sizes": shard.shard_sizes,
                        "placement": str(shard.placement),
                    }
                    for shard in parameter.sharding_spec.shards
                ]
            },
        }


def test_equal_shards_on_one_rank_go_out_as_they_are():
    table = Table("a", 10, 64, 1.0)
    shards = (Shard(table, 0, 32), Shard(table, 32, 16), Shard(table, 48, 16))
    plan = Plan(ShardingTask([table], 2, 8, 2**20), shards, (0, 1, 1), "neuroshard")
    assert joined_for_torchrec(plan) is plan


def test_unequal_shards_on_one_rank_become_one():
    table = Table("a", 10, 64, 1.0)
    shards = (Shard(table, 0, 8), Shard(table, 8, 32), Shard(table, 40, 24))
    plan = Plan(ShardingTask([table], 2, 8, 2**20), shards, (1, 0, 1), "neuroshard")
    assert placed(joined_for_torchrec(plan)) == {(Shard(table, 0, 32), 1), (Shard(table, 32, 32), 0)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parameters: parameters["a"].__setattr__("sharding_type", "row_wise"), "'a' is sharded row_wise"),
        (lambda parameters: parameters.__setitem__("b", parameters.pop("a")), "the table 'b', which the task"),
        (lambda parameters: parameters.clear(), "not covered"),
    ],
)
def test_other_plans_of_torchrec_are_refused(change, message):
    table = Table("a", 10, 64, 1.0)
    plan = Plan(ShardingTask([table], 1, 8, 2**20), (Shard(table, 0, 64),), (0,), "neuroshard")
    theirs = to_torchrec(plan, model_of(plan))
    change(theirs.plan["m"])
    with pytest.raises(PlanError, match=message):
        from_torchrec(theirs, plan.task)
