"""`kedro run --pipeline refine` with tiny tasks: searches, measures with real kernels and collectives, trains."""

import json
from pathlib import Path

import pandas as pd
import pytest
from conftest import run_pipeline

import neuroshard_pipeline as ns

pytestmark = pytest.mark.slow

FRAMES = {
    "compute_samples": "03_primary",
    "compute_sample_settings": "03_primary",
    "compute_costs": "04_feature",
    "comm_samples": "03_primary",
    "comm_costs": "04_feature",
}


def newest(data_root: Path, name: str) -> Path:
    return sorted((data_root / name).iterdir())[-1] / Path(name).name


def newest_lineage(data_root: Path) -> dict:
    return json.loads(sorted((data_root / "08_reporting/lineage").glob("*.json"))[-1].read_text())


def refined(data_root: Path) -> dict[str, pd.DataFrame]:
    return {
        name: pd.read_parquet(newest(data_root, f"{layer}/refine_{name}.parquet")) for name, layer in FRAMES.items()
    }


@pytest.fixture(scope="module")
def refined_run(finished_run) -> str:
    return run_pipeline(finished_run, "refine")


def test_the_newest_models_were_trained_on_both_campaigns(finished_run, refined_run):
    models = ns.load_cost_models(finished_run / "06_models")
    for kind in ("compute", "comm"):
        provenance = getattr(models, kind).provenance
        assert provenance["run_id"] == refined_run
        trained_on = provenance["data_versions"]
        assert trained_on[f"refine.{kind}_samples"] == trained_on[f"refine.{kind}_costs"] == refined_run
        assert f"augment.{kind}_samples" in trained_on
    run_pipeline(finished_run, "search")
    assert newest_lineage(finished_run)["inputs"]["train.compute_cost_model"] == refined_run
    assert refined_run in newest(finished_run, "08_reporting/report.html").read_text()


@pytest.mark.usefixtures("refined_run")
def test_samples_and_costs_are_complete_and_new(finished_run):
    frames = refined(finished_run)
    for kind, most in (("compute", 8), ("comm", 4)):
        samples, costs = frames[f"{kind}_samples"], frames[f"{kind}_costs"]
        assert set(samples["sample_id"]) == set(costs["sample_id"])
        assert costs[["forward_ms", "backward_ms"]].gt(0).all(axis=None)
        assert samples.groupby("round")["sample_id"].nunique().between(1, most).all()
        first = pd.read_parquet(newest(finished_run, f"03_primary/{kind}_samples.parquet"))
        assert not set(samples["sample_id"]) & set(first["sample_id"])
    assert set(frames["compute_sample_settings"]["sample_id"]) == set(frames["compute_samples"]["sample_id"])
    tasks = [
        pd.read_parquet(newest(finished_run, f"03_primary/{name}.parquet"))
        for name in ("refine_tasks", "sharding_tasks")
    ]
    tables = [set(frame.groupby("task_id")["table"].apply(frozenset)) for frame in tasks]
    assert not tables[0] & tables[1]


def test_train_alone_reads_the_refined_samples_and_names_their_version(finished_run, refined_run):
    run_pipeline(finished_run, "train")
    lineage = newest_lineage(finished_run)
    assert lineage["inputs"]["refine.newest_compute_samples"] == refined_run
    provenance = ns.load_cost_models(finished_run / "06_models").compute.provenance
    assert provenance["data_versions"]["refine.compute_samples"] == refined_run


@pytest.mark.usefixtures("refined_run")
def test_a_second_run_appends_a_round(finished_run):
    before = refined(finished_run)
    run_pipeline(finished_run, "refine")
    after = refined(finished_run)
    for name, frame in before.items():
        pd.testing.assert_frame_equal(after[name].head(len(frame)), frame)
        assert after[name]["round"].max() == frame["round"].max() + 1
        assert (after[name]["campaign"] == frame["campaign"].iloc[0]).all()


@pytest.mark.usefixtures("refined_run")
def test_samples_of_another_first_campaign_are_ignored(finished_run, tmp_path, caplog):
    """A new pool is measured in a folder with refined samples of another pool; training ignores these old samples."""
    data_root = tmp_path / "data"
    for name, layer in FRAMES.items():
        source = finished_run / layer / f"refine_{name}.parquet"
        (data_root / layer).mkdir(parents=True, exist_ok=True)
        (data_root / layer / source.name).symlink_to(source)
    run_pipeline(data_root, "pretrain", params={"augment": {"pool": {"seed": 9}}})
    assert "are ignored; the current campaign is" in caplog.text
    provenance = ns.load_cost_models(data_root / "06_models").compute.provenance
    assert "refine.compute_samples" not in provenance["data_versions"]
