"""`kedro run --pipeline refine`, tiny: real searches, real kernels, real collectives."""

import json
from pathlib import Path

import pandas as pd
import pytest
from conftest import run_pipeline

import neuroshard_pipeline as ns

pytestmark = pytest.mark.slow


def newest(data_root: Path, name: str) -> Path:
    return sorted((data_root / name).iterdir())[-1] / Path(name).name


@pytest.fixture(scope="module")
def refined_run(finished_run) -> str:
    return run_pipeline(finished_run, "refine")


def test_refined_models_are_the_newest_and_remember_what_they_were_trained_on(finished_run, refined_run):
    models = ns.load_cost_models(finished_run / "06_models")
    for kind in ("compute", "comm"):
        provenance = getattr(models, kind).provenance
        assert provenance["run_id"] == refined_run
        trained_on = provenance["data_versions"]
        assert trained_on[f"refine.{kind}_samples"] == trained_on[f"refine.{kind}_costs"] == refined_run
        assert f"augment.{kind}_samples" in trained_on
    run_pipeline(finished_run, "search")
    lineage = json.loads(sorted((finished_run / "08_reporting/lineage").glob("*.json"))[-1].read_text())
    assert lineage["inputs"]["train.compute_cost_model"] == refined_run
    assert f"(run {refined_run})" in newest(finished_run, "08_reporting/report.html").read_text()


@pytest.mark.usefixtures("refined_run")
def test_what_was_measured_is_kept_and_the_judging_used_none_of_it(finished_run):
    for kind in ("compute", "comm"):
        samples = pd.read_parquet(newest(finished_run, f"03_primary/refine_{kind}_samples.parquet"))
        costs = pd.read_parquet(newest(finished_run, f"04_feature/refine_{kind}_costs.parquet"))
        assert set(samples["sample_id"]) == set(costs["sample_id"])
        assert costs[["forward_ms", "backward_ms"]].gt(0).all(axis=None)
        judged = pd.read_parquet(newest(finished_run, "08_reporting/refine_predictions.parquet"))
        assert not set(judged["sample_id"]) & set(costs["sample_id"])
    settings = pd.read_parquet(newest(finished_run, "03_primary/refine_compute_sample_settings.parquet"))
    compute = pd.read_parquet(newest(finished_run, "03_primary/refine_compute_samples.parquet"))
    assert set(settings["sample_id"]) == set(compute["sample_id"])
    tasks, judging = (
        pd.read_parquet(newest(finished_run, f"03_primary/refine_{name}.parquet"))
        for name in ("tasks", "judging_tasks")
    )
    known = pd.read_parquet(newest(finished_run, "03_primary/sharding_tasks.parquet"))
    sets = [set(frame.groupby("task_id")["table"].apply(frozenset)) for frame in (tasks, judging, known)]
    assert not sets[0] & sets[1]
    assert not (sets[0] | sets[1]) & sets[2]


@pytest.mark.usefixtures("refined_run")
def test_the_summary_compares_plans_of_both_models_measured_together(finished_run):
    summary = json.loads(newest(finished_run, "08_reporting/refine_summary.json").read_text())
    assert [entry["round"] for entry in summary["rounds"]] == [1, 2]
    assert summary["drift"]["compute"]["forward_ms"]["anchors"] > 0
    for sharder in ("neuroshard", "neuroshard_plus"):
        assert summary["plans"][sharder]["tasks"] == 2
        assert summary["plans"][sharder]["after_ms"] > 0
    costs = pd.read_parquet(newest(finished_run, "07_model_output/refine_plan_costs.parquet"))
    assert set(costs["models"]) == {"before", "after"}
    assert costs.filter(like="_ms").notna().all(axis=None)


@pytest.mark.usefixtures("refined_run")
def test_the_table_is_printed(finished_run, capfd):
    table = newest(finished_run, "08_reporting/refine_table.txt").read_text()
    assert "error on chosen samples" in table
    run_pipeline(finished_run, "refine", params={"refine": {"rounds": {"rounds": 1}}})
    assert "measured and added: " in capfd.readouterr().out
