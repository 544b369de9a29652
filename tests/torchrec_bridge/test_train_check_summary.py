"""Speeds and losses of a training check, from steps with known speeds and losses."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from neuroshard_pipeline.pipelines.train_check.nodes import tabulate_speeds
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainCheckError, TrainingParams
from neuroshard_pipeline.torchrec_bridge.train_check.summary import check_losses, summarise_training

PARAMS = TrainingParams(
    backend="gloo",
    dense="ddp",
    dense_layers=(8,),
    cross_layers=1,
    cross_rank=1,
    over_layers=(8,),
    learning_rate=0.1,
    rounds=3,
    warmup_steps=1,
    steps_per_round=2,
    loss_tolerance=1e-3,
    threads=1,
    timeout_s=10,
    seed=0,
)


def steps(ms_by_round: dict[str, list[float]], losses: list[float] | None = None) -> pd.DataFrame:
    """Per sharder and round, a warm-up step of a hundred times the given mean, and two timed steps with this mean."""
    losses = losses or [1.0 - 0.1 * step for step in range(9)]
    rows = [
        (sharder, number, 3 * number + at, losses[3 * number + at], step_ms * factor, at > 0)
        for sharder, per_round in ms_by_round.items()
        for number, step_ms in enumerate(per_round)
        for at, factor in enumerate((100.0, 0.5, 1.5))
    ]
    return pd.DataFrame(rows, columns=["sharder", "round", "step", "loss", "step_ms", "timed"])


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


def test_speeds_are_medians_over_rounds_and_ratios_are_taken_within_rounds():
    found = summarise_training(
        steps({"first": [10, 20, 50], "twin": [10, 20, 50], "other": [5, 20, 100]}), solutions(), PARAMS
    )
    assert json.loads(json.dumps(found)) == found
    assert found["sharders"]["first"]["steps_per_second"] == {
        "median": 50.0,
        "lower_quartile": 35.0,
        "upper_quartile": 75.0,
    }
    assert found["sharders"]["other"]["against_first"] == {"median": 1.0, "lower_quartile": 0.75, "upper_quartile": 1.5}
    assert found["sharders"]["twin"]["same_plan_as"] == "first"
    assert found["sharders"]["other"]["same_plan_as"] is None
    assert found["failures"] == {"lost": "no room"}


def test_the_table_names_every_plan_and_every_failure():
    times = {"first": [10, 20, 50], "twin": [10, 20, 50], "other": [5, 20, 100]}
    found = summarise_training(steps(times), solutions(), PARAMS)
    lines = tabulate_speeds(found).splitlines()
    assert lines[2].split()[:2] == ["first", "50.00"]
    assert lines[3].startswith("twin (= first)")
    assert lines[3].split()[-3:] == ["1.000", "1.000..1.000", "-"]
    assert lines[4].split() == ["other", "50.00", "30.00..125.00", "1.000", "0.750..1.500", "-"]
    assert "lost: no plan: no room" in lines
    assert "2 tables of two-tables on 2 ranks (gloo, dense network ddp)" in tabulate_speeds(found)


def test_losses_that_differ_are_named_with_their_plans():
    good = steps({"first": [1, 1, 1]})
    wrong = steps({"second": [1, 1, 1]}, [1.0, 0.9, 0.8, 0.7, 0.6, 0.51, 0.4, 0.3, 0.2])
    message = r"step 5 the loss is 0\.500000 under first and 0\.510000 under second; the relative difference of 0\.02"
    with pytest.raises(TrainCheckError, match=message):
        check_losses(pd.concat([good, wrong]), 1e-3)
    assert check_losses(pd.concat([good, wrong]), 0.1) == pytest.approx(0.02)


def test_a_loss_that_is_not_a_number_is_named():
    losses = [0.5, 0.5, float("nan"), *[0.5] * 6]
    with pytest.raises(TrainCheckError, match="plan of second the loss of step 2 is not finite"):
        check_losses(pd.concat([steps({"first": [1, 1, 1]}, [0.5] * 9), steps({"second": [1, 1, 1]}, losses)]), 1e-3)
