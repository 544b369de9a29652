"""`kedro run --pipeline train_check` at a small scale, with real plans, ranks and training."""

import json
from pathlib import Path

import pandas as pd
import pytest
from conftest import run_pipeline
from tables.criteo_files import write_criteo
from torchrec_bridge.needs_torchrec import QUIET

from neuroshard_pipeline.torchrec_bridge.train_check import run

pytestmark = [pytest.mark.slow, *QUIET]

SHARDERS = ["torchrec", "neuroshard"]


def newest(data_root: Path, name: str) -> Path:
    return sorted((data_root / name).iterdir())[-1] / Path(name).name


def test_the_check_compares_plans_and_prints_a_table(finished_run, tmp_path, capfd):
    rows = [f"t{number},{1000 * (number + 1)},{8 * (1 + number % 3)},2" for number in range(6)]
    (tmp_path / "tables.csv").write_text("\n".join(["table,num_embeddings,embedding_dim,pooling_factor", *rows]))
    task = {"tables": str(tmp_path / "tables.csv"), "row_scale": 10}
    run_pipeline(finished_run, "train_check", params={"train_check": {"task": task}})
    steps = pd.read_parquet(newest(finished_run, "07_model_output/train_check_steps.parquet"))
    assert set(steps["model"]) == {"embeddings", "dlrm", "dhen"}
    summary = json.loads(newest(finished_run, "08_reporting/train_check_summary.json").read_text())
    found = [tuple(row[name] for name in ("model", "dense", "sharder")) for row in summary["speeds"]]
    expected = [
        (model, dense, sharder) for model in ("dlrm", "dhen") for dense in ("ddp", "fsdp2") for sharder in SHARDERS
    ]
    assert [row for row in found if not row[2].endswith("(again)")] == expected
    assert all(of["largest_difference"] < 1e-3 for of in summary["losses"].values())
    plans = pd.read_parquet(newest(finished_run, "07_model_output/train_check_plans.parquet"))
    assert plans.groupby("sharder")["table"].nunique().tolist() == [6] * 2
    table = newest(finished_run, "08_reporting/train_check_table.txt").read_text()
    assert table in capfd.readouterr().out
    assert all(name in table for name in SHARDERS)


def test_the_samples_of_a_criteo_file_and_the_choice_of_fsdp2_reach_the_training(finished_run, tmp_path, monkeypatch):
    given, train_under_plans = [], run.train_under_plans

    def training(plans, batches, params, progress):
        given.append((batches, params))
        return train_under_plans(plans, batches, params, progress)

    monkeypatch.setattr(run, "train_under_plans", training)
    lines = write_criteo(tmp_path / "day_0.gz", 128, seed=0)
    task = {"tables": "data/01_raw/criteo_kaggle.csv", "criteo_file": str(tmp_path / "day_0.gz")}
    changes = {
        "task": task,
        "training": {"dense": ["fsdp2"], "models": ["dlrm"]},
        "contest": {"sharders": SHARDERS[1:]},
    }
    run_pipeline(finished_run, "train_check", params={"train_check": changes})
    ((batches, params),) = given
    assert [label for batch in batches for label in batch.labels] == [label for label, _, _ in lines]
    assert params.dense == ("fsdp2",)
    summary = json.loads(newest(finished_run, "08_reporting/train_check_summary.json").read_text())
    assert summary["training"]["dense"] == ["fsdp2"]
    assert summary["task_id"] == "criteo_kaggle"
