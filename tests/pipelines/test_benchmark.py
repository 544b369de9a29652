"""`kedro run --pipeline benchmark` with tiny tasks: plans, measurements, verdicts, resumption, a user's suite."""

import json
import os
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
import warm
from conftest import run_pipeline

pytestmark = pytest.mark.slow

SHARDERS = ["random", "milp", "dreamshard", "neuroshard_plus"]
RECORD_FOLDERS = ["solve", "step"]


def newest(data_root: Path, name: str) -> Path:
    return sorted((data_root / name).iterdir())[-1] / Path(name).name


def frame(data_root: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(newest(data_root, f"{name}.parquet"))


def record_times(data_root: Path) -> dict[Path, int]:
    folders = [data_root / f"07_model_output/benchmark_{name}_records" for name in RECORD_FOLDERS]
    return {path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*.parquet")}


@pytest.fixture(scope="module")
def benchmark_run(finished_run):
    run_pipeline(finished_run, "train_policies")
    run_pipeline(finished_run, "benchmark")
    return finished_run


def test_every_sharder_is_compared_on_every_suite(benchmark_run):
    verdicts = json.loads(newest(benchmark_run, "08_reporting/benchmark_verdicts.json").read_text())
    assert list(verdicts["suites"]) == ["paper_4", "criteo", "scale", "tight"]
    for verdict in verdicts["suites"].values():
        assert list(verdict["sharders"]) == SHARDERS
        assert verdict["feasible_tasks"] == verdict["sharders"]["neuroshard_plus"]["solved"] == verdict["tasks"]
        assert len(verdict["pairs"]) == len(SHARDERS) - 1
    assert verdicts["suites"]["scale"]["basis"] == "predicted"
    tight = verdicts["suites"]["tight"]["sharders"]
    assert [tight[name]["solved"] for name in ("random", "milp")] == [0, 0]


def test_the_plans_that_should_be_measured_are_measured(benchmark_run):
    costs = frame(benchmark_run, "07_model_output/benchmark_plan_costs")
    tasks = frame(benchmark_run, "03_primary/benchmark_tasks").drop_duplicates("task_id").set_index("task_id")
    wanted = costs["task_id"].map(tasks["is_measured"])
    assert (costs["measured_step_ms"].notna() == wanted).all()
    assert (costs["measured_compute_ms"].notna() == wanted).all()
    verdicts = json.loads(newest(benchmark_run, "08_reporting/benchmark_verdicts.json").read_text())
    assert verdicts["noise"]["difference"] >= 0
    assert "virtual ranks" in verdicts["judge"]


def test_the_table_names_every_sharder(benchmark_run):
    table = newest(benchmark_run, "08_reporting/benchmark_table.txt").read_text()
    assert all(name in table for name in SHARDERS)
    assert "Noise of this run" in table


def test_a_second_run_solves_and_measures_nothing_again(benchmark_run, capfd):
    before = record_times(benchmark_run)
    run_pipeline(benchmark_run, "benchmark", params={"benchmark": {"suites": {"names": ["tight"]}}})
    assert record_times(benchmark_run) == before
    assert "== tight" in capfd.readouterr().out


def test_only_suites_of_a_user_are_solved_and_those_that_cannot_be_measured_are_predicted(benchmark_run, tmp_path):
    """The tables of the second suite exceed the memory of both ranks; only plans with tables in host memory exist."""
    columns = "task_id,world_size,batch_size,memory_bytes,host_memory_bytes,table,num_embeddings,embedding_dim"
    user, before = {}, set(record_times(benchmark_run))
    for name, memory, rows in (("mine", f"{2**24},", 500), ("large", f"{2**20},{2**26}", 15_000)):
        lines = [f"one,2,64,{memory},t{index},{rows * (index + 1)},16,{index + 1}" for index in range(3)]
        (tmp_path / name).with_suffix(".csv").write_text("\n".join([f"{columns},pooling_factor", *lines]) + "\n")
        user[name] = str((tmp_path / name).with_suffix(".csv"))
    settings = {"suites": {"names": ["scale"], "user": user}, "contest": {"sharders": ["random", "neuroshard_plus"]}}
    run_pipeline(benchmark_run, "benchmark", params={"benchmark": settings})
    solved = {path for path in set(record_times(benchmark_run)) - before if "solve_records" in str(path)}
    assert {path.parent.name for path in solved} == {"mine-one", "large-one"}
    suites = json.loads(newest(benchmark_run, "08_reporting/benchmark_verdicts.json").read_text())["suites"]
    assert (suites["mine"]["tasks"], suites["mine"]["basis"]) == (1, "measured")
    assert (suites["large"]["basis"], suites["large"]["unmeasured_tasks"]) == ("predicted", 1)
    assert suites["large"]["sharders"]["neuroshard_plus"]["solved"] == 1
    plans = frame(benchmark_run, "07_model_output/benchmark_plans")
    assert plans["compute_kernel"].str.startswith("fused_uvm").any()
    text = newest(benchmark_run, "08_reporting/benchmark_table.txt").read_text()
    assert text.count("No plan of this suite was measured.") == 2  # also of the suite `scale`


def test_a_benchmark_without_learned_sharders_needs_no_policies(finished_run, tmp_path):
    (tmp_path / "06_models").mkdir()
    for model in ("compute_cost_model", "comm_cost_model"):
        (tmp_path / "06_models" / model).symlink_to(finished_run / "06_models" / model)
    settings = {"suites": {"names": ["scale"]}, "contest": {"sharders": ["embark", "neuroshard"]}}
    run_pipeline(tmp_path, "benchmark", params={"benchmark": settings})
    verdicts = json.loads(newest(tmp_path, "08_reporting/benchmark_verdicts.json").read_text())
    assert list(verdicts["suites"]["scale"]["sharders"]) == ["embark", "neuroshard"]


def test_a_killed_run_loses_no_stored_record(benchmark_run, tmp_path):
    """The run is killed while it solves, then while it measures; stored records are neither lost nor made again."""
    data_root = tmp_path / "data"
    (data_root / "06_models").parent.mkdir()
    (data_root / "06_models").symlink_to(benchmark_run / "06_models")
    command = ["-m", "kedro", "run", "--env", "test", "--pipeline", "benchmark"]
    command += ["--params", f"data_root={data_root},benchmark.suites.names=[tight],benchmark.suites.tasks=1"]
    kept: dict[Path, int] = {}
    for folder, at_least in (("solve", 3), ("step", 1)):
        process = warm.start(command, tmp_path)
        pattern = f"07_model_output/benchmark_{folder}_records"
        while process.is_alive() and len(list((data_root / pattern).rglob("*.parquet"))) < at_least:
            time.sleep(0.03)
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        now = record_times(data_root)
        assert kept.items() <= now.items()
        kept = now
    run_pipeline(data_root, "benchmark", params={"benchmark": {"suites": {"names": ["tight"], "tasks": 1}}})
    assert kept.items() <= record_times(data_root).items()
    assert newest(data_root, "08_reporting/benchmark_table.txt").exists()
