"""Speeds and losses of a training check, from steps with known times and losses."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from torchrec_bridge.training_params import PARAMS as ALL

from neuroshard_pipeline.pipelines.train_check.nodes import tabulate_speeds
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainCheckError
from neuroshard_pipeline.torchrec_bridge.train_check.run import PARTS
from neuroshard_pipeline.torchrec_bridge.train_check.summary import check_losses, summarise_training

PARAMS = ALL.model_copy(update={"models": ("dlrm",), "dense": ("ddp", "hybrid"), "quantile": 0.5})
#: Milliseconds of the slower of two ranks in three rounds, by model, dense mode and sharder.
TIMES = {
    ("embeddings", "", "first"): [4, 8, 20],
    ("embeddings", "", "other"): [2, 8, 40],
    ("embeddings", "", "first (again)"): [4, 8, 20],
    ("dlrm", "ddp", ""): [6, 6, 6],
    ("dlrm", "ddp", "first"): [10, 20, 50],
    ("dlrm", "ddp", "other"): [5, 20, 100],
    ("dlrm", "ddp", "first (again)"): [11, 20, 50],
    ("dlrm", "hybrid", ""): [3, 3, 3],
    ("dlrm", "hybrid", "first"): [5, 10, 25],
    ("dlrm", "hybrid", "other"): [2.5, 10, 50],
    ("dlrm", "hybrid", "first (again)"): [5.5, 10, 25],
}


def steps(losses: dict[str, list[float]] | None = None) -> pd.DataFrame:
    """A warm-up step of a hundred times the given time, and a timed step, per round and rank."""
    rows = [
        (model, dense, sharder, 2 * number + at, number, rank, ms * (100, 1)[at] * (1, 0.5)[rank], at > 0)
        for (model, dense, sharder), times in TIMES.items()
        for number, ms in enumerate(times)
        for at in (0, 1)
        for rank in (0, 1)
    ]
    columns = ["model", "dense", "sharder", "step", "round", "rank", "step_ms", "timed"]
    frame = pd.DataFrame(rows, columns=columns).assign(network="", task_id="two-tables")
    given = {} if losses is None else losses
    frame["loss"] = [given.get(row.sharder, [0.5] * 6)[row.step] for row in frame.itertuples()]
    return frame.assign(**{part: frame["step_ms"] / len(PARTS) for part in PARTS})


def solutions() -> Solutions:
    tables = [Table("a", 10, 8, 1.0), Table("b", 10, 8, 1.0)]
    task = ShardingTask(tables, 2, 4, 2**20, task_id="two-tables")
    shards = tuple(whole(table) for table in tables)
    plans = (
        Plan(task, shards, (0, 1), "first"),
        Plan(task, shards[::-1], (1, 0), "twin"),
        Plan(task, shards, (1, 1), "other"),
    )
    attempts = [("two-tables", "lost", 0.1, "no room")] + [("two-tables", plan.sharder, 0.1, None) for plan in plans]
    return Solutions(plans, pd.DataFrame(attempts, columns=["task_id", "sharder", "seconds", "error"]))


def test_the_slowest_rank_counts_and_ratios_are_taken_within_rounds():
    found = summarise_training(steps(), solutions(), PARAMS)
    assert json.loads(json.dumps(found)) == found
    rows = {(row["dense"], row["sharder"]): row for row in found["speeds"]}
    assert [name for _, name in rows][:4] == ["first", "twin", "other", "first (again)"]
    first, other = rows["ddp", "first"], rows["ddp", "other"]
    assert first["samples_per_s"] == pytest.approx(1000 * 4 / 20)
    assert (first["embeddings_ms"], first["dense_ms"]) == (8, 6)
    assert sum(first[part] for part in PARTS) == pytest.approx((10 + 20 + 50) / 3 * 0.75)
    assert other["speed_up"]["value"] == 1
    assert other["embedding_speed_up"]["value"] == 1
    assert rows["ddp", "twin"]["same_plan_as"] == "first"
    assert (other["speed_up"]["low"], other["speed_up"]["high"]) == pytest.approx((0.5, 2))
    assert rows["hybrid", "first"]["samples_per_s"] == pytest.approx(2 * first["samples_per_s"])
    assert found["failures"] == {"lost": "no room"}


def test_the_table_names_every_plan_and_every_failure():
    text = tabulate_speeds(summarise_training(steps(), solutions(), PARAMS))
    lines = text.splitlines()
    assert lines[0].split()[4:6] == ["of", "samples/s"]
    assert lines[2].split()[:5] == ["dlrm,", "ddp,", "first", "200", "1.000"]
    assert "dlrm, hybrid, twin (= first)" in text
    assert "lost: no plan: no room" in lines
    assert "2 tables of two-tables on 2 ranks of 1 host(s) (gloo)" in text


def test_losses_that_differ_are_named_with_their_plans():
    wrong = steps({"other": [0.5] * 5 + [0.51]})
    message = (
        r"dlrm trains to different losses: at step 5 the loss is 0\.500000 under first .* and 0\.510000 under other "
        r"\(ddp\); the relative difference of 0\.02"
    )
    with pytest.raises(TrainCheckError, match=message):
        check_losses(wrong, PARAMS)
    for accepted in ({"loss_tolerance": 0.1}, {"loss_steps": 5}):
        found = check_losses(wrong, PARAMS.model_copy(update=accepted))["dlrm"]["largest_difference"]
        assert found == pytest.approx(0.02 if "loss_tolerance" in accepted else 0.0)


def test_a_loss_that_is_not_a_number_is_named():
    losses = {"other": [0.5, 0.5, float("nan"), 0.5, 0.5, 0.5]}
    with pytest.raises(
        TrainCheckError, match=r"dlrm: under the plan of other \(ddp\) the loss of step 2 is not finite"
    ):
        check_losses(steps(losses), PARAMS)
