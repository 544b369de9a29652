"""A campaign draws ids into files before its first visit."""

import pytest

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import ComputeCampaign, pools
from neuroshard_pipeline.measurement.id_files import IdFiles, batches_of
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.workers import Item

SEED = 11


def test_a_campaign_on_a_gpu_draws_ids_before_any_worker_starts(compute_params, tmp_path, monkeypatch):
    samples = [ComputeSample("one", 64, (whole(Table("t", 1000, 8, 2.0)),))]
    params = compute_params(backend="fbgemm_cuda", ids_folder=str(tmp_path / "ids"))
    missing_at_start = []

    def start_workers(*_, **__):
        missing_at_start.append(IdFiles(tmp_path / "ids", SEED).missing(batches_of(samples)))
        raise MeasurementError("no worker starts in this test")

    monkeypatch.setattr(pools, "fingerprint", lambda _: {})
    monkeypatch.setattr(pools, "single_workers", start_workers)
    with pools.compute_pool(samples, params, SEED) as pool, pytest.raises(MeasurementError, match="no worker starts"):
        list(pool.run([Item((0,))]))
    assert missing_at_start == [[]]


def test_a_campaign_uses_the_files_of_an_earlier_one(compute_params, compute_samples, tmp_path):
    params = compute_params(ids_folder=str(tmp_path / "ids"), noise_floor_share=0.0)
    assert ComputeCampaign(params, SEED).measure(compute_samples(3))["error"].isna().all()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "ids").iterdir()}
    assert (
        ComputeCampaign(params.model_copy(update={"visits": 3}), SEED).measure(compute_samples(3))["error"].isna().all()
    )
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "ids").iterdir()} == files
    assert len(files) >= len(batches_of(compute_samples(3)))
