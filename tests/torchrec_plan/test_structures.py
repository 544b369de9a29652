"""Plans are written as TorchRec's structures and read back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec import EmbeddingBagCollection
from torchrec_bridge.plan_strategies import module_names, plans

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json
from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_config
from neuroshard_pipeline.torchrec_plan.structures import read_sharding_plan
from neuroshard_pipeline.torchrec_plan.writer import with_equal_widths

pytestmark = QUIET


def model_of(plan: Plan) -> torch.nn.Module:
    tables = [embedding_bag_config(table.name, table) for table in plan.task.tables]
    return torch.nn.ModuleDict({"m": EmbeddingBagCollection(tables=tables, device=torch.device("meta"))})


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans(module_names))
def test_200_random_plans_survive_torchrecs_structures(plan):
    tables = {table.name: table for table in plan.task.tables}
    back = Plan(
        plan.task,
        *read_sharding_plan(plan.to_torchrec(model_of(plan), compute_device="cuda"), tables),
        "x",
        memory=plan.memory,
    )
    for table in plan.task.tables:
        placed = zip(plan.shards, plan.ranks, strict=True)
        ordered = sorted((entry for entry in placed if entry[0].table == table), key=lambda e: e[0].column_offset)
        read = [entry for entry in zip(back.shards, back.ranks, strict=True) if entry[0].table == table]
        assert read == with_equal_widths(ordered)
    assert back.dim_sums == plan.dim_sums
    assert all(new <= old for new, old in zip(back.memory_bytes, plan.memory_bytes, strict=True))


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans(module_names))
def test_the_json_document_and_the_structures_hold_the_same(plan):
    document = plan_to_json(plan, compute_device="cpu", module_path="m")["plan"]["m"]
    for name, parameter in plan.to_torchrec(model_of(plan), compute_device="cpu").plan["m"].items():
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parameters: parameters["a"].__setattr__("sharding_type", "row_wise"), "'a' is sharded row_wise"),
        (lambda parameters: parameters.__setitem__("b", parameters.pop("a")), "the table 'b', which the sharding task"),
        (
            lambda parameters: parameters["a"].sharding_spec.shards[0].__setattr__("shard_sizes", [9, 64]),
            "10 rows, but .* 9",
        ),
    ],
)
def test_other_plans_of_torchrec_are_refused(change, message):
    table = Table("a", 10, 64, 1.0)
    plan = Plan(ShardingTask([table], 1, 8, 2**20), (Shard(table, 0, 64),), (0,), "neuroshard")
    theirs = plan.to_torchrec(model_of(plan), compute_device="cuda")
    change(theirs.plan["m"])
    with pytest.raises(PlanError, match=message):
        read_sharding_plan(theirs, {"a": table})
