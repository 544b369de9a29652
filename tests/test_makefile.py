"""What `make` would do, without doing it; `make clean` runs in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

from neuroshard_pipeline.run_lock import RunLock


def commands(*arguments):
    """The commands that make would run if nothing were installed yet."""
    make = ["make", "--dry-run", "--always-make", "--no-print-directory", *arguments]
    return subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("env", "folder", "extra"), [("base", ".venv", "cpu"), ("h100", ".venv", "cpu"), ("cuda", ".venv-cuda", "cuda")]
)
def test_the_installed_build_follows_the_environment(env, folder, extra):
    lines = [line for line in commands("run", f"ENV={env}").splitlines() if "/bin/" in line and "python" in line]
    installed = [line for line in lines if "--editable" in line]
    assert installed
    assert all(line.startswith(f"{folder}/bin/python -m pip install") for line in installed)
    assert all(f"'.[{extra},torchrec]'" in line for line in installed)
    assert f"{folder}/bin/kedro run --env {env}" in commands("run", f"ENV={env}").splitlines()
    tested = [line for line in commands("lint", f"ENV={env}").splitlines() if "--editable" in line]
    assert tested
    assert all(f"'.[{extra},torchrec" in line for line in tested)


def test_a_run_on_a_gpu_checks_the_machine_first():
    check = "PYTHONPATH=src .venv-cuda/bin/python benchmarks/gpu/gpu_check.py || test $? -eq 1"
    lines = commands("run", "ENV=cuda").splitlines()
    assert lines.index(check) < lines.index(".venv-cuda/bin/kedro run --env cuda")
    assert "gpu_check" not in commands("run")


def test_a_benchmark_runs_on_virtual_ranks_unless_an_environment_is_named(monkeypatch):
    for env, options in (("virtual", ()), ("base", ("ENV=base",))):
        lines = commands("bench", *options).splitlines()
        assert f".venv/bin/kedro run --env {env} --pipeline benchmark " in lines
        assert all(f"--env {env} " in line for line in lines if "kedro run" in line)
    monkeypatch.setenv("ENV", "h100")
    assert ".venv/bin/kedro run --env h100 --pipeline benchmark " in commands("bench").splitlines()


def test_the_check_and_the_campaign_of_a_gpu_use_the_python_that_is_named():
    for target in ("gpu-check", "gpu-campaign"):
        (line,) = commands(target, "PYTHON=mypython").splitlines()
        assert line == f"PYTHONPATH=src mypython benchmarks/gpu/{target.replace('-', '_')}.py "


def test_an_environment_without_a_folder_is_refused_before_anything_is_installed():
    make = ["make", "--no-print-directory", "run", "ENV=nonsense"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "ENV=nonsense: there is no folder conf/nonsense; use one of a100 base" in done.stderr


def test_a_comparison_with_no_commit_is_refused_before_anything_is_installed():
    make = ["make", "--dry-run", "--no-print-directory", "same-results", "BEFORE="]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "make same-results BEFORE=" in done.stderr
    assert "worktree add --detach .same-results HEAD" in commands("same-results", "BEFORE=HEAD")


def test_both_builds_of_fbgemm_are_pinned_to_one_version():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    assert pins["fbgemm-gpu"] == pins["fbgemm-gpu-cpu"]


def test_clean_empties_the_folders_that_runs_write_and_no_others(tmp_path):
    kept = ["data/01_raw/a.csv", "data/own/my_tables.csv", "data/mine.csv", "data/02_intermediate/.gitkeep"]
    written = ["data/04_feature/costs/x.parquet", "data/h100/06_models/m.pt", "data/08_reporting/report.html"]
    for name in (*kept, *written):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in ("conf/base", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/clean.py", tmp_path / "scripts")
    with contextlib.closing(RunLock(tmp_path / "data/h100")):
        refused = subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert f'a run uses data/h100: {{"pid": {os.getpid()}' in refused.stderr
    assert all((tmp_path / name).exists() for name in (*kept, *written))
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    assert not list(tmp_path.rglob(".run.lock"))
    assert all((tmp_path / name).exists() for name in kept)
    assert not any((tmp_path / name).exists() for name in written)


def test_every_folder_that_the_catalog_writes_is_cleaned():
    folders = re.findall(r"data_root}}/(\w+)", "".join(path.read_text() for path in (ROOT / "conf").rglob("*.yml")))
    layers = re.search(r"^LAYERS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert set(layers) == set(folders)
