"""One clock for ranks on several hosts, whose monotonic clocks start anywhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
import torch.distributed as dist

_ROUNDS = 25


@dataclass(frozen=True)
class Place:
    """Where a rank is.

    Attributes:
        local_rank: its number among the ranks of its host.
        ranks_here: ranks of its host.
    """

    local_rank: int
    ranks_here: int


@final
class HostClock:
    """How far this host's monotonic clock is behind that of rank 0's host.

    Ranks that share rank 0's clock are 0 behind it. The others ask rank 0 for the time again and again; the answer
    that came fastest counts, taken to be from the middle of its round trip (as NTP does), and is wrong by half of
    that trip at most. Crystals drift by tens of microseconds a second, so ask again for every stretch.

    Args:
        rank: this one.
        world_size: all of them.
        store: where they tell each other which clock they read.
    """

    def __init__(self, rank: int, world_size: int, store: dist.Store) -> None:
        self._rank = rank
        store.set(f"clock/{rank}", _name_of_clock())
        names = [store.get(f"clock/{other}") for other in range(world_size)]
        self._elsewhere = [other for other in range(world_size) if names[other] != names[0]]
        self.behind_ns = 0

    def synchronise(self, device: torch.device) -> None:
        """Measure it; a collective call."""
        for other in self._elsewhere:
            if self._rank == 0:
                _answer(other, device)
            elif self._rank == other:
                self.behind_ns = _ask(device)


def _answer(other: int, device: torch.device) -> None:
    message = torch.zeros(1, dtype=torch.int64, device=device)
    for _ in range(_ROUNDS):
        dist.recv(message, other)
        message.fill_(time.monotonic_ns())
        dist.send(message, other)


def _ask(device: torch.device) -> int:
    """Of the fastest of some round trips: rank 0's time minus the middle of the trip on this clock."""
    message = torch.zeros(1, dtype=torch.int64, device=device)
    trips = []
    for _ in range(_ROUNDS):
        begin = time.monotonic_ns()
        dist.send(message, 0)
        dist.recv(message, 0)
        there = int(message.item())
        end = time.monotonic_ns()
        trips.append((end - begin, there - (begin + end) // 2))
    return min(trips)[1]


def _name_of_clock() -> str:
    """Equal for processes that read the same monotonic clock: those of one boot and one time namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/time').readlink()}"
