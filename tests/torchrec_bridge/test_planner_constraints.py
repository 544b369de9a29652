"""The planner respects every field of TorchRec's constraints, passes it on, or refuses it."""

from __future__ import annotations

import dataclasses

import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import CacheParams
from torchrec_bridge.planner_makers import bag, collection, make

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.torchrec_bridge import constraints
from neuroshard_pipeline.torchrec_bridge.constraints import KERNEL_SETTINGS

pytestmark = QUIET


def test_the_search_respects_torchrecs_constraints():
    module = collection(bag("a", embedding_dim=256), bag("b"))

    def widths(constraint: ParameterConstraints | None) -> list[int]:
        found = make({"a": constraint} if constraint else None).search(module)
        return [shard.embedding_dim for shard in found.shards if shard.table.name == "a"]

    assert min(widths(None)) < 128
    assert widths(ParameterConstraints(sharding_types=["table_wise"])) == [256]
    assert min(widths(ParameterConstraints(min_partition=128))) >= 128


def test_settings_of_kernels_are_passed_on():
    settings = {"enforce_hbm": True, "stochastic_rounding": False, "bounds_check_mode": BoundsCheckMode.FATAL}
    plan = make({"a": ParameterConstraints(feature_names=["f_a"], **settings)}).plan(collection()).plan["ebc"]
    assert {name: getattr(plan["a"], name) for name in settings} == settings
    assert {name: getattr(plan["b"], name) for name in settings} == dict.fromkeys(settings)


def test_every_field_of_torchrecs_constraints_is_respected_passed_on_or_refused():
    respected = {
        "sharding_types",
        "compute_kernels",
        "min_partition",
        "pooling_factors",
        "num_poolings",
        "batch_sizes",
        "is_weighted",
        "feature_names",
    }
    fields = {field.name for field in dataclasses.fields(ParameterConstraints)}
    assert fields == respected | set(KERNEL_SETTINGS) | set(constraints._UNSUPPORTED_FIELDS)


@pytest.mark.parametrize(
    ("constraint", "types"),
    [
        (ParameterConstraints(), None),
        (ParameterConstraints(sharding_types=["row_wise", "table_column_wise"]), ("row_wise",)),
        (ParameterConstraints(sharding_types=["data_parallel", "table_wise"]), ("table_wise", "data_parallel")),
        (ParameterConstraints(compute_kernels=["dense", "quant"]), ("data_parallel",)),
        (
            ParameterConstraints(compute_kernels=["fused"]),
            ("table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard"),
        ),
    ],
)
def test_types_and_kernels_become_the_types_of_the_task(constraint, types):
    task = make({"a": constraint}).task(collection())
    assert task.constraints.of("a").sharding_types == types
    assert bool(task.constraints) == (types is not None)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (
            ParameterConstraints(sharding_types=["table_wise"]),
            "'a' has its columns cut into 2 parts, but may have at most 1",
        ),
        (ParameterConstraints(min_partition=32), "'a' has a shard of 16 columns, but its shards need at least 32"),
    ],
)
def test_no_plan_of_the_planners_task_can_break_a_constraint(constraint, message):
    def split_plan(constraint: ParameterConstraints) -> Plan:
        task = make({"a": constraint}).task(collection(bag("a")))
        (table,) = task.tables
        return Plan(task, (Shard(table, 0, 48), Shard(table, 48, 16)), (0, 1), "neuroshard")

    with pytest.raises(PlanError, match=message):
        split_plan(constraint)
    assert len(split_plan(ParameterConstraints(min_partition=16)).shards) == 2


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (ParameterConstraints(), ("fused", 0.2, False)),
        (ParameterConstraints(compute_kernels=["fused", "dense"]), ("fused", 0.2, True)),
        (ParameterConstraints(compute_kernels=["fused_uvm"]), ("fused_uvm", 0.2, True)),
        (
            ParameterConstraints(
                compute_kernels=["fused_uvm_caching"], cache_params=CacheParams(load_factor=0.4), min_partition=4
            ),
            ("fused_uvm_caching", 0.4, True),
        ),
    ],
)
def test_kernels_in_host_memory_become_those_of_the_table(constraint, expected):
    task = make({"a": constraint}).task(collection())
    (table,) = [table for table in task.tables if table.name == "a"]
    assert (table.compute_kernel, table.cache_load_factor, task.constraints.of("a").in_gpu_memory) == expected
