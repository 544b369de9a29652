"""Timed steps of TorchRec's embedding module train correctly with four sharding types; their parts add up to a step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.truth_ranks import Rows, trained_rows, unsharded_rows

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.ids import TableIds
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.ranks import RankError
from neuroshard_pipeline.torchrec_bridge.train_check.batches import drawn_batches
from neuroshard_pipeline.torchrec_bridge.truth import params as truth_params
from neuroshard_pipeline.torchrec_bridge.truth.embeddings import ids_of_features
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import (
    BACKWARD_PARTS,
    STEP_PARTS,
    measure_steps,
    step_groups,
    task_batches,
    timed_groups,
)

pytestmark = [pytest.mark.slow, *QUIET]

TABLES = [
    Table("a", 301, 32, 5.0, num_features=2),
    Table("b", 50, 4, 1.0),
    Table("c", 2000, 12, 2.5, module="other", is_weighted=True),
    Table("d", 7, 64, 0.5, module="mean", pooling="mean"),
    Table("s", 90, 8, 1.5, pooling="none"),
]
TASK = ShardingTask(TABLES, world_size=2, batch_size=32, memory_bytes=2**30)
BATCHES = drawn_batches(TABLES, 32, num_batches=3, seed=0)
PARAMS = StepParams(
    backend="gloo",
    threads=1,
    timeout_s=50,
    learning_rate=0.05,
    num_batches=3,
    rounds=2,
    warmup_steps=1,
    steps_per_round=2,
    most_plans_held=2,
    seed=0,
)
FOUR_ROUNDS = PARAMS.model_copy(update={"rounds": 4})
PLACEMENTS = [(0, 0, 1, 1, 0), (0, 1, 0, 1, 1), (1, 1, 1, 1, 1)]


def plan_of(**cut: list[tuple[Shard, int]]) -> Plan:
    """A plan with the given shards of some tables; other tables are whole and alternate between the ranks."""
    placed = [entry for at, table in enumerate(TABLES) for entry in cut.get(table.name, [(whole(table), at % 2)])]
    shards, ranks = zip(*placed, strict=True)
    return Plan(TASK, shards, ranks, "/".join(sorted(cut)), compute_device="cpu")


def columns_of(table: Table, *widths: int) -> list[tuple[Shard, int]]:
    """Column shards of these widths, which alternate between the ranks."""
    return [(Shard(table, sum(widths[:at]), width), at % 2) for at, width in enumerate(widths)]


def rows_of(table: Table, sharding_type: ShardingType) -> list[tuple[Shard, int]]:
    return [(shard, rank) for rank, shard in enumerate(row_shards(table, sharding_type, 2))]


def replicas_of(table: Table) -> list[tuple[Shard, int]]:
    return [(whole(table, "data_parallel"), rank) for rank in (0, 1)]


A, B, C, D, S = TABLES
PLANS = {
    "column_wise": plan_of(a=columns_of(A, 16, 16), d=columns_of(D, 40, 24)),
    "row_wise": plan_of(a=rows_of(A, "row_wise"), d=rows_of(D, "row_wise"), s=rows_of(S, "row_wise")),
    "table_row_wise": plan_of(a=rows_of(A, "table_row_wise"), c=rows_of(C, "table_row_wise")),
    "data_parallel": plan_of(b=replicas_of(B), d=replicas_of(D)),
    "one idle rank": plan_of(**{table.name: [(whole(table), 1)] for table in TABLES}),
}


@pytest.fixture(scope="module")
def expected() -> Rows:
    return unsharded_rows(TASK, BATCHES, PARAMS.learning_rate)


@pytest.mark.parametrize("name", PLANS)
def test_timed_steps_train_four_sharding_types_like_an_unsharded_module(name: str, expected: Rows, tmp_path: Path):
    answers = run_ranks(2, tmp_path, trained_rows, PLANS[name], BATCHES, PARAMS)
    for feature, rows in expected.items():
        found = np.concatenate([np.array(own[feature]) for _, own in answers])
        np.testing.assert_allclose(found, np.array(rows), rtol=1e-5, atol=1e-5, err_msg=feature)
    for times in (times for of_rank, _ in answers for times in of_rank):
        assert sum(times[part] for part in STEP_PARTS) == pytest.approx(times["step_ms"])
        assert 0 < sum(times[part] for part in BACKWARD_PARTS) < times["backward_ms"]
        assert (times["dense_optimizer_ms"] > 0) == (name == "data_parallel")


def test_the_ids_of_a_sample_are_dealt_to_the_features_in_turn():
    ids = TableIds(np.array([5, 6, 7, 8, 9, 1]), np.array([0, 3, 3, 6]))
    first, second = ids_of_features(ids, 2)
    assert (first.indices.tolist(), first.offsets.tolist()) == ([5, 7, 8, 1], [0, 2, 2, 4])
    assert (second.indices.tolist(), second.offsets.tolist()) == ([6, 9], [0, 1, 1, 2])


@pytest.mark.parametrize(
    ("most_held", "memory_for", "sizes"), [(9, 9, [5]), (4, 9, [3, 2]), (9, 2, [2, 2, 1]), (9, 0, [1] * 5)]
)
@pytest.mark.parametrize("name", ["data_parallel", "row_wise"])
def test_ranks_hold_as_many_plans_as_their_memory_has_room_for(
    name: str, most_held: int, memory_for: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
):
    plans = [dataclasses.replace(PLANS[name], sharder=str(at)) for at in range(5)]
    # A replica has weights, gradients, a copy of them, and a number of PyTorch's Adagrad per weight.
    kinds = {True: lambda shard: 4 * shard.weight_bytes, False: lambda shard: shard.weight_bytes + 4 * shard.num_rows}
    plan_bytes = sum(kinds[shard.sharding_type == "data_parallel"](shard) for shard in plans[0].shards)
    left = 2 * truth_params.RANK_BYTES + (memory_for + 0.5) * truth_params.BYTES_PER_TABLE_BYTE * plan_bytes
    monkeypatch.setattr(truth_params, "available_memory_bytes", lambda: int(left))
    params = PARAMS.model_copy(update={"most_plans_held": most_held})
    groups = list(step_groups(plans, {TASK.task_id: BATCHES}, params))
    assert [len(group.plans) for group in groups] == sizes
    assert [plan for group in groups for plan in group.plans] == plans


def plan_of_tables(count: int, world_size: int = 2) -> Plan:
    task = ShardingTask(TABLES[:count], world_size, 16, 2**30, task_id=f"{count}-tables-{world_size}-ranks")
    return Plan(task, tuple(map(whole, task.tables)), (0,) * count, "all on one rank", compute_device="cpu")


def test_the_largest_task_comes_first_among_those_with_equally_many_ranks():
    plans = [plan_of_tables(2, world_size=4), plan_of_tables(1), plan_of_tables(3), plan_of_tables(2)]
    groups = step_groups(plans, task_batches(plans, PARAMS), PARAMS)
    assert [group.plans for group in groups] == [(plans[at],) for at in (2, 3, 1, 0)]


def test_after_the_budget_only_the_least_number_of_rounds_runs():
    plan = plan_of_tables(2)
    (group,) = step_groups([plan], task_batches([plan], PARAMS), PARAMS)
    ((_, steps),) = timed_groups([group._replace(budget_s=1e-9, least_rounds=2)], FOUR_ROUNDS)
    assert steps["round"].unique().tolist() == [0, 1]


def test_every_plan_of_several_tasks_has_all_steps_of_every_round_on_every_rank():
    other = ShardingTask(TABLES[:2], world_size=2, batch_size=16, memory_bytes=2**30, task_id="other")
    a, b = TABLES[:2]
    plans = [
        *(Plan(TASK, tuple(map(whole, TABLES)), ranks, f"p{ranks}", compute_device="cpu") for ranks in PLACEMENTS),
        Plan(other, (Shard(a, 0, 12), Shard(a, 12, 20), whole(b)), (0, 1, 0), "split", compute_device="cpu"),
    ]
    frame = measure_steps(plans, task_batches(plans, PARAMS), PARAMS)
    assert len(frame) == len(plans) * 2 * 2 * 3  # ranks, rounds, steps
    for _, own in frame.groupby(["task_id", "sharder", "rank"]):
        assert own["step"].tolist() == list(range(6))
        assert own["round"].tolist() == [0, 0, 0, 1, 1, 1]
        assert own["timed"].tolist() == [False, True, True] * 2
    np.testing.assert_allclose(frame[list(STEP_PARTS)].sum(axis=1), frame["step_ms"])


def test_plans_that_cannot_be_measured_are_refused():
    plan = Plan(TASK, tuple(map(whole, TABLES)), PLACEMENTS[0], "same", compute_device="cpu")
    with pytest.raises(RankError, match="two plans have the sharder name 'same'"):
        measure_steps([plan, plan], {"task": BATCHES}, PARAMS)
    with pytest.raises(RankError, match="batches_by_task has no batches"):
        measure_steps([plan], {}, PARAMS)
    groups = dataclasses.replace(plan, task=dataclasses.replace(TASK, num_replica_groups=2))
    with pytest.raises(RankError, match="without the averaging of 2 replica groups; set num_replica_groups to 1"):
        measure_steps([groups], {"task": BATCHES}, PARAMS)


def test_a_rank_that_fails_is_reported_with_its_plans():
    table = Table("a.b", 10, 4, 1.0)
    task = ShardingTask([table], world_size=2, batch_size=2, memory_bytes=2**20)
    plan = Plan(task, (whole(table),), (0,), "dotted", compute_device="cpu")
    with pytest.raises(RankError, match=r"task: the measurement under the plan of dotted stopped: worker \d failed"):
        measure_steps([plan], task_batches([plan], PARAMS), PARAMS)
