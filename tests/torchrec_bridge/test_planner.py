"""The planner reads a model, respects TorchRec's constraints, and refuses constraints that no plan can meet."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from search.small_models import small_models
from search.small_step import step_models
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec import DataType, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.types import CacheParams, KeyValueParams
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec_bridge.drawn_plans import planner
from torchrec_bridge.planner_makers import META, bag, collection, make, topology
from torchrec_bridge.trained_models import Batches, built

from neuroshard_pipeline.errors import CostModelError, NeuroShardError, PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge import NeuroShardPlanner
from neuroshard_pipeline.torchrec_bridge.planner import check_hosts

pytestmark = QUIET


def test_a_plan_covers_the_tables_of_a_meta_model():
    plan = make().plan(collection(bag("a"), bag("b", data_type=DataType.FP16)))
    assert set(plan.plan) == {"ebc"}
    parameter = plan.plan["ebc"]["a"]
    assert parameter.sharding_type == "column_wise"
    assert parameter.compute_kernel == "fused"
    assert sum(shard.shard_sizes[1] for shard in parameter.sharding_spec.shards) == 64
    rank = parameter.ranks[0]
    assert str(parameter.sharding_spec.shards[0].placement) == f"rank:{rank}/cuda:{rank % 2}"


def test_pooling_factors_come_from_the_constraints():
    constraints = {"a": ParameterConstraints(pooling_factors=[7.5])}
    task = make(constraints).task(collection())
    assert [table.pooling_factor for table in task.tables] == [7.5, 1.0]
    assert task.batch_size == 32
    assert all(table.has_profile and table.has_assumed_profile for table in task.tables)


def test_id_statistics_come_from_batches():
    model = built("several_collections")
    task = planner(model, 2).task(model)
    for table in task.tables:
        assert 2.0 < table.pooling_factor / table.num_features < 3.0, "uniform lengths of 0 to 5"
        assert 0 < table.unique_rows <= table.num_embeddings
        assert not table.has_assumed_profile


def test_a_table_of_two_features_has_the_ids_of_both():
    model = collection(bag("a", feature_names=["f", "g"]))
    task = make({"a": ParameterConstraints(pooling_factors=[2.0, 3.0])}).task(model)
    assert task.tables[0].pooling_factor == 5.0
    assert task.tables[0].num_features == 2


@pytest.mark.parametrize("given", [{"num_poolings": [2.0, 1.0]}, {"batch_sizes": [16, 8]}])
def test_more_poolings_or_samples_of_a_feature_cost_as_much_as_more_features(given):
    """TorchRec's estimators, too, multiply a feature's ids and outputs by its poolings and its own batch size."""
    model = collection(bag("a", feature_names=["f", "g"]))
    table = make({"a": ParameterConstraints(pooling_factors=[2.0, 3.0], **given)}).task(model).tables[0]
    repeated = collection(bag("a", feature_names=["f", "f_again", "g"]))
    assert table == make({"a": ParameterConstraints(pooling_factors=[2.0, 2.0, 3.0])}).task(repeated).tables[0]
    assert make({"a": ParameterConstraints(pooling_factors=[2.0, 3.0], **given)}).plan(model).plan["ebc"]["a"]


def test_an_output_of_fp32_is_no_constraint_and_counted_ids_leave_no_room_for_others():
    assert make({"a": ParameterConstraints(output_dtype=DataType.FP32)}).plan(collection()).plan["ebc"]["a"]
    model = built("several_collections")
    made = planner(model, 2)
    made.constraints = {made.task(model).tables[0].name: ParameterConstraints(num_poolings=[2.0])}
    with pytest.raises(PlanError, match="num_poolings and batch_sizes go with pooling_factors"):
        made.task(model)


def test_the_task_has_the_hosts_of_the_topology_and_says_whether_the_trainer_pipelines():
    task = make(pipelines_input_dist=True).task(collection())
    assert (task.world_size, task.local_world_size, task.pipelines_input_dist) == (4, 2, True)
    assert not make().task(collection()).pipelines_input_dist


def test_the_reservation_is_subtracted_from_the_memory():
    reservation = FixedPercentageStorageReservation(0.5)
    assert make(storage_reservation=reservation).task(collection()).memory_limits == (2**23,) * 4
    assert make().task(collection()).memory_limits == (2**24,) * 4  # a model of tables only


def with_sequences() -> torch.nn.ModuleDict:
    model = collection()
    tables = [
        EmbeddingConfig(name=f"s{at}", num_embeddings=10**at, embedding_dim=64, feature_names=[f"fs{at}"])
        for at in range(1, 5)
    ]
    model["sequence"] = EmbeddingCollection(tables=tables, device=META)
    return model


@pytest.mark.parametrize("sharder", ["neuroshard", "neuroshard_plus"])
def test_sequence_tables_are_planned_beside_pooled_tables_and_not_split_by_columns(sharder):
    plan = make(sharder=sharder).plan(with_sequences()).plan
    assert set(plan) == {"ebc", "sequence"}
    shards = [shard for table in plan["sequence"].values() for shard in table.sharding_spec.shards]
    assert {shard.shard_sizes[1] for shard in shards} == {64}


def test_every_kind_of_collection_needs_its_sharder():
    with pytest.raises(PlanError, match=r"EmbeddingCollection 'sequence' is given; add EmbeddingCollectionSharder\(\)"):
        make().plan(with_sequences(), [EmbeddingBagCollectionSharder()])


def test_other_modules_can_be_left_out():
    assert set(make(leave_out=["sequence"]).plan(with_sequences()).plan) == {"ebc"}
    model = collection()
    fused = [bag("x")]
    model["fused"] = FusedEmbeddingBagCollection(fused, torch.optim.SGD, {"lr": 0.1}, device=META)
    with pytest.raises(PlanError, match="'fused' is a FusedEmbeddingBagCollection"):
        make().plan(model)
    assert set(make(leave_out=["fused"]).plan(model).plan) == {"ebc"}


def test_models_of_other_hardware_are_refused():
    @dataclasses.dataclass
    class Measured:
        provenance: dict

    class Both:
        compute = comm = Measured({"hardware": {"device": "cpu"}})

    with pytest.raises(CostModelError, match="predicts costs on 'cpu', but the tables are to be trained on 'cuda'"):
        NeuroShardPlanner(Both(), topology(), 8)
    NeuroShardPlanner(Both(), topology(device="cpu"), 8)


@pytest.mark.parametrize(
    ("model", "constraints", "message"),
    [
        (torch.nn.Linear(2, 2), {}, "the Linear holds no EmbeddingBagCollection or EmbeddingCollection"),
        (collection(bag("a", embedding_dim=6)), {}, "table 'a': embedding_dim 6 is no multiple of 4"),
        (collection(bag("a", data_type=DataType.INT8)), {}, "'a' of 'ebc' is INT8; supported are"),
        (torch.nn.ModuleList([collection(), collection()]), {}, "'a' is in '0.ebc' and in '1.ebc'"),
        (collection(), {"c": ParameterConstraints()}, "names the table 'c', which the model does not have"),
        (collection(), {"a": ParameterConstraints(pooling_factors=[1.0, 2.0])}, "1 features, .* 2 pooling_factors"),
        (collection(), {"a": ParameterConstraints(sharding_types=["by_moon"])}, r"'a': .* \['by_moon'\]"),
        (collection(), {"a": ParameterConstraints(compute_kernels=["quant"])}, r"'a': .* \['quant'\]"),
        (
            collection(),
            {"a": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["dense"])},
            r"'a': .* \['row_wise'\] and compute_kernels \['dense'\]; plans use .* 'dense' for data_parallel",
        ),
        *[
            (
                collection(),
                {"a": ParameterConstraints(**{field: value})},
                f"'a': its constraint sets {field}, .*because",
            )
            for field, value in {
                "device_group": "cpu",
                "cache_params": CacheParams(),
                "key_value_params": KeyValueParams(),
                "output_dtype": DataType.FP16,
                "use_virtual_table": True,
            }.items()
        ],
        (
            collection(),
            {"a": ParameterConstraints(num_poolings=[1.5])},
            "num_poolings .* make 1.5 outputs for",
        ),
        (collection(), {"a": ParameterConstraints(batch_sizes=[4, 4])}, "1 features, but .* 2 batch_sizes"),
        (collection(), {"a": ParameterConstraints(is_weighted=True)}, "'a': .* is_weighted, but its collection is not"),
        (collection(), {"a": ParameterConstraints(feature_names=["g"])}, r"'a': .* \['g'\], but .* has \['f_a'\]"),
        (collection(bag("a", num_embeddings=10**6)), {}, "the tables need .* are missing, .* use ranks of at least"),
    ],
)
def test_models_and_constraints_that_cannot_be_planned_are_refused(model, constraints, message):
    with pytest.raises(NeuroShardError, match=message):
        make(constraints).plan(model)


def test_no_optimizer_attached_is_refused():
    with pytest.raises(PlanError, match=r"no optimizer attached, .*give optimizer= one of sgd"):
        NeuroShardPlanner(small_models(), topology(), 8).plan(collection())


def test_the_default_sharder_is_neuroshard_plus():
    planner = NeuroShardPlanner(small_models(), topology(), 8, optimizer="sgd")
    assert planner.search(collection()).sharder == "neuroshard_plus"


@pytest.mark.parametrize("sharding_type", ["column_wise", "row_wise", "table_row_wise", "grid_shard"])
def test_tables_cut_inside_hosts_need_the_hosts_of_the_environment(sharding_type, monkeypatch):
    table = Table("a", 1000, 64, 1.0)
    task = ShardingTask([table], 4, 8, 2**30, local_world_size=2)
    count = {"column_wise": 1, "row_wise": 4}.get(sharding_type, 2)
    shards = [whole(table)] if count == 1 else row_shards(table, sharding_type, count)
    plan = Plan(task, tuple(shards), tuple(range(count)), "x").to_torchrec(collection(bag("a")), compute_device="cuda")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    check_hosts(plan, topology())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    if sharding_type in ("column_wise", "row_wise"):
        check_hosts(plan, topology())
    else:
        with pytest.raises(PlanError, match="on hosts of 2 ranks, as the topology says, but TorchRec reads 4 ranks"):
            check_hosts(plan, topology())


def test_collective_plan_without_a_process_group_is_refused():
    with pytest.raises(PlanError, match=r"call torch\.distributed\.init_process_group first"):
        make().collective_plan(collection())


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([Table("a", 1000, 64, 1.0)], "'b' is missing in the plan, but has 1000 rows of 64 columns in the model"),
        ([Table(name, 1000, 64, 1.0) for name in "abc"], "'c' has .* in the plan, but is missing in the model"),
        (
            [Table("a", 1000, 64, 1.0), Table("b", 999, 64, 1.0)],
            "'b' has 999 rows of 64 columns in the plan, but has 1000 rows of 64 columns in the model",
        ),
        ([Table("a", 1000, 64, 1.0), Table("b", 1000, 32, 1.0)], "'b' has 1000 rows of 32 columns in the plan"),
    ],
)
def test_a_plan_of_other_tables_is_refused(tables, message):
    task = ShardingTask(tables, 1, 8, 2**30)
    plan = Plan(task, tuple(Shard(t, 0, t.embedding_dim) for t in tables), (0,) * len(tables), "neuroshard")
    with pytest.raises(PlanError, match=message):
        plan.to_torchrec(collection(), compute_device="cuda")


def test_a_part_of_a_batch_has_the_samples_of_that_part_of_the_whole_batch():
    batches = Batches(built("dlrm"), 2)
    whole, part = batches.draw(3, slice(0, 32)), batches.draw(3, slice(16, 32))
    np.testing.assert_array_equal(whole[0][16:], part[0])
    key = whole[1][0].keys()[5]
    assert [ids.tolist() for ids in whole[1][0][key].to_dense()[16:]] == [
        ids.tolist() for ids in part[1][0][key].to_dense()
    ]


def test_the_ddr_of_a_topology_for_gpus_is_host_memory():
    assert make().task(collection()).host_memory_bytes == 2**24
    none = Topology(4, "cuda", hbm_cap=2**24, ddr_cap=0, local_world_size=2, created_by_factory=True)
    assert NeuroShardPlanner(small_models(), none, 8, optimizer="sgd").task(collection()).host_memory_bytes is None


def test_a_model_larger_than_hbm_gets_a_plan_with_tables_in_host_memory():
    """The topology has 2 * 2**20 bytes of HBM, but the tables have 3.84 * 10**6 bytes."""
    model = collection(bag("a", num_embeddings=10_000), bag("b", num_embeddings=5_000))
    tight = Topology(2, "cuda", hbm_cap=2**20, ddr_cap=2**24, local_world_size=2, created_by_factory=True)
    made = NeuroShardPlanner(step_models(), tight, 8, optimizer="sgd")
    written = made.plan(model)
    (module,) = written.plan.values()
    kernels = {sharding.compute_kernel for sharding in module.values()}
    assert kernels & {"fused_uvm", "fused_uvm_caching"}
    for sharding in module.values():
        assert (sharding.cache_params is not None) == (sharding.compute_kernel == "fused_uvm_caching")
