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

SHARDERS = ["random", "lookup_greedy", "embark", "milp", "dreamshard", "neuroshard", "neuroshard_plus"]
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
        assert len(verdict["pairs"]) == 2 * (len(SHARDERS) - 1)
    assert verdicts["suites"]["scale"]["basis"] == "predicted"
    tight = verdicts["suites"]["tight"]["sharders"]
    assert [tight[name]["solved"] for name in ("random", "lookup_greedy", "milp")] == [0, 0, 0]


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
    run_pipeline(benchmark_run, "benchmark")
    assert record_times(benchmark_run) == before
    assert "== paper_4" in capfd.readouterr().out


def test_a_users_suite_joins_and_only_it_is_solved(benchmark_run, tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"one,2,64,{2**24},t{index},{500 * (index + 1)},16,{index + 1}" for index in range(6)]
    header = "task_id,world_size,batch_size,memory_bytes,table,num_embeddings,embedding_dim,pooling_factor"
    path.write_text("\n".join([header, *rows]) + "\n")
    before = set(record_times(benchmark_run))
    contest = {"sharders": ["lookup_greedy", "neuroshard"]}
    settings = {"suites": {"user": {"mine": str(path)}}, "contest": contest}
    run_pipeline(benchmark_run, "benchmark", params={"benchmark": settings})
    solved = {path for path in set(record_times(benchmark_run)) - before if "solve_records" in str(path)}
    assert {path.parent.name for path in solved} == {"mine-one"}
    verdicts = json.loads(newest(benchmark_run, "08_reporting/benchmark_verdicts.json").read_text())
    assert verdicts["suites"]["mine"]["tasks"] == 1


def test_a_suite_whose_plans_cannot_be_measured_is_compared_by_predicted_costs(benchmark_run, tmp_path):
    """The tables exceed the memory of both ranks, so that only plans with tables in host memory exist."""
    path = tmp_path / "large.csv"
    columns = "task_id,world_size,batch_size,memory_bytes,host_memory_bytes,table,num_embeddings,embedding_dim"
    rows = [f"one,2,64,{2**20},{2**26},t{index},{5000 * (index + 1)},16,{index + 1}" for index in range(6)]
    path.write_text("\n".join([f"{columns},pooling_factor", *rows]) + "\n")
    suites = {"names": [], "user": {"large": str(path)}}
    run_pipeline(benchmark_run, "benchmark", params={"benchmark": {"suites": suites}})
    verdict = json.loads(newest(benchmark_run, "08_reporting/benchmark_verdicts.json").read_text())["suites"]["large"]
    assert (verdict["basis"], verdict["unmeasured_tasks"]) == ("predicted", 1)
    assert verdict["sharders"]["neuroshard_plus"]["solved"] == 1
    plans = frame(benchmark_run, "07_model_output/benchmark_plans")
    assert plans["compute_kernel"].str.startswith("fused_uvm").any()
    text = newest(benchmark_run, "08_reporting/benchmark_table.txt").read_text()
    assert "No plan of this suite was measured." in text


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
    command += ["--params", f"data_root={data_root},benchmark.suites.names=[paper_4],benchmark.suites.tasks=1"]
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
    run_pipeline(data_root, "benchmark", params={"benchmark": {"suites": {"names": ["paper_4"], "tasks": 1}}})
    assert kept.items() <= record_times(data_root).items()
    assert newest(data_root, "08_reporting/benchmark_table.txt").exists()
