from __future__ import annotations

import pytest
from pydantic import ValidationError

from neuroshard_pipeline.measurement.timing import Timing


@pytest.mark.parametrize(("statistic", "expected"), [("min", (1.0, 5.0)), ("median", (2.0, 6.0))])
def test_forward_and_backward_are_reduced_separately(compute_params, statistic, expected):
    timed = [(1.0, 9.0), (2.0, 6.0), (4.0, 5.0)]
    assert compute_params(iteration_statistic=statistic).of_visit(timed) == expected


@pytest.mark.parametrize(
    "change", [{"visits": 0}, {"iterations": 0}, {"warmup_iterations": -1}, {"visit_statistic": "max"}, {"extra": 1}]
)
def test_impossible_parameters_are_refused(compute_params, change):
    with pytest.raises(ValidationError, match=next(iter(change))):
        compute_params(**change)


def test_hosts_and_their_meeting_point_go_together(comm_params):
    with pytest.raises(ValidationError, match="go together"):
        comm_params(local_world_size=2)


def test_unknown_backend_names_the_alternatives(compute_params):
    with pytest.raises(ValidationError, match="fbgemm_cpu"):
        compute_params(backend="fbgemm_tpu")


def test_failed_timing_has_no_costs():
    timing = Timing.failed("worker died")
    assert timing.forward_ms != timing.forward_ms
    assert timing.error == "worker died"
