"""The same models train to the same losses under every plan, dense mode and trainer, on real and on virtual ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec.datasets.utils import Batch
from torchrec_bridge.dense_shards import MOMENTUM, dense_sizes, losses_with_checkpoints
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.training_params import PARAMS
from torchrec_bridge.unsharded_dlrm import torchrecs_dlrm, unsharded_model

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.ranks import RankError
from neuroshard_pipeline.torchrec_bridge.train_check.batches import DENSE_FEATURES, drawn_batches
from neuroshard_pipeline.torchrec_bridge.train_check.model import dense_network, initial_columns, keyed_ids
from neuroshard_pipeline.torchrec_bridge.train_check.params import ModelName, TrainCheckError, TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.run import PARTS, train_under_plans
from neuroshard_pipeline.torchrec_bridge.train_check.sharding import dense_memory_bytes

pytestmark = [pytest.mark.slow, *QUIET]

TABLES = [Table("a", 300, 32, 5.0), Table("b", 50, 4, 1.0), Table("c", 2000, 12, 2.5), Table("d", 7, 64, 0.5)]
TASK = ShardingTask(TABLES, world_size=2, batch_size=32, memory_bytes=2**30)
FIRST, OTHER = drawn_batches(TABLES, 32, num_batches=2, seed=0)
#: Both have the same ids, so that the second step sees all rows that the first one has updated.
BATCHES = FIRST, replace(FIRST, dense=OTHER.dense)
STEPS = PARAMS.rounds * (PARAMS.warmup_steps + PARAMS.steps_per_round)


def plans() -> list[Plan]:
    """Whole tables and uneven shards, two shards of one table on one rank; row shards and replicas."""
    a, b, c, d = TABLES
    cut = {Shard(a, 0, 16): 0, Shard(a, 16, 4): 1, Shard(a, 20, 12): 0, Shard(d, 0, 40): 1, Shard(d, 40, 24): 0}
    uneven = Plan(TASK, (*cut, whole(b), whole(c)), (*cut.values(), 1, 1), "uneven")
    rows = [(shard, rank) for table in (a, c) for rank, shard in enumerate(row_shards(table, "row_wise", 2))]
    mixed = [*rows, (whole(d), 1), *((whole(b, "data_parallel"), rank) for rank in range(2))]
    return [uneven, Plan(TASK, *zip(*mixed, strict=True), "rows and replicas")]


def whole_batch(number: int, tables: list[Table] = TABLES) -> Batch:
    batch = BATCHES[number % len(BATCHES)]
    ids = keyed_ids([table.name for table in tables], batch.ids, slice(0, 32))
    return Batch(torch.from_numpy(batch.dense), ids, torch.from_numpy(batch.labels))


def unsharded(name: ModelName, steps: int = STEPS, momentum: float = 0.0) -> list[float]:
    """Losses of an ordinary model that is trained with the global batches in this process."""
    model, losses = unsharded_model(name, TABLES, PARAMS), []
    groups = [{"params": model.dense.parameters(), "momentum": momentum}]
    groups.append({"params": model.embedding_bag_collection.parameters()})
    optimizer = torch.optim.SGD(groups, lr=PARAMS.learning_rate)
    for step in range(steps):
        loss, _ = model(whole_batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def unsharded_losses() -> dict[str, list[float]]:
    return {name: unsharded(name) for name in PARAMS.models}


def test_every_plan_and_dense_mode_trains_to_the_losses_of_the_unsharded_model(unsharded_losses):
    """On real ranks; others are trained on virtual ranks below, and dhen with ddp by the test of the pipeline."""
    of_dlrm, of_dhen = {"models": ("dlrm",), "dense": ("ddp", "hybrid")}, {"models": ("dhen",), "dense": ("fsdp2",)}
    steps = pd.concat(
        train_under_plans(given, BATCHES, PARAMS.model_copy(update=form))
        for given, form in ((plans(), of_dlrm), (plans()[1:], of_dhen))
    )
    trained = steps[(steps["dense"] != "") & (steps["sharder"] != "")]
    again = trained["sharder"].str.endswith(" (again)")
    assert set(trained["sharder"][~again]) == {"uneven", "rows and replicas"}
    np.testing.assert_allclose(trained[list(PARTS)].sum(axis=1), trained["step_ms"])
    assert trained[list(PARTS)].gt(0).all(axis=None)
    losses = trained.groupby(["model", "dense", "sharder", "step"])["loss"].mean()
    assert len(losses) == (2 * 3 + 2) * STEPS
    for (model, *form), of_plan in losses.groupby(["model", "dense", "sharder"]):
        np.testing.assert_allclose(of_plan, unsharded_losses[model], rtol=1e-4, err_msg=str(form))
    assert all(of[-1] < of[0] - 0.01 for of in unsharded_losses.values())


def test_pipelined_steps_on_virtual_ranks_train_to_the_same_losses(unsharded_losses):
    task = replace(TASK, local_world_size=1)
    given = [replace(plan, task=task) for plan in plans()[1:]]
    params = PARAMS.model_copy(update={"trainer": "pipelined", "networks": ("ethernet-100", "ethernet-1")})
    forms = [{"models": ("dlrm",), "dense": ("fsdp2",)}, {"models": ("dhen",), "dense": ("hybrid",)}]
    steps = pd.concat(train_under_plans(given, BATCHES, params.model_copy(update=form)) for form in forms)
    trained = steps[(steps["dense"] != "") & (steps["sharder"] != "")]
    for (model, step), loss in trained.groupby(["model", "step"])["loss"].mean().items():
        assert loss == pytest.approx(unsharded_losses[model][step], rel=1e-4)
    slowest = trained.pivot_table("step_ms", ["model", "dense", "sharder"], "network", aggfunc="max")
    # A collective may be hidden behind a computation that another program disturbed.
    assert (slowest["ethernet-1"] >= slowest["ethernet-100"]).all()
    assert (slowest["ethernet-1"] > slowest["ethernet-100"]).any()


def test_fully_shard_shards_over_all_ranks_or_inside_hosts_and_what_it_leaves_is_counted(tmp_path):
    task = replace(TASK, world_size=4, local_world_size=2)
    plan = Plan(task, tuple(whole(table) for table in TABLES), (0, 1, 2, 3), "tables", compute_device="cpu")
    shards = {"fsdp2": 4, "hybrid": 2}
    of_ranks = run_ranks(4, tmp_path, dense_sizes, plan, PARAMS, list(shards), local_world_size=2)
    for name, mode in of_ranks[0]:
        held = np.array([rank[name, mode] for rank in of_ranks])  # ranks, parameters, values
        assert held[:, :, 2].sum() * shards[mode] == 4 * held[0, :, 3].sum()
        if mode == "hybrid":
            np.testing.assert_array_equal(held[:2], held[2:])  # both hosts hold the same
        less = 4 * (held[0, :, 3] - held[0, :, 2]).sum()  # weights that rank 0 does not hold
        layers = dense_network(name, TABLES, PARAMS).layers
        gathered = 3 * max(sum(each.nbytes for each in layer.parameters()) for layer in layers) if less else 0
        counted = [dense_memory_bytes(name, each, task, PARAMS) for each in (mode, "ddp")]
        assert counted[0] - counted[1] == gathered - 2 * less


def test_checkpoints_load_under_another_plan_and_dense_mode(tmp_path):
    task = replace(TASK, world_size=4, local_world_size=2)
    a, b, c, d = TABLES
    rows = zip(row_shards(c, "row_wise", 4), range(4), strict=True)
    copies = [(whole(b, "data_parallel"), rank) for rank in range(4)]
    cut = [(Shard(a, 0, 12), 3), (Shard(a, 12, 20), 1), (whole(d), 2), *rows, *copies]
    whole_tables = Plan(task, tuple(whole(table) for table in TABLES), (0, 1, 2, 3), "tables", compute_device="cpu")
    mixed = Plan(task, *zip(*cut, strict=True), "mixed", compute_device="cpu")
    forms = [(mixed, "hybrid"), (whole_tables, "ddp"), (mixed, "fsdp2")]
    found = run_ranks(4, tmp_path, losses_with_checkpoints, forms, PARAMS, BATCHES, str(tmp_path), local_world_size=2)
    np.testing.assert_allclose(np.mean(found, axis=0), unsharded("dlrm", len(forms) + 1, MOMENTUM), rtol=1e-4)


def test_activations_are_counted_as_autograd_keeps_them():
    inputs = torch.randn(16, DENSE_FEATURES), torch.randn(16, 112, requires_grad=True)
    for name in PARAMS.models:
        network = dense_network(name, TABLES, PARAMS)
        given = {tensor.data_ptr() for tensor in (*network.parameters(), *inputs)}
        kept: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, kept=kept: kept.setdefault(tensor.untyped_storage().data_ptr(), tensor) is None or tensor,
            lambda tensor: tensor,
        ):
            network(*inputs)
        expected = sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in given)
        weights = sum(each.nbytes for each in network.parameters())
        assert dense_memory_bytes(name, "ddp", TASK, PARAMS) - 2 * weights == pytest.approx(expected, rel=0.2)


def test_gradients_of_dhen_are_finite_differences():
    network = dense_network("dhen", TABLES[:2], PARAMS).double()
    generator = torch.Generator().manual_seed(1)
    dense, pooled = (torch.randn(3, width, generator=generator, dtype=torch.float64) for width in (13, 36))
    names, values = zip(*network.named_parameters(), strict=True)

    def logits(given: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(network, dict(zip(names, parameters, strict=True)), (dense, given))

    inputs = [pooled.requires_grad_(), *(value.detach().requires_grad_() for value in values)]
    assert torch.autograd.gradcheck(logits, inputs, fast_mode=True)


def test_a_plan_that_cannot_be_trained_is_named():
    dotted = replace(TASK, tables=[Table("a.b", 10, 4, 1.0)])  # torch refuses the name
    with pytest.raises(TrainCheckError, match=r"under the plan of dotted stopped: worker \d failed"):
        train_under_plans([Plan(dotted, (whole(dotted.tables[0]),), (0,), "dotted")], BATCHES, PARAMS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the refusal on machines without GPUs")
def test_nccl_without_gpus_is_refused():
    with pytest.raises(RankError, match="needs a GPU for each of 2 ranks, not 0"):
        train_under_plans(plans(), BATCHES, PARAMS.model_copy(update={"backend": "nccl"}))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="width 8 must be a multiple of heads 3"):
        TrainingParams(**PARAMS.model_dump() | {"dhen": PARAMS.dhen.model_dump() | {"heads": 3}})


def test_the_model_computes_what_torchrecs_does_if_widths_are_equal():
    tables = [Table(f"t{index}", 20 + index, 8, 2.0) for index in range(5)]
    ours = unsharded_model("dlrm", tables, PARAMS)
    theirs = torchrecs_dlrm(ours, PARAMS)
    (batch,) = drawn_batches(tables, 16, 1, seed=3)
    inputs = torch.from_numpy(batch.dense), keyed_ids([table.name for table in tables], batch.ids, slice(0, 16))
    _, (_, logits) = ours(Batch(*inputs, torch.from_numpy(batch.labels)))
    torch.testing.assert_close(logits, theirs(*inputs).squeeze(-1))


def test_initial_weights_do_not_depend_on_the_shard():
    table = TABLES[0]
    whole_table = initial_columns(table, 0, 32, seed=4)
    parts = [initial_columns(table, start, width, seed=4) for start, width in [(0, 4), (4, 20), (24, 8)]]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole_table)
    assert len(np.unique(whole_table[0])) == 32
    assert not np.array_equal(initial_columns(table, 0, 32, seed=5), whole_table)
