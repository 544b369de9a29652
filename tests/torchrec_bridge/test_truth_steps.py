"""Timed steps of TorchRec's embedding module train correctly under every sharding type, and every row adds up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec_bridge.hand_built import HandBuilt, expected_sums, trained_sums
from torchrec_bridge.ranks import run_ranks

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.ranks import RankError
from neuroshard_pipeline.torchrec_bridge.train_check.batches import drawn_batches
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import BACKWARD_PARTS, STEP_PARTS, measure_steps, task_batches

pytestmark = [pytest.mark.slow, *QUIET]

TABLES = [
    Table("a", 301, 32, 5.0),
    Table("b", 50, 4, 1.0),
    Table("c", 2000, 12, 2.5, module="other"),
    Table("d", 7, 64, 0.5),
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

WHOLE_A = ("column_wise", [(0, 0, 301, 32, 0)])
WHOLE_B = ("column_wise", [(0, 0, 50, 4, 1)])
WHOLE_C = ("column_wise", [(0, 0, 2000, 12, 1)])
WHOLE_D = ("column_wise", [(0, 0, 7, 64, 0)])
ROWS_A = [(0, 0, 151, 32, 0), (151, 0, 150, 32, 1)]
PLANS = {
    "column_wise": {
        "a": ("column_wise", [(0, 0, 301, 16, 0), (0, 16, 301, 16, 1)]),
        "b": WHOLE_B,
        "c": WHOLE_C,
        "d": WHOLE_D,
    },
    "row_wise": {"a": ("row_wise", ROWS_A), "b": WHOLE_B, "c": WHOLE_C, "d": WHOLE_D},
    "table_row_wise": {"a": ("table_row_wise", ROWS_A), "b": WHOLE_B, "c": WHOLE_C, "d": WHOLE_D},
    "data_parallel": {
        "a": WHOLE_A,
        "b": ("data_parallel", [(0, 0, 50, 4, 0), (0, 0, 50, 4, 1)]),
        "c": WHOLE_C,
        "d": ("data_parallel", [(0, 0, 7, 64, 0), (0, 0, 7, 64, 1)]),
    },
    "one idle rank": {
        name: ("column_wise", [(0, 0, t.num_embeddings, t.embedding_dim, 1)])
        for name, t in zip("abcd", TABLES, strict=True)
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_a_timed_step_trains_every_sharding_type(name: str, tmp_path: Path):
    plan = HandBuilt(TASK, name, PLANS[name])
    answers = run_ranks(2, tmp_path, trained_sums, plan, BATCHES, PARAMS)
    for table, expected in expected_sums(TASK, list(BATCHES), PARAMS.learning_rate).items():
        pooled = np.concatenate([np.array(pooled[table]) for _, pooled in answers])
        np.testing.assert_allclose(pooled, expected, rtol=1e-5, atol=1e-5)
    for times in (times for of_rank, _ in answers for times in of_rank):
        assert sum(times[part] for part in STEP_PARTS) == pytest.approx(times["step_ms"])
        assert 0 < sum(times[part] for part in BACKWARD_PARTS) < times["backward_ms"]
        assert (times["dense_optimizer_ms"] > 0) == (name == "data_parallel")


def test_plans_of_several_tasks_take_turns():
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


PLACEMENTS = [(0, 0, 1, 1), (0, 1, 0, 1), (1, 1, 1, 0)]


def test_plans_that_cannot_be_measured_together_are_refused():
    plan = Plan(TASK, tuple(map(whole, TABLES)), (0, 0, 1, 1), "same", compute_device="cpu")
    with pytest.raises(RankError, match="two plans have the sharder name 'same'"):
        measure_steps([plan, plan], {"task": BATCHES}, PARAMS)
    with pytest.raises(RankError, match="batches_by_task has no batches"):
        measure_steps([plan], {}, PARAMS)


def test_a_rank_that_fails_is_reported_with_its_plans():
    broken = HandBuilt(TASK, "broken", {"a": WHOLE_A})
    with pytest.raises(RankError, match=r"task: the measurement under the plans of broken stopped: worker \d failed"):
        measure_steps([broken], {"task": BATCHES}, PARAMS)  # type: ignore[list-item]
