"""Plans with tiers, and plans that respect a user's file of constraints."""

import json

import pandas as pd
from conftest import ROOT, bootstrap, run_pipeline
from kedro.framework.session import KedroSession

from neuroshard_pipeline.torchrec_bridge.plan_json import plan_from_json


def test_a_plan_may_have_tiers(tmp_path):
    path = tmp_path / "sequences.csv"
    path.write_text("table,num_embeddings,embedding_dim,pooling_factor,pooling\nclicks,200000,128,100,none\n")
    task = {"tables": str(path), "tiers": True, "batch_size": 16_384, "world_size": 16, "local_world_size": 8}
    # The shipped cost models of the H100, because those of a test run depend on this machine.
    params = {"data_root": str(tmp_path / "data"), "plan": {"task": task}}
    bootstrap()
    with KedroSession.create(project_path=ROOT, env="h100", runtime_params=params) as session:
        session.run(pipeline_names=["plan"])
    (plan,) = map(pd.read_parquet, (tmp_path / "data").rglob("plan.parquet/*/plan.parquet"))
    (document,) = (tmp_path / "data").rglob("torchrec_plan.json/*/torchrec_plan.json")
    found = plan_from_json(json.loads(document.read_text()))
    assert set(plan["table"]) == {"clicks"}
    assert found.tiers["clicks"].hot_rows == plan[plan["tier"] == "hot"]["num_rows"].iloc[0] > 0


def test_a_plan_respects_a_users_constraints(finished_run, tmp_path):
    path = tmp_path / "constraints.yml"
    path.write_text("together: [[C1, C2, C3]]\ntables: {C3: {ranks: [2]}, C4: {forbidden_ranks: [0, 1, 2]}}\n")
    task = {"tables": str(ROOT / "data/01_raw/criteo_kaggle.csv"), "constraints": str(path)}
    run_pipeline(finished_run, "plan", params={"plan": {"task": task}})
    plan = pd.read_parquet(sorted((finished_run / "07_model_output/plan.parquet").rglob("plan.parquet"))[-1])
    ranks = plan.groupby("table")["rank"].agg(set)
    assert ranks["C1"] == ranks["C2"] == ranks["C3"] == {2}
    assert ranks["C4"] == {3}
