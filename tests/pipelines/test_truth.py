"""`kedro run --pipeline truth` at a small scale, with real plans, ranks and steps."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from conftest import run_pipeline
from torchrec_bridge.needs_torchrec import QUIET

pytestmark = [pytest.mark.slow, *QUIET]

SHARDERS = ["size_lookup_greedy", "torchrec", "neuroshard"]


def newest(data_root: Path, name: str) -> Path:
    return sorted((data_root / name).iterdir())[-1] / Path(name).name


def test_the_stage_prints_predicted_beside_measured_steps(finished_run, capfd):
    run_pipeline(finished_run, "truth")
    summary = json.loads(newest(finished_run, "08_reporting/truth_summary.json").read_text())
    costs = pd.read_parquet(newest(finished_run, "07_model_output/truth_plan_costs.parquet"))
    assert list(summary["sharders"])[:3] == SHARDERS
    assert summary["world_sizes"] == [2]
    assert (costs["measured_step_ms"] > 0).all()
    assert summary["noise"]["tasks"] == 1
    plans = pd.read_parquet(newest(finished_run, "07_model_output/truth_plans.parquet"))
    assert set(plans["sharder"]) == set(costs["sharder"]) > {*SHARDERS, "all row_wise"}
    assert set(plans["sharding_type"]) >= {"column_wise", "row_wise", "data_parallel"}
    table = newest(finished_run, "08_reporting/truth_table.txt").read_text()
    assert table in capfd.readouterr().out
    assert all(name in table for name in [*SHARDERS, "input dist", "all row_wise", "Noise of this run"])


def test_plans_for_more_ranks_than_cores_are_measured_on_virtual_ranks(finished_run):
    """Two hosts of two ranks."""
    tasks = {"world_sizes": [4], "local_world_size": 2, "tasks_per_world_size": [1]}
    settings = {"contest": {"sharders": ["lookup_greedy", "neuroshard"]}, "variants": {"of": None}}
    steps = {"network": "ethernet-1", "most_ranks": 2}
    run_pipeline(finished_run, "truth", params={"truth": {**settings, "sharding_tasks": tasks, "steps": steps}})
    summary = json.loads(newest(finished_run, "08_reporting/truth_summary.json").read_text())
    assert "4 virtual ranks; the network between their hosts is modelled as ethernet-1" in summary["judge"]
    assert summary["sharders"]["neuroshard"]["mean_measured_step_ms"] > 0
