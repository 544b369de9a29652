"""When a campaign stops because its samples fail, and what its error says."""

from __future__ import annotations

import pandas as pd
import pytest

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.failures import STOP_AFTER, FailureWatch


def record(*failures: tuple[str, str, bool]) -> pd.DataFrame:
    """A record of failed samples: name, error, and whether the failure is permanent."""
    rows = [
        {"sample_id": name, "digest": f"digest-{name}", "error": error, "permanent": permanent}
        for name, error, permanent in failures
    ]
    return pd.DataFrame(rows)


def passing(count: int) -> list[tuple[str, str, bool]]:
    """Failures that another run may not have."""
    return [(f"passing-{index}", f"out of memory {index}", False) for index in range(count)]


def test_the_error_of_a_stopped_campaign_is_that_of_a_failure_that_may_pass():
    permanent = ("too-large", "the tables exceed the arena", True)
    with pytest.raises(MeasurementError, match="the error of passing-0 is: out of memory 0") as stopped:
        FailureWatch(known=()).look_at(record(permanent, *passing(STOP_AFTER)))
    assert "too-large" not in str(stopped.value)


def test_failures_are_counted_over_all_records_of_a_run():
    watch = FailureWatch(known=())
    *first, last = passing(STOP_AFTER)
    watch.look_at(record(*first))
    watch.look_at(record(*first))  # a later visit of the same samples
    with pytest.raises(MeasurementError, match=rf"none of its first {STOP_AFTER} samples"):
        watch.look_at(record(last))


@pytest.mark.parametrize("known", [True, False])
def test_permanent_and_known_failures_do_not_stop_a_campaign(known):
    failures = passing(2 * STOP_AFTER) if known else [(f"large-{i}", "too large", True) for i in range(2 * STOP_AFTER)]
    frame = record(*failures)
    watch = FailureWatch(known=frame["digest"] if known else ())
    watch.look_at(frame)
    assert not watch.any_success


def test_one_success_keeps_a_campaign_running():
    frame = record(*passing(2 * STOP_AFTER), ("good", "", False))
    frame.loc[frame["sample_id"] == "good", "error"] = None
    watch = FailureWatch(known=())
    watch.look_at(frame)
    assert watch.any_success
