"""A plan that is written to JSON and read back is the same plan."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec_bridge.plan_strategies import module_names, plans

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_from_json, plan_to_json, tables_sha256

WIDE, SMALL = Table("wide", 100, 64, 3.0), Table("small", 10, 8, 1.0)


def small_plan(world_size: int = 4) -> Plan:
    task = ShardingTask([WIDE, SMALL], world_size, 32, 2**20)
    shards = (Shard(WIDE, 32, 16), Shard(SMALL, 0, 8), Shard(WIDE, 0, 32), Shard(WIDE, 48, 16))
    return Plan(task, shards, (1, 0, 3 % world_size, 1), "neuroshard")


@settings(max_examples=25)
@given(plan=plans(module_names), data=st.data())
def test_random_plans_survive_the_round_trip(plan, data):
    document = plan_to_json(plan, None, data.draw(st.sampled_from(["cuda", "cpu"])))
    assert plan_from_json(json.loads(json.dumps(document, allow_nan=False))) == plan


def test_the_document_holds_torchrecs_terms():
    document = plan_to_json(small_plan(), local_world_size=2, compute_device="cuda", module_path="m")
    assert document["plan"]["m"]["wide"] == {
        "sharding_type": "column_wise",
        "compute_kernel": "fused",
        "ranks": [3, 1, 1],
        "sharding_spec": {
            "shards": [
                {"shard_offsets": [0, 0], "shard_sizes": [100, 32], "placement": "rank:3/cuda:1"},
                {"shard_offsets": [0, 32], "shard_sizes": [100, 16], "placement": "rank:1/cuda:1"},
                {"shard_offsets": [0, 48], "shard_sizes": [100, 16], "placement": "rank:1/cuda:1"},
            ]
        },
    }
    assert document["task"]["tables_sha256"] == tables_sha256([WIDE, SMALL])


def test_tables_in_host_memory_survive_the_round_trip():
    cached = replace(WIDE, compute_kernel="fused_uvm_caching", cache_load_factor=0.1)
    task = ShardingTask([cached, replace(SMALL, compute_kernel="fused_uvm")], 1, 32, 2**20, host_memory_bytes=2**30)
    document = plan_to_json(Plan(task, tuple(map(whole, task.tables)), (0, 0), "by hand"), compute_device="cuda")
    assert plan_from_json(json.loads(json.dumps(document))).task == task
    assert document["task"]["host_memory_bytes"] == 2**30
    assert "host_memory_bytes" not in plan_to_json(small_plan(), compute_device="cuda")["task"]
    with pytest.raises(PlanError, match=r"has compute_kernel 'fused_uvm.*plan is for CPUs"):
        plan_to_json(Plan(task, tuple(map(whole, task.tables)), (0, 0), "by hand"), compute_device="cpu")


def test_the_document_holds_rows_types_and_fields_of_tables():
    weighted = Table("w", 10, 8, 1.0, module="tower", num_features=2, is_weighted=True)
    task = ShardingTask([WIDE, weighted], 4, 32, 2**20, local_world_size=2, pipelines_input_dist=True)
    rows = zip(row_shards(WIDE, "table_row_wise", 2), (2, 3), strict=True)
    replicas = [(whole(weighted, "data_parallel"), rank) for rank in range(4)]
    shards, ranks = zip(*rows, *replicas, strict=True)
    document = plan_to_json(Plan(task, shards, ranks, "neuroshard"), compute_device="cpu", module_path="m")
    assert document["version"] == 2
    assert document["shards"][1] == ["wide", 0, 64, 3, 50, 50, "table_row_wise"]
    assert document["shards"][-1] == ["w", 0, 8, 3, 0, 10, "data_parallel"]
    assert document["plan"]["tower"]["w"]["sharding_spec"] is None
    assert document["plan"]["m"]["wide"]["sharding_spec"]["shards"][1]["shard_offsets"] == [50, 0]
    assert document["task"]["local_world_size"] == document["local_world_size"] == 2
    assert document["task"]["pipelines_input_dist"] is True
    assert "pooling" not in document["task"]["tables"][1]
    assert document["task"]["tables"][1]["num_features"] == 2


def test_the_path_of_a_file_of_constraints_is_not_stored():
    plan = small_plan()
    texts = []
    for where in ("", "/home/me/rules.yml: "):
        constraints = Constraints((TableConstraint("wide", max_shards=4),), where=where)
        task = replace(plan.task, constraints=constraints)
        texts.append(json.dumps(plan_to_json(replace(plan, task=task), compute_device="cuda")))
    assert texts[0] == texts[1]


def test_cpu_placements_name_no_device_index():
    document = plan_to_json(small_plan(), compute_device="cpu", module_path="m")
    assert document["plan"]["m"]["small"]["sharding_spec"]["shards"][0]["placement"] == "rank:0/cpu"


def test_tables_are_written_under_their_modules():
    plan = small_plan()
    document = plan_to_json(plan, compute_device="cuda", module_path={"wide": "a.ebc", "small": "b.ebc"})
    assert {module: list(tables) for module, tables in document["plan"].items()} == {
        "a.ebc": ["wide"],
        "b.ebc": ["small"],
    }
    assert plan_from_json(document) == plan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"local_world_size": 3}, "local_world_size 3 must divide the world_size 4"),
        ({"local_world_size": 0}, "local_world_size 0"),
        ({"compute_device": "tpu"}, "'tpu' is unknown; use 'cuda' or 'cpu'"),
        ({"module_path": {"wide": "a.ebc"}}, "table 'small' has no module path"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(PlanError, match=message):
        plan_to_json(small_plan(), **{"compute_device": "cuda"} | arguments)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], 3, "version 3; expected .* version 2"),
        (["schema"], "torchrec", "schema 'torchrec'"),
        (["task", "tables", 0, "pooling_factor"], 4.0, "tables of the plan document were changed"),
        (["task", "tables", 0, "num_embeddings"], 0, "num_embeddings 0 must be"),
        (["task", "world_size"], 1, "rank 1 lies outside"),
        (["shards", 0], ["wide", 32, 16], "damaged"),
        (["shards", 0], ["wide", 32, 16, 1, 0], "a shard has 5 values, not 7"),
        (["shards", 0, 6], "row_wise", "row_wise shards have all 64 columns, not 16"),
        (["shards", 0, 4], 50, "shard rows 50..150 lie outside"),
        (["plan", "m", "wide", "compute_kernel"], "quick", "contradict"),
        (["plan", "m", "wide", "sharding_type"], "table_wise", "contradict"),
        (["shards", 0, 0], "narrow", "damaged"),
        (["shards", 0, 2], 12, "not covered at 44"),
        (["shards", 0, 3], 0, "contradict"),
        (["plan", "m", "wide", "ranks"], [0], "contradict"),
        (["plan", "m", "wide", "sharding_spec", "shards", 1, "shard_sizes"], [100, 12], "contradict"),
        (["plan", "m", "wide", "sharding_spec", "shards", 1, "shard_sizes"], [50, 16], "contradict"),
        (["task"], None, "damaged"),
    ],
)
def test_damaged_documents_are_refused(path, value, message):
    document = copy.deepcopy(plan_to_json(small_plan(), compute_device="cuda", module_path="m"))
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(PlanError, match=message):
        plan_from_json(document)


def test_plans_with_tiers_survive_the_round_trip_and_leave_popular_rows_out_of_torchrecs_form():
    table = Table("clicks", 1000, 16, 20.0, pooling="none")
    task = ShardingTask([table, WIDE], 4, 64, 2**30, local_world_size=2, tiers=True)
    variant = tiered_task(task, {"clicks": Cuts(10, 20)})
    hot, host, cold, wide = variant.tables
    on_hosts = row_shards(host, "host_row_wise", 2)
    shards = (*[whole(hot, "data_parallel")] * 4, *on_hosts, *on_hosts, *row_shards(cold, "row_wise", 4), whole(wide))
    plan = Plan(variant, shards, (0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 1), "tiered")
    document = plan_to_json(plan, None, "cpu", {"clicks": "seq", "wide": "bags"})
    assert {path: list(of) for path, of in document["plan"].items()} == {"seq": ["clicks/cold"], "bags": ["wide"]}
    found = plan_from_json(json.loads(json.dumps(document)))
    assert found == plan
    assert found.tiers == {"clicks": Cuts(10, 20)}
