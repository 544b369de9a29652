"""The same model trains to the same losses under every plan; if a rank is lost, the check and all ranks end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec_bridge.dense_shards import dense_sizes
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.unsharded_dlrm import torchrecs_dlrm, unsharded_model

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.ranks import RankError
from neuroshard_pipeline.torchrec_bridge.train_check.batches import drawn_batches
from neuroshard_pipeline.torchrec_bridge.train_check.model import initial_columns, keyed_ids
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainCheckError, TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.run import Turn, ask, train_under_plans, training_team

pytestmark = [pytest.mark.slow, *QUIET]

TABLES = [Table("a", 300, 32, 5.0), Table("b", 50, 4, 1.0), Table("c", 2000, 12, 2.5), Table("d", 7, 64, 0.5)]
TASK = ShardingTask(TABLES, world_size=2, batch_size=32, memory_bytes=2**30)
BATCHES = drawn_batches(TABLES, 32, num_batches=3, seed=0)
PARAMS = TrainingParams(
    backend="gloo",
    dense="ddp",
    dense_layers=(16, 8),
    cross_layers=2,
    cross_rank=4,
    over_layers=(16,),
    learning_rate=0.2,
    rounds=2,
    warmup_steps=1,
    steps_per_round=4,
    loss_tolerance=1e-3,
    threads=1,
    timeout_s=50,
    seed=0,
)


def plans() -> list[Plan]:
    """Whole tables; uneven shards with two shards of one table on one rank; row shards and replicas."""
    a, b, c, d = TABLES
    cut = {Shard(a, 0, 16): 0, Shard(a, 16, 4): 1, Shard(a, 20, 12): 0, Shard(d, 0, 40): 1, Shard(d, 40, 24): 0}
    uneven = Plan(TASK, (*cut, whole(b), whole(c)), (*cut.values(), 1, 1), "uneven")
    rows = [(shard, rank) for table in (a, c) for rank, shard in enumerate(row_shards(table, "row_wise", 2))]
    mixed = [*rows, (whole(d), 1), *((whole(b, "data_parallel"), rank) for rank in range(2))]
    return [
        Plan(TASK, tuple(whole(table) for table in TABLES), (0, 0, 1, 1), "tables"),
        uneven,
        Plan(TASK, *zip(*mixed, strict=True), "rows and replicas"),
    ]


@pytest.fixture(scope="module")
def unsharded_losses() -> list[float]:
    """Losses of an ordinary model that is trained with the global batches in this process."""
    model = unsharded_model(TABLES, PARAMS)
    optimizer = torch.optim.SGD(model.parameters(), lr=PARAMS.learning_rate)
    losses = []
    for step in range(PARAMS.rounds * (PARAMS.warmup_steps + PARAMS.steps_per_round)):
        batch = BATCHES[step % len(BATCHES)]
        ids = keyed_ids([table.name for table in TABLES], batch.ids, slice(0, 32))
        logits = model(torch.from_numpy(batch.dense), ids)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dense", ["ddp", "fsdp2"])
def test_every_plan_trains_to_the_losses_of_the_unsharded_model(unsharded_losses, dense):
    steps = train_under_plans(plans(), BATCHES, PARAMS.model_copy(update={"dense": dense}))
    assert set(steps["sharder"]) == {"tables", "uneven", "rows and replicas"}
    for _, of_plan in steps.groupby("sharder"):
        assert of_plan["step"].tolist() == list(range(10))
        assert of_plan["timed"].tolist() == [False, True, True, True, True] * 2
        assert of_plan["step_ms"].gt(0).all()
        np.testing.assert_allclose(of_plan["loss"], unsharded_losses, rtol=1e-4)
    assert unsharded_losses[-1] < unsharded_losses[0] - 0.01


@pytest.mark.parametrize("dense", ["ddp", "fsdp2"])
def test_fsdp2_shards_the_dense_network_and_ddp_replicates_it(tmp_path, dense):
    params = PARAMS.model_copy(update={"dense": dense})
    of_ranks = run_ranks(2, tmp_path, dense_sizes, plans()[0], params)
    for parameter in zip(*of_ranks, strict=True):
        (total, _), held, are_sharded = zip(*parameter, strict=True)
        assert all(are_sharded) is any(are_sharded) is (dense == "fsdp2")
        assert sum(held) == (total if dense == "fsdp2" else 2 * total)


@pytest.mark.parametrize(
    ("sent_signal", "timeout_s", "words"),
    [(signal.SIGKILL, 50, r"worker \d (died|failed)"), (signal.SIGSTOP, 3, r"worker \d did not answer within 3 s")],
    ids=["dead", "hung"],
)
def test_a_lost_rank_stops_the_check_and_all_other_ranks(sent_signal, timeout_s, words):
    others = multiprocessing.active_children()
    with training_team(plans(), BATCHES, PARAMS) as team:
        assert len(ask(team, Turn(0, 0, 1), "tables", 50)) == 2
        ranks = [process.pid for process in multiprocessing.active_children() if process not in others]
        assert len(ranks) == 2
        os.kill(ranks[1], sent_signal)
        start = time.monotonic()
        with pytest.raises(TrainCheckError, match=rf"plan of uneven stopped at steps 1 to 2: .*{words}"):
            ask(team, Turn(1, 1, 2), "uneven", timeout_s)
        assert time.monotonic() - start < 40
        for rank in ranks:
            with pytest.raises(ProcessLookupError):
                os.kill(rank, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the refusal on machines without GPUs")
def test_nccl_without_gpus_is_refused():
    with pytest.raises(RankError, match="needs a GPU for each of 2 ranks, not 0"):
        train_under_plans(plans(), BATCHES, PARAMS.model_copy(update={"backend": "nccl"}))


def test_the_model_computes_what_torchrecs_does_if_widths_are_equal():
    tables = [Table(f"t{index}", 20 + index, 8, 2.0) for index in range(5)]
    ours = unsharded_model(tables, PARAMS)
    theirs = torchrecs_dlrm(ours, PARAMS)
    (batch,) = drawn_batches(tables, 16, 1, seed=3)
    inputs = torch.from_numpy(batch.dense), keyed_ids([table.name for table in tables], batch.ids, slice(0, 16))
    torch.testing.assert_close(ours(*inputs), theirs(*inputs).squeeze(-1))


def test_initial_weights_do_not_depend_on_the_shard():
    table = TABLES[0]
    whole_table = initial_columns(table, 0, 32, seed=4)
    parts = [initial_columns(table, start, width, seed=4) for start, width in [(0, 4), (4, 20), (24, 8)]]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole_table)
    assert len(np.unique(whole_table[0])) == 32
    assert not np.array_equal(initial_columns(table, 0, 32, seed=5), whole_table)
