"""`kedro run --pipeline truth` at a small scale, with real plans, ranks and steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from conftest import run_pipeline
from kedro.validation.exceptions import ParameterValidationError
from torchrec_bridge.needs_torchrec import QUIET

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.frames import tasks_from_frame

pytestmark = [pytest.mark.slow, *QUIET]

SHARDERS = ["size_lookup_greedy", "torchrec", "neuroshard"]


def newest(data_root: Path, name: str) -> Path:
    return sorted((data_root / name).iterdir())[-1] / Path(name).name


def test_the_stage_prints_predicted_beside_measured_steps(finished_run, capfd):
    run_pipeline(finished_run, "truth")
    summary = json.loads(newest(finished_run, "08_reporting/truth_summary.json").read_text())
    steps = pd.read_parquet(newest(finished_run, "07_model_output/truth_steps.parquet"))
    assert steps.groupby(["task_id", "sharder"], sort=False).size().tolist() == [2 * 2 * 3] * len(summary["plans"])
    assert list(summary["sharders"])[:3] == SHARDERS
    assert all(plan["measured_ms"] > 0 for plan in summary["plans"])
    assert all(plan["predicted_ms"] > 0 for plan in summary["plans"] if plan["sharder"] in SHARDERS)
    plans = pd.read_parquet(newest(finished_run, "07_model_output/truth_plans.parquet"))
    assert set(plans["sharder"]) == {plan["sharder"] for plan in summary["plans"]}
    assert set(plans["sharding_type"]) >= {"column_wise", "row_wise", "data_parallel"}
    table = newest(finished_run, "08_reporting/truth_table.txt").read_text()
    assert table in capfd.readouterr().out
    assert all(name in table for name in [*SHARDERS, "input dist", "all row_wise", "Kendall's tau"])


def test_tasks_are_those_of_the_search_on_fewer_ranks(finished_run, tmp_path):
    run_pipeline(finished_run, "truth", params={"truth": {"task": {"drawn_for_ranks": 4, "num_tasks": 1}}})
    (task,) = tasks_from_frame(pd.read_parquet(newest(finished_run, "03_primary/truth_tasks.parquet")))
    run_pipeline(tmp_path, "augment", params={"augment": {"sharding_tasks": {"world_sizes": [4]}}})
    drawn = tasks_from_frame(pd.read_parquet(newest(tmp_path, "03_primary/sharding_tasks.parquet")))[0]
    assert (drawn.task_id, drawn.world_size) == ("4-ranks-000", 4)
    assert task == replace(drawn, world_size=2, memory_bytes=2 * drawn.memory_bytes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": {"rounds": 1}}, r"truth\.steps[\s\S]*rounds\s+Input should be greater than or equal to 2"),
        ({"task": {"world_size": 3, "drawn_for_ranks": 3}}, "truth.task.world_size 3 must divide .*batch_size"),
    ],
)
def test_steps_that_cannot_be_compared_are_refused_before_plans_are_made(finished_run, changes, words):
    plans = set((finished_run / "07_model_output").rglob("truth_*"))
    with pytest.raises((ParameterValidationError, TaskError), match=words):
        run_pipeline(finished_run, "truth", params={"truth": changes})
    assert set((finished_run / "07_model_output").rglob("truth_*")) == plans
