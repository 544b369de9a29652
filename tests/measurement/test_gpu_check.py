"""The checks of a machine with a GPU, run here with CPU kernels, and their answer on a machine without a GPU."""

from __future__ import annotations

import gc
import subprocess
import sys

import gpu_check
import gpu_check_vital
import pytest
import torch
from conftest import ROOT
from gpu_check_setup import Setup, campaign_params, lab_device
from gpu_check_timings import lab_samples

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.device import device_names
from neuroshard_pipeline.measurement import lookup_bench

SCRIPT = ROOT / "benchmarks/gpu/gpu_check.py"
SMALL = ["--arena-gib", "0.02", "--batch-size", "64", "--row-scale", "4096", "--copy-mib", "1"]


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Exempt what exists from the searches for garbage, which follow every check and would take longer than checks."""
    gc.collect()
    gc.freeze()


def checked(monkeypatch, *arguments):
    """Exit code of the script, run in this process."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    return gpu_check.main()


def small_setup():
    return Setup(campaign_params("fbgemm_cpu", 2**24), 64, 4096.0, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_ends_with_one_line(monkeypatch, capsys):
    assert checked(monkeypatch) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "no CUDA device" in shown.err
    assert shown.err.startswith("gpu-check: ")


def test_with_cpu_kernels_lookups_pass_and_checks_that_need_a_gpu_do_not_run(monkeypatch, capsys):
    code = checked(monkeypatch, "--backend", "fbgemm_cpu", *SMALL)
    lines = capsys.readouterr().out.splitlines()
    verdicts = {line[5:21].strip(): line[:5].strip() for line in lines[:-1] if line[:1] != " "}
    vital = {name: verdicts.pop(name) for name in ("kernels", "largest sample")}
    assert vital == dict.fromkeys(vital, "pass")
    assert verdicts.pop("launch floor") in ("pass", "FAIL")  # a timing, which a busy host may fail
    assert verdicts == dict.fromkeys(["copy bandwidth", "L2 flush", "collective", "lab"], "-")
    assert code == int("checks failed" in lines[-1])


def test_wrong_kernels_are_found_by_a_vital_check(monkeypatch):
    setup = small_setup()
    assert gpu_check_vital.check_kernels(setup).passed
    right = gpu_check_vital.draw_ids
    monkeypatch.setattr(gpu_check_vital, "draw_ids", lambda table, size, seed: right(table, size, seed + 1))
    check = gpu_check_vital.check_kernels(setup)
    assert (check.passed, check.vital) == (False, True)
    assert "torch" in check.remedy


def test_weights_that_are_not_updated_are_found(monkeypatch):
    monkeypatch.setattr(gpu_check_vital, "_LEARNING_RATE", 0.0)
    assert gpu_check_vital.check_kernels(small_setup()).passed is False


def test_a_check_that_raises_has_failed_and_the_others_still_run(monkeypatch):
    def raise_cuda_error(_):
        raise RuntimeError("CUDA error: an illegal memory access\nwas encountered")

    monkeypatch.setattr(gpu_check, "check_largest_sample", raise_cuda_error)
    checks = {check.name: check for check in gpu_check.run_checks(small_setup(), show=False)}
    failed = checks["largest sample"]
    assert (failed.passed, failed.vital) == (False, True)
    assert failed.found == "RuntimeError: CUDA error: an illegal memory access"
    assert checks["kernels"].passed
    assert list(checks)[-1] == "lab"


def test_without_fbgemm_nothing_is_checked(monkeypatch, capsys):
    def missing(backend):
        raise MeasurementError(f"backend {backend} needs fbgemm_gpu")

    monkeypatch.setattr(lookup_bench, "_fbgemm", missing)
    assert checked(monkeypatch, "--backend", "fbgemm_cpu", *SMALL) == 2
    assert capsys.readouterr().err == "gpu-check: backend fbgemm_cpu needs fbgemm_gpu; nothing was checked\n"


def test_the_largest_sample_fills_the_arena_and_those_of_the_lab_fit_into_it():
    setup = Setup(campaign_params("fbgemm_cuda", 2**25), 64, 4096.0, 1)
    largest = gpu_check_vital.largest_sample(setup)
    assert 0.85 * 2**25 < sum(shard.weight_bytes for shard in largest.shards) <= 0.9 * 2**25
    samples = lab_samples(setup)
    assert len(samples) == 30
    assert all(sum(shard.weight_bytes for shard in sample.shards) <= 2**25 for sample in samples)


def test_a_python_without_torch_ends_with_one_line():
    program = (
        "import runpy, sys; sys.modules['torch'] = None; sys.path[0] = sys.argv[2]; "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    command = [sys.executable, "-c", program, str(SCRIPT), str(SCRIPT.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"{sys.executable} has no module torch; nothing was checked" in done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device to check")
def test_no_vital_check_fails_on_a_gpu(monkeypatch):
    assert checked(monkeypatch) in (0, 1)


@pytest.mark.parametrize(
    ("gpu_model", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_the_lab_knows_a_gpu_by_the_name_that_cuda_reports(gpu_model, name):
    assert lab_device(gpu_model) == name
    assert name is None or name in device_names()
