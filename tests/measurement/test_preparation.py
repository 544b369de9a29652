"""What a campaign does before its first visit."""

from __future__ import annotations

import logging

import pytest

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.lab.device import device_names, lookup_cost_ms, modelled_device
from neuroshard_pipeline.measurement import ComputeCampaign, pools
from neuroshard_pipeline.measurement.id_files import IdFiles, batches_of
from neuroshard_pipeline.measurement.preparation import campaign_plan, lab_device, prepare
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.workers import Item

SEED = 11
H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("gpu_model", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        (H100, "h100"),
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


def test_the_plan_counts_visits_minutes_and_ids(compute_params, tmp_path):
    wide, narrow = Table("wide", 100_000, 64, 20.0), Table("narrow", 1000, 8, 2.0)
    samples = [
        ComputeSample("both", 4096, (whole(wide), whole(narrow))),
        ComputeSample("one", 4096, (whole(wide),)),
        ComputeSample("small batch", 1024, (whole(wide),)),
    ]
    params = compute_params(backend="fbgemm_cuda", visits=3, iterations=4, ids_folder=str(tmp_path / "ids"))
    plan = campaign_plan(samples, params, SEED, H100)
    ids = [4096 * 20, 4096 * 2, 1024 * 20]
    assert (plan.samples, plan.visits, plan.num_ids, plan.lab_device) == (3, 9, sum(ids), "h100")
    assert plan.ids_bytes == plan.missing_bytes == 4 * (sum(ids) + 2 * 4097 + 1025)
    kernels_ms = [sum(lookup_cost_ms(s.shards, s.batch_size, s.optimizer, modelled_device("h100"))) for s in samples]
    assert plan.minutes > 3 * 4 * sum(kernels_ms) / 60e3
    assert campaign_plan(samples, params.model_copy(update={"workers": 2}), SEED, H100).minutes == plan.minutes / 2
    assert campaign_plan(samples, params, SEED, "unknown").minutes is None
    IdFiles(tmp_path / "ids", SEED)(batches_of(samples)[1])
    drawn = campaign_plan(samples, params, SEED, H100)
    assert drawn.missing_bytes == plan.missing_bytes - 4 * (ids[1] + 4097)
    assert "3 samples, 9 visits, about" in drawn.text
    assert "GB in files, of which" in drawn.text
    in_workers = campaign_plan(samples, params.model_copy(update={"ids_folder": None}), SEED, H100)
    assert in_workers.text.endswith(f"{sum(ids) / 1e6:.4g} million ids, which the workers draw")


def test_a_campaign_on_a_gpu_logs_its_plan_and_draws_ids_before_any_worker_starts(
    compute_params, tmp_path, caplog, monkeypatch
):
    samples = [ComputeSample("one", 64, (whole(Table("t", 1000, 8, 2.0)),))]
    params = compute_params(backend="fbgemm_cuda", ids_folder=str(tmp_path / "ids"))
    missing_at_start = []

    def start_workers(*_, **__):
        missing_at_start.append(IdFiles(tmp_path / "ids", SEED).missing(batches_of(samples)))
        raise MeasurementError("no worker starts in this test")

    monkeypatch.setattr(pools, "fingerprint", lambda _: {"gpu_model": H100, "gpu_memory_bytes": 80 * 2**30})
    monkeypatch.setattr(pools, "single_workers", start_workers)
    with (
        caplog.at_level(logging.INFO),
        pools.compute_pool(samples, params, SEED) as pool,
        pytest.raises(MeasurementError, match="no worker starts"),
    ):
        list(pool.run([Item((0,))]))
    assert "plan of the whole campaign: 1 samples, 2 visits" in caplog.text
    assert missing_at_start == [[]]


def test_a_campaign_that_does_not_fit_the_gpu_draws_nothing(compute_params, tmp_path):
    samples = [ComputeSample("one", 64, (whole(Table("t", 1000, 8, 2.0)),))]
    params = compute_params(backend="fbgemm_cuda", arena_bytes=40 * 2**30, ids_folder=str(tmp_path / "ids"))
    with pytest.raises(MeasurementError, match=f"{H100} has {40 * 2**30} bytes for it"):
        prepare(samples, params, SEED, {"gpu_model": H100, "gpu_memory_bytes": 40 * 2**30})
    assert not list(tmp_path.iterdir())


def test_a_campaign_uses_the_files_of_an_earlier_one(compute_params, compute_samples, tmp_path):
    params = compute_params(ids_folder=str(tmp_path / "ids"), noise_floor_share=0.0)
    assert ComputeCampaign(params, SEED).measure(compute_samples(3))["error"].isna().all()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "ids").iterdir()}
    assert (
        ComputeCampaign(params.model_copy(update={"visits": 3}), SEED).measure(compute_samples(3))["error"].isna().all()
    )
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "ids").iterdir()} == files
    assert len(files) >= len(batches_of(compute_samples(3)))
