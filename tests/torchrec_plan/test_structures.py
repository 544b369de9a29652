"""Plans are written as TorchRec's structures and read back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    grid_shard,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import CacheParams, ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec_bridge.plan_strategies import module_names, plans

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json
from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_config, embedding_config
from neuroshard_pipeline.torchrec_plan.structures import read_sharding_plan
from neuroshard_pipeline.torchrec_plan.writer import with_equal_widths

pytestmark = QUIET


def model_of(plan: Plan) -> torch.nn.Module:
    by_module: dict[str, list[Table]] = {}
    for table in plan.task.tables:
        by_module.setdefault(table.module or "plain", []).append(table)
    return torch.nn.ModuleDict({module: collection_of(tables) for module, tables in by_module.items()})


def collection_of(tables: list[Table]) -> torch.nn.Module:
    if tables[0].pooling == "none":
        configs = [embedding_config(table.name, table) for table in tables]
        return EmbeddingCollection(tables=configs, device=torch.device("meta"))
    configs = [embedding_bag_config(table.name, table) for table in tables]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"), is_weighted=tables[0].is_weighted)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(plan=plans(module_names))
def test_random_plans_survive_torchrecs_structures(plan):
    tables = {table.name: table for table in plan.task.tables}
    model = model_of(plan)
    theirs = plan.to_torchrec(model, plan.task.local_world_size, compute_device="cuda")
    back = Plan(plan.task, *read_sharding_plan(theirs, tables), "x", memory=plan.memory)
    again = back.to_torchrec(model, plan.task.local_world_size, compute_device="cuda")
    assert again.plan == theirs.plan
    placed, read = (sorted(zip(p.shards, p.ranks, strict=True), key=place_of) for p in (plan, back))
    for table in plan.task.tables:
        before = [entry for entry in placed if entry[0].table == table]
        after = [entry for entry in read if entry[0].table == table]
        if before[0][0].sharding_type == "column_wise":
            assert after == with_equal_widths(before)
        elif before[0][0].sharding_type != "grid_shard":
            assert after == before
    assert back.dim_sums == plan.dim_sums
    assert all(new <= old for new, old in zip(back.memory_bytes, plan.memory_bytes, strict=True))


def place_of(entry: tuple[Shard, int]) -> tuple[int, int, int]:
    shard, rank = entry
    return shard.column_offset, shard.row_offset, rank


@settings(suppress_health_check=list(HealthCheck))
@given(plan=plans(module_names))
def test_the_json_document_and_the_structures_hold_the_same(plan):
    paths = {table.name: table.module for table in plan.task.tables}
    document = plan_to_json(plan, plan.task.local_world_size, compute_device="cpu", module_path=paths)["plan"]
    theirs = plan.to_torchrec(model_of(plan), plan.task.local_world_size, compute_device="cpu").plan
    assert document.keys() == theirs.keys()
    for module, forms in document.items():
        assert forms == {name: plain_values(parameter) for name, parameter in theirs[module].items()}


def plain_values(parameter) -> dict:
    spec = parameter.sharding_spec
    shards = [] if spec is None else spec.shards
    plain = [
        {"shard_offsets": s.shard_offsets, "shard_sizes": s.shard_sizes, "placement": str(s.placement)} for s in shards
    ]
    return {
        "sharding_type": parameter.sharding_type,
        "compute_kernel": parameter.compute_kernel,
        "ranks": parameter.ranks,
        "sharding_spec": None if spec is None else {"shards": plain},
    }


def test_torchrecs_names_of_column_shards_are_read_as_column_wise():
    table = Table("a", 10, 64, 1.0)
    plan = Plan(ShardingTask([table], 2, 8, 2**20), (Shard(table, 0, 48), Shard(table, 48, 16)), (1, 0), "neuroshard")
    for name in ("table_wise", "table_column_wise"):
        theirs = plan.to_torchrec(model_of(plan), compute_device="cuda")
        theirs.plan["plain"]["a"].sharding_type = name
        assert read_sharding_plan(theirs, {"a": table}) == (plan.shards, plan.ranks)


def test_a_plan_of_torchrecs_own_generators_is_read_and_written_unchanged_except_for_table_wise():
    tables = [Table(name, 10, 64, 1.0, module="plain") for name in "abcdef"]
    model = collection_of(tables)
    generators = {
        "a": column_wise(ranks=[3, 0]),
        "b": row_wise(),
        "c": table_row_wise(host_index=1),
        "d": grid_shard(host_indexes=[1]),
        "e": data_parallel(),
        "f": table_wise(rank=2),
    }
    apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    own = construct_module_sharding_plan(model, generators, local_size=2, world_size=4, device_type="cuda")
    theirs = ShardingPlan({"plain": own})
    task = ShardingTask(tables, 4, 8, 2**30, local_world_size=2)
    plan = Plan(task, *read_sharding_plan(theirs, {table.name: table for table in tables}), "torchrec")
    assert [shard.sharding_type for shard in plan.shards if shard.table.name == "d"] == ["grid_shard"] * 2
    written = plan.to_torchrec(torch.nn.ModuleDict({"plain": model}), 2, "cuda").plan["plain"]
    theirs.plan["plain"]["f"].sharding_type = "column_wise"
    assert {name: plain_values(parameter) for name, parameter in written.items()} == {
        name: plain_values(parameter) for name, parameter in own.items()
    }


def test_tables_in_host_memory_keep_their_kernel_and_cache():
    kernels = {"a": {}, "b": {"compute_kernel": "fused_uvm_caching", "cache_load_factor": 0.4}}
    kernels["c"] = {"compute_kernel": "fused_uvm"}
    tables = [Table(name, 10, 64, 1.0, module="plain", **given) for name, given in kernels.items()]
    task = ShardingTask(tables, 1, 8, 2**20, host_memory_bytes=2**20)
    plan = Plan(task, tuple(map(whole, tables)), (0, 0, 0), "neuroshard")
    written = plan.to_torchrec(model_of(plan), compute_device="cuda").plan["plain"]
    assert {name: (form.compute_kernel, form.cache_params) for name, form in written.items()} == {
        "a": ("fused", None),
        "b": ("fused_uvm_caching", CacheParams(load_factor=0.4)),
        "c": ("fused_uvm", None),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda parameters: parameters["a"].__setattr__("sharding_type", "by_moon"),
            "'a' is sharded by_moon, which is",
        ),
        (
            lambda parameters: parameters["a"].__setattr__("sharding_type", "host_row_wise"),
            "host_row_wise, which is unknown; known types are table_wise, .*, data_parallel$",
        ),
        (lambda parameters: parameters.__setitem__("b", parameters.pop("a")), "the table 'b', which the sharding task"),
        (
            lambda parameters: parameters["a"].sharding_spec.shards[0].__setattr__("shard_sizes", [9, 64]),
            "10 rows of 64 columns, but .* 9 of 64",
        ),
    ],
)
def test_other_plans_of_torchrec_are_refused(change, message):
    table = Table("a", 10, 64, 1.0)
    plan = Plan(ShardingTask([table], 1, 8, 2**20), (Shard(table, 0, 64),), (0,), "neuroshard")
    theirs = plan.to_torchrec(model_of(plan), compute_device="cuda")
    change(theirs.plan["plain"])
    with pytest.raises(PlanError, match=message):
        read_sharding_plan(theirs, {"a": table})
