from __future__ import annotations

import json
import logging

import pytest
import warm

from neuroshard_pipeline.measurement import CampaignSummary, campaign, hardware
from neuroshard_pipeline.measurement.hardware import (
    cache_too_large,
    describe_hardware,
    fingerprint,
    last_level_cache_bytes,
)

EARLIER, DATE = "2026-11-20T11:00:00+00:00", "2026-11-20T12:00:00+00:00"


def test_the_description_of_machine_and_campaigns_is_json(compute_params, comm_params, monkeypatch):
    monkeypatch.setattr(hardware, "_COPIED_BYTES", 2**24)
    floor = {"samples": 3, "total": {"median": 0.01, "p90": 0.03}}
    compute, comm = CampaignSummary(DATE, floor, 0.02), CampaignSummary(EARLIER, floor, 0.5)
    across_hosts = comm_params(local_world_size=2, torchrun_endpoint="first:29400")
    described = json.loads(json.dumps(describe_hardware(compute_params(), across_hosts, compute, comm)))
    assert described["date"] == DATE
    assert described["other_programs"] == {"compute": 0.02, "comm": 0.5}
    assert described["compute_backend"] == "fbgemm_cpu"
    assert described["comm_backend"] == "gloo"
    assert described["comm_costs_are"] == "measured"
    assert described["noise_floor"] == {"compute": floor, "comm": floor}
    assert described["comm_local_world_size"] == 2
    assert described["cores"] >= 1
    assert 5 < described["copy_ms_per_gib"] < 5000
    assert "torch" in described["libraries"]


def test_the_fingerprint_does_not_change_between_runs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import json\n"
        "from neuroshard_pipeline.measurement.hardware import fingerprint\n"
        "print(json.dumps(fingerprint('fbgemm_cpu')))\n"
    )
    done = warm.run(script)
    assert json.loads(done.stdout) == fingerprint("fbgemm_cpu"), done.stderr
    assert "date" not in fingerprint("gloo")


def test_the_last_level_cache_is_the_largest(tmp_path):
    for name, size in {"index0": "48K\n", "index2": "2048K\n", "index3": "480M\n", "index4": "unknown\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(size)
    assert last_level_cache_bytes(tmp_path) == 480 * 2**20
    assert last_level_cache_bytes(tmp_path / "none") is None


def test_an_arena_too_small_for_cold_rows_gives_a_warning(compute_params):
    params = compute_params(arena_bytes=2**29)
    assert cache_too_large(params, 2**25) is None
    assert cache_too_large(params, 2**27) is None  # just large enough
    assert "set arena_bytes to 2013265920 or more" in cache_too_large(params, 480 * 2**20)
    assert cache_too_large(params, None) is None
    assert cache_too_large(compute_params(cache_treatment="warm"), 2**30) is None
    assert cache_too_large(compute_params(backend="fbgemm_cuda"), 2**30) is None


@pytest.mark.parametrize(("cache_bytes", "warnings"), [(2**25, 1), (2**10, 0)])
def test_a_campaign_warns_once(compute_params, compute_samples, caplog, monkeypatch, cache_bytes, warnings):
    campaign._warn_once.cache_clear()  # other tests may have warned
    monkeypatch.setattr(campaign, "last_level_cache_bytes", lambda: cache_bytes)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            next(campaign.ComputeCampaign(compute_params(), 0).run(compute_samples(4), {}))
    assert sum("last-level cache" in record.message for record in caplog.records) == warnings
