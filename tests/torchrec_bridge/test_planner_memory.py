"""Memory and devices of plans for TorchRec: TorchRec's own estimate, modules that are left out, the device."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from search.small_models import SmallCommModel, SmallComputeModel, SmallModels, small_models
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
import torchrec
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import Shard as TorchRecShard
from torchrec.distributed.planner.types import ShardingOption
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name

from neuroshard_pipeline.errors import CostModelError, PlanError
from neuroshard_pipeline.evaluation.peak_memory import peak_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge import NeuroShardPlanner, PlannerOptions
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_from_json, plan_to_json

pytestmark = QUIET
META = torch.device("meta")
BATCH_PER_RANK = 512
NO_RESERVATION = FixedPercentageStorageReservation(0.0)


def topology(world_size: int = 4, gib: float = 1.0, device: str = "cuda") -> Topology:
    memory = {"hbm_cap": int(gib * 2**30), "ddr_cap": int(gib * 2**30)}
    return Topology(world_size, device, **memory, local_world_size=world_size, created_by_factory=True)


def bags(count: int = 3, rows: int = 10_000, width: int = 64) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=rows * (i + 1), embedding_dim=width, feature_names=[f"f{i}"])
        for i in range(count)
    ]
    return EmbeddingBagCollection(tables=tables, device=META)


def sequences(rows: int = 1000) -> EmbeddingCollection:
    tables = [EmbeddingConfig(name="words", num_embeddings=rows, embedding_dim=32, feature_names=["w"])]
    return EmbeddingCollection(tables=tables, device=META)


def planner(world_size: int = 4, gib: float = 1.0, constraints=None, **options) -> NeuroShardPlanner:
    chosen = PlannerOptions(**{"sharder": "neuroshard", "storage_reservation": NO_RESERVATION} | options)
    return NeuroShardPlanner(
        small_models(), topology(world_size, gib), BATCH_PER_RANK, constraints, optimizer="sgd", options=chosen
    )


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_the_memory_of_a_plan_is_torchrecs_estimate_plus_what_it_leaves_out(optimizer):
    """The oracle is the estimator of TorchRec's planner on the same shards.

    This project counts three things more: the gradients of the pooled outputs, 4 bytes per sample and column; the
    offsets of the bags, 8 * (batch size + 1) bytes per shard; and a whole state of row-wise Adagrad, 4 bytes per row,
    for every shard of a split table. FBGEMM keeps this state, but TorchRec counts only the shard's share of it. Nothing
    else differs, to within the rounding of one byte per shard.
    """
    model = torch.nn.ModuleDict({"ebc": bags()})
    classes = {"sgd": torch.optim.SGD, "rowwise_adagrad": torchrec.optim.RowWiseAdagrad, "adam": torch.optim.Adam}
    apply_optimizer_in_backward(classes[optimizer], model.parameters(), {"lr": 0.1})
    constraints = {f"t{i}": ParameterConstraints(pooling_factors=[2.5 * i + 1.0]) for i in range(3)}
    made = NeuroShardPlanner(
        small_models(), topology(), BATCH_PER_RANK, constraints, options=PlannerOptions(sharder="neuroshard")
    ).search(model)
    assert made.task.optimizer == optimizer
    theirs = torchrec_bytes(made, model["ebc"])
    batch_size = made.task.batch_size
    for rank, shards in enumerate(made.shards_by_rank):
        gradients = sum(4 * batch_size * shard.embedding_dim for shard in shards)
        offsets = len(shards) * 8 * (batch_size + 1)
        shares = sum(4 * shard.table.num_embeddings * (1 - shard.embedding_dim / 64) for shard in shards)
        states = shares if optimizer == "rowwise_adagrad" else 0
        assert made.memory_bytes[rank] == pytest.approx(theirs[rank] + gradients + offsets + states, abs=len(shards))


def torchrec_bytes(plan: Plan, collection: EmbeddingBagCollection) -> list[int]:
    """TorchRec's storage estimate of every rank of a plan."""
    sharder = EmbeddingBagCollectionSharder()
    parameters = {name.split(".")[-2]: tensor for name, tensor in collection.named_parameters()}
    taken = [0] * plan.task.world_size
    for table in plan.task.tables:
        placed = [pair for pair in zip(plan.shards, plan.ranks, strict=True) if pair[0].table.name == table.name]
        option = ShardingOption(
            name=table.name,
            tensor=parameters[table.name],
            module=("ebc", collection),
            input_lengths=[table.pooling_factor],
            batch_size=BATCH_PER_RANK,
            sharding_type="column_wise",
            partition_by="device",
            compute_kernel="fused",
            shards=[
                TorchRecShard(size=[table.num_embeddings, shard.embedding_dim], offset=[0, shard.column_offset])
                for shard, _ in placed
            ],
        )
        data = build_sharder_data_map({sharder_name(EmbeddingBagCollection): sharder})
        EmbeddingStorageEstimator(topology(plan.task.world_size)).estimate([option], data)
        for (_, rank), shard in zip(placed, option.shards, strict=True):
            taken[rank] += shard.storage.hbm
    return taken


def test_the_buffers_of_a_large_job_are_counted():
    """64 ranks x 8,192 samples x 4,000 columns: outputs and their gradients take 16.8 GB on a rank with all tables."""
    tables = [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=100, embedding_dim=400, feature_names=[f"f{i}"])
        for i in range(10)
    ]
    model = torch.nn.ModuleDict({"ebc": EmbeddingBagCollection(tables=tables, device=META)})
    planner = NeuroShardPlanner(small_models(), topology(64, 80), 8192, optimizer="sgd")
    task = planner.task(model)
    memory = planner.options.sharder_settings.memory
    outputs = sum(memory.table_bytes(table, 400, task) for table in task.tables)
    assert outputs == pytest.approx(16.8e9, rel=0.01)


def test_constraints_on_left_out_tables_are_ignored_and_the_others_hold():
    model = torch.nn.ModuleDict({"ebc": bags(), "sequence": sequences()})
    constraints = {
        "t1": ParameterConstraints(pooling_factors=[7.5], sharding_types=["table_wise"]),
        "words": ParameterConstraints(sharding_types=["row_wise"]),
    }
    task = planner(constraints=constraints, leave_out=["sequence"]).task(model)
    assert [table.name for table in task.tables] == ["t0", "t1", "t2"]
    assert task.tables[1].pooling_factor == 7.5
    assert task.constraints.of("t1").max_shards == 1
    with pytest.raises(PlanError, match="names the table 'nobody', which the model does not have"):
        planner(constraints={"nobody": ParameterConstraints()}, leave_out=["sequence"]).task(model)
    with pytest.raises(PlanError, match="leave_out names the module 'sequences', which the model does not have"):
        planner(leave_out=["sequences"]).task(torch.nn.ModuleDict({"ebc": bags()}))


def test_a_left_out_module_takes_memory_from_every_rank():
    model = torch.nn.ModuleDict({"ebc": bags(), "sequence": sequences()})
    weights = 1000 * 32 * 4
    assert planner(leave_out=["sequence"]).task(model).memory_limits == (2**30 - 2 * weights,) * 4  # with gradients
    apply_optimizer_in_backward(torch.optim.Adam, model["sequence"].parameters(), {"lr": 0.1})
    assert planner(leave_out=["sequence"]).task(model).memory_limits == (2**30 - 4 * weights,) * 4  # Adam: 2 more


def test_left_out_vectors_with_adam_take_four_times_their_weights():
    model = torch.nn.ModuleDict({"ebc": bags(), "norm": torch.nn.LayerNorm(8)})
    apply_optimizer_in_backward(torch.optim.Adam, model["norm"].parameters(), {"lr": 0.1})
    assert planner(leave_out=["norm"]).task(model).memory_limits == (2**30 - 4 * 16 * 4,) * 4


def test_a_left_out_module_with_a_plan_takes_memory_where_its_shards_are():
    model = torch.nn.ModuleDict({"ebc": bags(), "sequence": sequences()})
    constraints = {"words": ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])}
    only = torch.nn.ModuleDict({"sequence": model["sequence"]})
    theirs = EmbeddingShardingPlanner(topology=topology(), batch_size=BATCH_PER_RANK, constraints=constraints)
    plan = theirs.plan(only, [EmbeddingCollectionSharder()])
    (rank,) = plan.plan["sequence"]["words"].ranks
    limits = planner(leave_out=["sequence"], left_out_plan=plan).task(model).memory_limits
    assert [2**30 - limit for limit in limits] == [1000 * 32 * 4 * (r == rank) for r in range(4)]


def test_left_out_modules_that_leave_no_memory_are_refused():
    model = torch.nn.ModuleDict({"ebc": bags(), "sequence": sequences(10**7)})
    with pytest.raises(PlanError, match=r"rank 0 lacks \d+ bytes for what is not for tables; use ranks"):
        planner(leave_out=["sequence"]).task(model)


def with_dense(rows: int) -> torch.nn.ModuleDict:
    layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32))
    return torch.nn.ModuleDict({"ebc": bags(rows=rows), "over": layers})


def test_the_dense_part_is_counted_and_no_share_is_guessed():
    model = with_dense(1000)
    weights, buffers = 4 * (64 * 32 + 32 + 2 * 32), 4 * 2 * 32 + 8
    for options, states in ({}, 2), ({"dense_optimizer": "SGD"}, 0), ({"dense_optimizer": "Adagrad"}, 1):
        taken = (2 + states) * weights + buffers
        made = planner(storage_reservation=None, **options)
        assert made.task(model).memory_limits == (2**30 - taken,) * 4
    apply_optimizer_in_backward(torch.optim.SGD, model["over"].parameters(), {"lr": 0.1})
    made = planner(storage_reservation=None, activation_bytes=1000)
    assert made.task(model).memory_limits == (2**30 - 2 * weights - buffers - 1000,) * 4
    with pytest.raises(
        PlanError, match=r"rank 0 lacks \d+ bytes for what is not for tables; use ranks with more memory"
    ):
        planner(gib=1e-5, storage_reservation=None).task(model)


def test_a_plan_leaves_room_for_the_peak_of_a_step():
    """The tables of one rank fit beside their ids and outputs, but not beside the buffers at the peak."""
    model, options = with_dense(20_000), {"storage_reservation": None, "sharder": "dim_greedy"}
    plenty = planner(2, **options).search(model)
    peak, dense_bytes = peak_memory(plenty).reserved, 2**30 - plenty.task.memory_limits[0]
    assert max(plenty.memory_bytes) < peak.max()
    enough = (int(peak.max()) + 1 + dense_bytes) / 2**30
    assert planner(2, enough, **options).search(model).memory_bytes == plenty.memory_bytes
    with pytest.raises(PlanError, match=r"at the peak of a step, rank \d needs \d+ bytes more than it has; use ranks"):
        planner(2, (max(plenty.memory_bytes) + 1 + dense_bytes) / 2**30, **options).search(model)


class OnCpuCompute(SmallComputeModel):
    provenance = {"hardware": {"device": "cpu"}}  # noqa: RUF012 - as a trained model has it


class OnCpuComm(SmallCommModel):
    provenance = {"hardware": {"device": "cpu"}}  # noqa: RUF012


def priced_plan(models) -> Plan:
    import neuroshard_pipeline as ns

    table = Table("t0", 10_000, 64, 1.0)
    return ns.shard(ShardingTask([table], 2, 64, 2**30), models, "neuroshard")


def test_shards_are_placed_on_the_device_of_the_cost_models():
    model = torch.nn.ModuleDict({"ebc": bags(1)})
    plan = priced_plan(SmallModels(OnCpuCompute(0), OnCpuComm(0)))
    parameter = plan.to_torchrec(model).plan["ebc"]["t0"]
    assert {str(shard.placement) for shard in parameter.sharding_spec.shards} <= {"rank:0/cpu", "rank:1/cpu"}
    document = plan_to_json(plan, module_path="ebc")
    assert document["compute_device"] == "cpu"
    assert plan_from_json(document).to_torchrec(model).plan["ebc"]["t0"] == parameter
    on_cuda = plan.to_torchrec(model, compute_device="cuda").plan["ebc"]["t0"].sharding_spec.shards
    assert all("cuda" in str(shard.placement) for shard in on_cuda)


def test_a_plan_that_knows_no_device_asks_for_one():
    plan = priced_plan(small_models())
    for call in (lambda: plan.to_torchrec(torch.nn.ModuleDict({"ebc": bags(1)})), lambda: plan_to_json(plan)):
        with pytest.raises(PlanError, match="give compute_device='cuda' or 'cpu'"):
            call()


def test_a_topology_of_another_device_than_the_cost_models_is_refused():
    models = SmallModels(OnCpuCompute(0), OnCpuComm(0))
    with pytest.raises(CostModelError, match="predicts costs on 'cpu', but the tables are to be trained on 'cuda'"):
        NeuroShardPlanner(models, topology(), BATCH_PER_RANK)
    on_cpu = NeuroShardPlanner(models, topology(device="cpu"), BATCH_PER_RANK, optimizer="sgd")
    parameter = on_cpu.plan(torch.nn.ModuleDict({"ebc": bags(1)})).plan["ebc"]["t0"]
    assert all("cpu" in str(shard.placement) for shard in parameter.sharding_spec.shards)


def test_a_table_takes_memory_for_buffers_beside_its_weights():
    table = Table("t0", 10_000, 64, 1.0)
    weights = 10_000 * 64 * 4
    task = planner(1, (weights + 2**20) / 2**30).task(torch.nn.ModuleDict({"ebc": bags(1)}))
    settings = PlannerOptions().sharder_settings
    assert settings.memory.shard_bytes(whole(table), dataclasses.replace(task, tables=[table])) > weights + 2**18
