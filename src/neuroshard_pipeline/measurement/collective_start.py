"""How a rank starts a collective at a common time plus its start skew (its own delay), and times it from then on."""

import statistics
import time
from collections.abc import Callable
from typing import final

import torch

#: Time that the host of a GPU is awake before a start. A sleeping thread wakes up 65 to 80 us late, and a small
#: collective takes as long as that.
SPIN_NS = 300_000
#: The GPU waits this long before a collective, so that the host can launch the collective meanwhile.
LEAD_MS = 0.5
_CALIBRATION_CYCLES = 2_000_000
_CALIBRATIONS = 5


@final
class HostStart:
    """Starts and times collectives that the host runs itself, as those of gloo.

    The cost counts from the intended start, so that a late wake-up only adds time, as every other disturbance does. The
    rank sleeps until then: busy waiting would block other ranks on the same core.
    """

    def calibrate(self) -> None:
        """Do nothing; a host needs no calibration."""

    def timed_ms(self, exchange: Callable[[], object], start_ns: int, skew_ms: float) -> float:
        """Run `exchange` at `start_ns` of the monotonic clock plus `skew_ms`; return its cost in ms."""
        own_start_ns = start_ns + round(skew_ms * 1e6)
        wait_until(own_start_ns)
        exchange()
        return (time.monotonic_ns() - own_start_ns) / 1e6


@final
class DeviceStart:
    """Starts and times collectives that run on a GPU, as those of NCCL.

    At the common start, the process of every rank (the host) enqueues on its GPU a wait of `LEAD_MS` plus the start
    skew, and then the collective. The GPU enters the collective at the end of the wait, whatever the host does
    meanwhile, and events on the GPU time the collective. A late host shortens the wait. If the host is later than the
    whole wait, the excess counts as cost. The cost excludes the launch, as in training, where the host runs ahead of
    the GPU.

    Args:
        device: the GPU of this rank, which must be idle between calls.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cycles_per_ms = 0.0

    def calibrate(self) -> None:
        """Measure the clock of the GPU, which changes with its load and temperature."""
        durations_ms = [self._wait_ms(_CALIBRATION_CYCLES) for _ in range(_CALIBRATIONS)]
        self._cycles_per_ms = _CALIBRATION_CYCLES / statistics.median(durations_ms)

    def timed_ms(self, exchange: Callable[[], object], start_ns: int, skew_ms: float) -> float:
        """Run `exchange` at `start_ns` of the monotonic clock plus lead and `skew_ms`; return its cost in ms."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        wait_until(start_ns, SPIN_NS)
        wait_ms, missed_ms = device_wait(skew_ms, (time.monotonic_ns() - start_ns) / 1e6)
        torch.cuda._sleep(round(wait_ms * self._cycles_per_ms))
        begin.record()
        exchange()
        end.record()
        torch.cuda.synchronize(self._device)
        return float(begin.elapsed_time(end)) + missed_ms

    def _wait_ms(self, cycles: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize(self._device)
        return float(begin.elapsed_time(end))


def device_wait(skew_ms: float, late_ms: float) -> tuple[float, float]:
    """How long a GPU waits before it enters a collective, and by how much it misses its intended start; ms each.

    The host enqueues the wait `late_ms` after the common start; the wait is shorter by as much.
    """
    left_ms = LEAD_MS + skew_ms - late_ms
    return max(left_ms, 0.0), max(-left_ms, 0.0)


def wait_until(target_ns: int, spin_ns: int = 0) -> None:
    """Wait until a time of the monotonic clock: asleep at first, and awake during the last `spin_ns`."""
    while (left_ns := target_ns - time.monotonic_ns() - spin_ns) > 0:
        time.sleep(left_ns / 1e9)
    while time.monotonic_ns() < target_ns:
        pass
