from __future__ import annotations

import json

from neuroshard_pipeline.measurement.hardware import describe_hardware, fingerprint

DATE = "2026-11-20T12:00:00+00:00"


def test_the_description_names_everything_and_is_json(compute_params, comm_params):
    floor = {"samples": 3, "total": {"median": 0.01, "p90": 0.03}}
    described = json.loads(json.dumps(describe_hardware(compute_params(), comm_params(), floor, floor, DATE)))
    assert described["compute_backend"] == "fbgemm_cpu"
    assert described["comm_backend"] == "gloo"
    assert described["comm_costs_are"] == "measured"
    assert described["noise_floor"] == {"compute": floor, "comm": floor}
    assert described["cores"] >= 1
    assert "torch" in described["libraries"]
    assert described["date"] == DATE


def test_the_fingerprint_does_not_change_between_runs():
    assert fingerprint("fbgemm_cpu") == fingerprint("fbgemm_cpu")
    assert "date" not in fingerprint("gloo")
