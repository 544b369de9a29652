"""The recording script from end to end, with CPU kernels; the first run is in a process without Kedro."""

from __future__ import annotations

import subprocess
import sys

import gpu_campaign
import pytest
import torch
import warm
from conftest import ROOT

from neuroshard_pipeline.measurement import ComputeCampaign, RecordingParams, open_recording
from neuroshard_pipeline.tables.frames import compute_samples_from_frame

SIZE = ["--backend", "fbgemm_cpu", "--tables", "12", "--batch-size", "16", "--row-scale", "4096", "--max-tables", "4"]
PROTOCOL = ["--visits", "2", "--iterations", "1", "--warmup-iterations", "0", "--memory-gib", "0.004"]
RUN = [
    *SIZE,
    *PROTOCOL,
    "--arena-gib",
    "0.0079",
    "--copy-mib",
    "1",
    "--chunk-samples",
    "4",
]
SCRIPT = ROOT / "benchmarks/gpu/gpu_campaign.py"
# Runs a script in a process in which importing Kedro or TorchRec fails, as on a machine without them.
WITHOUT_KEDRO = """
import os, runpy, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))  # as Python itself does for a script
absent = ["kedro", "kedro_datasets", "torchrec"]
for name in list(sys.modules):
    if name.partition(".")[0] in [*absent, "neuroshard_pipeline"]:
        del sys.modules[name]
sys.modules.update(dict.fromkeys(absent))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def campaign(folder, monkeypatch, *arguments):
    """Run the script in this process, which has already imported its modules."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(folder), *RUN, *arguments])
    gpu_campaign.main()


def recording_in(folder):
    return RecordingParams(folder=str(folder / "recording"), modelled_device=None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "without_kedro.py").write_text(WITHOUT_KEDRO)
    known = ["--samples", "6", "--known-gap", "a test"]
    done = warm.run(folder / "without_kedro.py", SCRIPT, "--out", folder, *RUN, *known)
    assert done.returncode == 0, done.stderr
    return folder


def test_it_writes_a_recording_that_the_recorded_backend_reads(recorded, compute_params):
    params = recording_in(recorded)
    recording = open_recording(params)
    assert recording.card["backend"] == "fbgemm_cpu"
    assert recording.card["stand_in"] is False
    assert recording.card["samples"] == 6
    assert recording.card["failures"] == 0
    assert recording.card["copy_gb_per_s"] > 0
    assert recording.card["known_gaps"] == ["a test"]
    assert recording.card["noise_floor"]["samples"] == 1
    samples = compute_samples_from_frame(recording.samples, recording.pool, recording.settings)
    costs = ComputeCampaign(compute_params(backend="recorded"), 0, params).measure(samples)
    assert costs["forward_ms"].gt(0).all()
    assert costs["repeats"].eq(2).all()


def test_a_second_run_resumes_and_more_samples_extend_it(recorded, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in (recorded / "records").rglob("*.parquet")}
    campaign(recorded, monkeypatch, "--samples", "8")
    after = {path: path.stat().st_mtime_ns for path in (recorded / "records").rglob("*.parquet")}
    assert {path: after[path] for path in before} == before
    assert len(after) > len(before)
    assert open_recording(recording_in(recorded)).card["samples"] == 8


def test_with_little_time_it_records_what_was_measured(tmp_path, monkeypatch):
    campaign(tmp_path, monkeypatch, "--samples", "12", "--max-seconds", "0.000001")
    assert 0 < open_recording(recording_in(tmp_path)).card["samples"] < 12


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"^Error: .*no CUDA device; use fbgemm_cpu, recorded or modelled$"):
        campaign(tmp_path, monkeypatch, "--samples", "4", "--backend", "fbgemm_cuda")
    assert not list(tmp_path.iterdir())


def test_a_python_without_torch_ends_with_one_line(tmp_path):
    program = WITHOUT_KEDRO.replace('["kedro"', '["torch", "kedro"')
    command = [sys.executable, "-c", program, SCRIPT, "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"Error: {sys.executable} has no module torch; name a Python that has it with PYTHON=" in done.stderr
