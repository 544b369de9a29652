"""The whole path in the `test` environment: contracts of the catalog, versions, lineage, resumption."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, bootstrap, run_pipeline
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.io import MemoryDataset

import neuroshard_pipeline as ns
from neuroshard_pipeline.cost_models.reductions import ReductionCosts
from neuroshard_pipeline.evaluation.totals import MEASURED_COLUMNS, PREDICTED_COLUMNS, STEP_COLUMNS, plan_totals
from neuroshard_pipeline.tables.samples import REDUCTIONS
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_from_json

REUSE = [f"reuse_{number:02d}" for number in range(17)]
COLUMNS = {
    "02_intermediate/table_pool": ["table", "num_embeddings", "pooling_factor", "unique_rows", *REUSE],
    "03_primary/compute_samples": ["sample_id", "batch_size", "table", "embedding_dim"],
    "03_primary/compute_sample_settings": ["sample_id", "optimizer", "purpose", "sharding_type", "world_size"],
    "03_primary/reduction_samples": ["sample_id", "collective", "size_bytes", "world_size", "hosts"],
    "03_primary/comm_samples": ["sample_id", "world_size", "batch_size", "rank", "dim_sum", "start_skew_ms"],
    "03_primary/sharding_tasks": [
        *["task_id", "world_size", "batch_size", "memory_bytes", "table", "num_embeddings", "embedding_dim"],
        *["pooling_factor", "unique_rows", *REUSE],
    ],
    "04_feature/compute_costs": ["sample_id", "forward_ms", "backward_ms", "spread_ms", "repeats", "error"],
    "04_feature/reduction_costs": ["sample_id", "cost_ms", "spread_ms", "error"],
    "04_feature/comm_costs": ["sample_id", "rank", "forward_ms", "backward_ms", "spread_ms", "error"],
    "04_feature/step_costs": [
        *["task_id", "sharder", "rank", "step_ms", "input_dist_ms", "lookup_forward_ms", "output_dist_ms"],
        *["backward_ms", "lookup_backward_ms", "dense_optimizer_ms"],
        *["computed_ms", "input_dist_computed_ms", "input_dist_waiting_ms"],
    ],
    "07_model_output/plans": [
        *["task_id", "sharder", "table", "column_offset", "embedding_dim", "rank"],
        *["sharding_type", "row_offset", "num_rows"],
    ],
    "07_model_output/plan_costs": [
        *["task_id", "sharder", "rank", "memory_bytes"],
        *["predicted_compute_ms", "predicted_forward_comm_ms", "predicted_backward_comm_ms"],
        *["measured_compute_ms", "measured_forward_comm_ms", "measured_backward_comm_ms"],
        *["predicted_input_dist_ms", "predicted_reduction_ms", "predicted_module_ms"],
        *["measured_input_dist_ms", "measured_reduction_ms", "measured_module_ms"],
        *["predicted_step_ms", "measured_step_ms"],
    ],
}


#: Datasets of several pipelines that exist only in memory.
SHARED_IN_MEMORY = ("models", "sharder_settings", "measured_costs", "noise", "solved_plans")


def newest(data_root: Path, name: str, suffix: str = ".parquet") -> Path:
    """The newest version of a versioned file."""
    return sorted((data_root / f"{name}{suffix}").iterdir())[-1] / f"{Path(name).name}{suffix}"


def frame(data_root: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(newest(data_root, name))


def document(data_root: Path, name: str) -> dict:
    return json.loads(newest(data_root, name, ".json").read_text())


@pytest.mark.parametrize("name", COLUMNS)
def test_a_dataset_has_the_columns_of_its_contract(finished_run, name):
    columns = list(frame(finished_run, name).columns)
    if name.endswith("table_pool"):  # these columns are followed by those for derived tables
        assert columns[len(COLUMNS[name]) :] == ["origin", "batch_size", "data_type", "held_out", "default_profile"]
    assert columns[: len(COLUMNS[name])] == COLUMNS[name]
    assert len(columns) == len(COLUMNS[name]) or name.endswith("table_pool")


def test_every_sample_is_measured_or_says_why_not(finished_run):
    for kind in ("compute", "comm"):
        samples = frame(finished_run, f"03_primary/{kind}_samples")
        costs = frame(finished_run, f"04_feature/{kind}_costs")
        assert set(samples["sample_id"]) == set(costs["sample_id"])
        measured = costs["forward_ms"].gt(0) & costs["backward_ms"].gt(0)
        assert (measured ^ costs["error"].notna()).all()


def test_the_step_cost_model_is_measured_on_this_machine(finished_run):
    models = ns.load_cost_models(finished_run / "06_models")
    assert models.step is not None
    assert models.step.provenance["costs_are"] == {"prices": "measured", "reductions": "measured"}
    assert models.step.provenance["hardware"] == models.compute.provenance["hardware"]
    assert sorted(models.step.prices) == [2]
    steps = frame(finished_run, "04_feature/step_costs")
    assert steps["step_ms"].gt(0).all()
    assert steps["computed_ms"].isna().all()  # only virtual ranks have it
    assert document(finished_run, "08_reporting/step_metrics")["2"]["step"]["n_plans"] == 4


def test_widths_of_shards_add_up_to_those_of_tables_and_plans_respect_memory(finished_run):
    tasks = frame(finished_run, "03_primary/sharding_tasks").set_index(["task_id", "table"])
    plans = frame(finished_run, "07_model_output/plans")
    # Row shards of a table have the same columns, and so do its replicas.
    plans = plans.drop_duplicates(["task_id", "sharder", "table", "column_offset"])
    width = plans.groupby(["task_id", "sharder", "table"])["embedding_dim"].sum().reset_index()
    asked = tasks["embedding_dim"].reindex(pd.MultiIndex.from_frame(width[["task_id", "table"]]))
    assert (width["embedding_dim"].to_numpy() == asked.to_numpy()).all()
    costs = frame(finished_run, "07_model_output/plan_costs")
    limit = costs["task_id"].map(tasks["memory_bytes"].groupby("task_id").first())
    assert (costs["memory_bytes"] <= limit).all()


def test_every_plan_is_predicted_and_measured(finished_run):
    """Every part of the measured step stands beside its prediction; reductions are measured within the output dist."""
    costs = frame(finished_run, "07_model_output/plan_costs")
    assert costs[[*PREDICTED_COLUMNS[:3], *MEASURED_COLUMNS[:3]]].notna().all(axis=None)
    assert not costs.filter(like="_ms").lt(0).any(axis=None)
    assert costs["predicted_input_dist_ms"].isna().equals(costs["predicted_module_ms"].isna())
    assert costs[["measured_input_dist_ms", "measured_module_ms", *STEP_COLUMNS]].notna().all(axis=None)
    parts = costs[["measured_compute_ms", "measured_forward_comm_ms", "measured_backward_comm_ms"]].sum(axis=1)
    parts = parts + costs["measured_input_dist_ms"] + costs["measured_module_ms"]
    assert (parts <= 1.5 * costs["measured_step_ms"]).all(), "the parts of a rank add up to about the step"
    assert plan_totals(costs)["measured_step_ms"].notna().all()


def test_metrics_name_every_model_beside_its_noise_floor(finished_run):
    metrics = document(finished_run, "08_reporting/metrics")
    assert {"compute", "comm_forward", "comm_backward"} <= set(metrics)
    for model in metrics.values():
        assert {"mape", "median_ape", "r2", "kendall_tau", "noise_floor"} <= set(model)


def test_reductions_have_a_model_and_an_accuracy(finished_run):
    model = ReductionCosts.from_json(document(finished_run, "06_models/reduction_model"))
    measured = frame(finished_run, "03_primary/reduction_samples").merge(
        frame(finished_run, "04_feature/reduction_costs"), on="sample_id"
    )
    for collective, rows in measured.groupby("collective"):
        predicted = model.predict_ms(collective, rows["size_bytes"], 2)
        # If costs fall with the size, the fit gives adjacent sizes their geometric mean, which keeps their product.
        assert np.log(predicted).sum() == pytest.approx(np.log(rows["cost_ms"]).sum())
    assert set(document(finished_run, "08_reporting/reduction_metrics")) == set(REDUCTIONS)


def test_summary_counts_tasks_and_solved_tasks(finished_run):
    summary = document(finished_run, "08_reporting/summary")
    assert summary["num_tasks"] == 2
    assert summary["sharders"]["neuroshard"]["tasks_solved"] == 2


def test_torchrec_plans_are_the_plans(finished_run):
    plans = frame(finished_run, "07_model_output/plans")
    exported = sorted(newest(finished_run, "07_model_output/torchrec_plans", "").glob("*.json"))
    assert [path.stem for path in exported] == sorted(plans["task_id"].unique())
    for path in exported:
        plan = plan_from_json(json.loads(path.read_text()))
        ours = plans[(plans["task_id"] == path.stem) & (plans["sharder"] == plan.sharder)]
        columns = ["table", "column_offset", "embedding_dim", "rank"]
        assert sorted(plan.to_frame()[columns].itertuples(index=False)) == sorted(ours[columns].itertuples(index=False))


def test_the_report_needs_no_network(finished_run):
    page = newest(finished_run, "08_reporting/report", ".html").read_text()
    assert "neuroshard_plus" in page
    assert '<script src="http' not in page
    assert '<link rel="stylesheet" href="http' not in page


def test_the_public_api_plans_with_the_saved_models(finished_run):
    models = ns.load_cost_models(finished_run / "06_models")
    every = ns.read_tables(ROOT / "data/01_raw/criteo_kaggle.csv")
    tables = [table for table in every if 20 <= table.num_embeddings < 10_000]  # numbers of rows as in the pool
    task = ns.ShardingTask(tables, world_size=2, batch_size=64, memory_bytes=2**31)
    plan = ns.shard(task, models)
    assert plan.predicted_cost_ms > 0
    assert set(plan.to_frame()["table"]) == {table.name for table in tables}
    assert f"reuse profiles: assumed for {len(tables)} of {len(tables)} tables" in plan.explain()
    assert "extrapolated" not in plan.explain()
    larger = ns.ShardingTask(every, world_size=16, batch_size=4096, memory_bytes=2**31, optimizer="adam")
    told = ns.shard(larger, models, "size_lookup_greedy").explain()
    for caveat in ("num_embeddings", "batch_size 4096", "world_size 16", "optimizer adam"):
        assert f"extrapolated: {caveat}" in told
    forward_ms, backward_ms = models.compute_ms(plan.shards_of(0))
    assert forward_ms > 0
    assert backward_ms > 0
    forward, backward = models.comm_ms([64, 32, 96], [0.0, 1.0, 0.5], 64)
    assert len(forward) == len(backward) == 3


def test_a_search_uses_the_newest_models_and_a_pin_the_older_ones(finished_run):
    model = "train.compute_cost_model"
    first = sorted((finished_run / "06_models/compute_cost_model").iterdir())[-1].name
    run_pipeline(finished_run, "train")
    second = document_of_newest_lineage(finished_run)["outputs"][model]
    assert second > first
    name = "lookup_greedy"
    quick = {"search": {"contest": {"sharders": [name]}, "torchrec": {"sharder": name}, "steps": {"judge": "none"}}}
    run_pipeline(finished_run, "search", params=quick)
    assert document_of_newest_lineage(finished_run)["inputs"][model] == second
    run_pipeline(finished_run, "search", params=quick, load_versions={model: first})
    assert document_of_newest_lineage(finished_run)["inputs"][model] == first


def document_of_newest_lineage(data_root: Path) -> dict:
    return json.loads(sorted((data_root / "08_reporting/lineage").glob("*.json"))[-1].read_text())


def test_a_second_measurement_measures_no_lookups_again(finished_run):
    shards = sorted((finished_run / "04_feature/compute_shards").rglob("*.parquet"))
    before = {path: path.stat().st_mtime_ns for path in shards}
    run_pipeline(finished_run, "measure")
    after = {path: path.stat().st_mtime_ns for path in (finished_run / "04_feature/compute_shards").rglob("*.parquet")}
    assert after == before


def test_a_plan_for_a_users_tables(finished_run):
    tables = str(ROOT / "data/01_raw/criteo_kaggle.csv")
    run_pipeline(finished_run, "plan", params={"plan": {"task": {"tables": tables}}})
    assert "rank 0" in newest(finished_run, "08_reporting/plan_explanation", ".txt").read_text()
    assert len(frame(finished_run, "07_model_output/plan")) >= 26
    plan_from_json(document(finished_run, "07_model_output/torchrec_plan"))


def test_every_dataset_of_every_pipeline_is_in_the_catalog():
    bootstrap()
    in_memory = {"report.inputs", "plan.sharding_task", "plan.found", "plan.order_in_words", "augment.public_tables"}
    in_memory |= {f"{stage}.{name}" for stage in ("search", "truth", "benchmark") for name in SHARED_IN_MEMORY}
    in_memory |= {f"{stage}.{name}" for stage in ("plan", "advise", "train_check") for name in SHARED_IN_MEMORY[:2]}
    in_memory |= {f"truth.{name}" for name in ("attempts", "all_plans", "all_attempts", "plan_intervals")}
    in_memory |= {
        "train.compute_origin",
        "train.comm_origin",
        "measure.compute_summary",
        "measure.comm_summary",
        "benchmark.judge",
    }
    in_memory |= {f"benchmark.{name}" for name in ("suite_settings", "trained_policies", "jobs")}
    in_memory |= {"benchmark.chosen_plans"}
    in_memory |= {"train.group_metrics"}
    in_memory |= {"train.measured_steps", "train.found_step_model"}
    in_memory |= {f"train.{kind}_{what}" for kind in ("compute", "comm") for what in ("metrics", "held_out")}
    in_memory |= {f"train_check.{name}" for name in ("sharding_task", "batches", "solutions")}
    in_memory |= {"plan.rivals", "plan.rivals_without_plan", "advise.advice", "advise.sharding_task"}
    in_memory |= {f"replan.{name}" for name in ("sharding_task", "choices", *SHARED_IN_MEMORY[:2])}
    in_memory |= {f"policies.{name}" for name in ("drawn", "models", "autoshard_progress", "dreamshard_progress")}
    with KedroSession.create(project_path=ROOT, env="base") as session:
        catalog = session.load_context().catalog
        for name in pipelines:
            names = {dataset for dataset in pipelines[name].datasets() if not dataset.startswith("params:")}
            assert {dataset for dataset in names if dataset not in catalog} <= in_memory, name
            for dataset in names - in_memory - {"lineage"}:
                assert not isinstance(catalog.get(dataset), MemoryDataset), dataset


def test_the_package_imports_no_framework_and_a_plan_needs_neither_torch_nor_optimizers(tmp_path):
    """Without a plan by TorchRec's planner beside it."""
    script = (
        "import sys, atexit, neuroshard_pipeline\n"
        "frameworks = ('kedro', 'torchrec', 'fbgemm_gpu', 'torch', 'numba')\n"
        "print('package:', [name for name in frameworks if name in sys.modules])\n"
        "heavy = ('torch', 'torchrec', 'fbgemm_gpu', 'scipy.optimize', 'kedro_datasets.plotly')\n"
        "atexit.register(lambda: print('imported:', [name for name in heavy if name in sys.modules]))\n"
        "from kedro.framework.cli import main; main()"
    )
    command = [sys.executable, "-c", script, "run", "--env", "h100", "--pipeline", "plan"]
    (tmp_path / "two.csv").write_text("table,num_embeddings,embedding_dim,pooling_factor\nC1,10,8,1\nC2,20,8,1\n")
    task = f"plan.task.tables={tmp_path / 'two.csv'},plan.task.world_size=2,plan.task.rivals=[]"
    command += ["--params", f"data_root={tmp_path},{task}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ, cwd=ROOT)
    assert done.stdout.startswith("package: []\n")
    assert done.stdout.strip().endswith("imported: []")
