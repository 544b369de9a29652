"""How ranks start collectives together."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from neuroshard_pipeline.measurement import CommCampaign, collective_start, host_clock
from neuroshard_pipeline.measurement.collective_start import (
    LEAD_MS,
    SPIN_NS,
    DeviceStart,
    HostStart,
    device_wait,
    wait_until,
)
from neuroshard_pipeline.measurement.comm_bench import GROUP_BACKENDS
from neuroshard_pipeline.measurement.host_clock import HostClock
from neuroshard_pipeline.tables.samples import CommSample
from neuroshard_pipeline.workers import LocalTeam

MS = 1_000_000


class LateClock:
    """A clock of a host on which every sleeping thread wakes up 70 us late; reading it takes 1 us."""

    def __init__(self):
        self.now_ns = 0

    def monotonic_ns(self):
        self.now_ns += 1000
        return self.now_ns

    def sleep(self, seconds):
        self.now_ns += round(seconds * 1e9) + 70_000


@pytest.mark.parametrize(("spin_ns", "earliest_ns", "latest_ns"), [(0, 70_000, 75_000), (SPIN_NS, 0, 1000)])
def test_who_is_awake_at_the_end_of_a_wait_is_on_time(monkeypatch, spin_ns, earliest_ns, latest_ns):
    clock = LateClock()
    monkeypatch.setattr(collective_start, "time", clock)
    wait_until(20 * MS, spin_ns)
    assert earliest_ns <= clock.now_ns - 20 * MS <= latest_ns


def test_a_cost_on_the_host_counts_from_the_intended_start():
    start = time.monotonic_ns() + 5 * MS
    entered = []
    cost_ms = HostStart().timed_ms(lambda: (entered.append(time.monotonic_ns()), time.sleep(0.01)), start, 30.0)
    assert entered[0] >= start + 30 * MS
    assert 10 <= cost_ms <= (time.monotonic_ns() - start) / MS - 30


@given(st.floats(0, 50), st.floats(0, 50))
def test_a_gpu_starts_on_time_unless_its_host_is_later_than_lead_and_skew(skew_ms, late_ms):
    wait_ms, missed_ms = device_wait(skew_ms, late_ms)
    intended_ms, entered_ms = LEAD_MS + skew_ms, late_ms + wait_ms
    assert entered_ms == pytest.approx(intended_ms + missed_ms)
    assert wait_ms >= 0
    assert missed_ms == pytest.approx(max(late_ms - intended_ms, 0.0))


class ClockOfHost:
    """The clock of one of two hosts; that of host 1 is a million seconds behind that of host 0."""

    def __init__(self, host):
        self.host = host

    def monotonic_ns(self):
        return time.monotonic_ns() - self.host * 10**15


def set_up_clock(rank, folder):
    """Join the ranks of two hosts; the returned function gives the offset of this rank's clock and the backends."""
    # NCCL's group has the backends cpu:gloo and cuda:nccl. The first needs no GPU.
    control = GROUP_BACKENDS["nccl"].split(",")[0]
    dist.init_process_group(control, store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    host_clock._name_of_clock = lambda: f"clock of host {rank}"
    host_clock.time = ClockOfHost(rank)
    clock = HostClock(rank, 2, dist.FileStore(f"{folder}/names", 2))

    def offset(_):
        clock.synchronise()
        return clock.behind_ns, dist.get_backend_config()

    return offset


def test_clocks_agree_through_tensors_on_the_cpu_where_nccl_is_used(tmp_path):
    team = LocalTeam(2, set_up_clock, lambda: (str(tmp_path),))
    try:
        (first, backends), (second, _) = team.ask("synchronise", 60.0)
    finally:
        team.kill()
    assert backends == "cpu:gloo"
    assert first == 0
    assert second == pytest.approx(10**15, rel=1e-3)  # a message may take up to a thousand seconds


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device, whose clock is measured here")
def test_a_gpu_waits_for_the_skew_before_the_timed_part():
    start = DeviceStart(torch.device("cuda", 0))
    start.calibrate()
    buffer = torch.zeros(1000, device="cuda")
    before = time.monotonic_ns()
    cost_ms = start.timed_ms(lambda: buffer.add_(1), before, 50.0)
    assert (time.monotonic_ns() - before) / MS >= 45
    assert 0 < cost_ms < 45


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices for NCCL")
def test_early_gpus_pay_for_the_late_one(comm_params):
    sample = CommSample("late", 64, (8, 8), (0.0, 20.0))
    costs = CommCampaign(comm_params(backend="nccl", timeout_s=120.0), 0).measure([sample]).set_index("rank")
    assert costs["error"].isna().all()
    assert costs.loc[0, "forward_ms"] > 15 > costs.loc[1, "forward_ms"]
    assert (costs["backward_ms"] < 15).all()
