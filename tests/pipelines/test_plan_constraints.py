"""A user's file of constraints and the plan that respects it."""

import pandas as pd
from conftest import ROOT, run_pipeline


def test_a_plan_respects_a_users_constraints(finished_run, tmp_path):
    path = tmp_path / "constraints.yml"
    path.write_text("together: [[C1, C2, C3]]\ntables: {C3: {ranks: [2]}, C4: {forbidden_ranks: [0, 1, 2]}}\n")
    task = {"tables": str(ROOT / "data/01_raw/criteo_kaggle.csv"), "constraints": str(path)}
    run_pipeline(finished_run, "plan", params={"plan": {"task": task}})
    plan = pd.read_parquet(sorted((finished_run / "07_model_output/plan.parquet").rglob("plan.parquet"))[-1])
    ranks = plan.groupby("table")["rank"].agg(set)
    assert ranks["C1"] == ranks["C2"] == ranks["C3"] == {2}
    assert ranks["C4"] == {3}
