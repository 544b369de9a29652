"""`kedro run --pipeline train_policies` in the `test` environment: policies plan tables that are new to them."""

import numpy as np
import pandas as pd
from conftest import ROOT, run_pipeline

import neuroshard_pipeline as ns
from neuroshard_pipeline.sharders.registry import LEARNED


def test_trained_policies_are_saved_with_their_origin_and_plan_a_users_tables(finished_run):
    run_pipeline(finished_run, "train_policies")
    policies, models = ns.load_policies(finished_run / "06_models"), ns.load_cost_models(finished_run / "06_models")
    newest = sorted((finished_run / "06_models/compute_cost_model").iterdir())[-1].name
    tables = ns.read_tables(ROOT / "data/01_raw/criteo_kaggle.csv")
    task = ns.ShardingTask(tables, world_size=3, batch_size=64, memory_bytes=2**31)
    for kind in LEARNED:
        origin = policies.of(kind).provenance
        assert origin["cost_model_versions"]["train.compute_cost_model"] == newest
        assert origin["hardware"] == models.compute.provenance["hardware"]
        plan = ns.shard(task, models, kind, policies=policies)
        assert sorted(shard.table.name for shard in plan.shards) == sorted(table.name for table in tables)

    progress = pd.read_parquet(sorted((finished_run / "08_reporting/policy_training.parquet").glob("*/*.parquet"))[-1])
    assert list(progress.groupby("policy")["step"].count()) == [2, 2]
    assert np.isfinite(progress[["reward", "entropy", "cost_ratio"]]).all(axis=None)
