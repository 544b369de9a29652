"""A common clock for ranks on several hosts, whose monotonic clocks have different origins."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
import torch.distributed as dist

_ROUNDS = 25


@dataclass(frozen=True)
class Place:
    """The place of a rank on its host.

    Attributes:
        local_rank: number of the rank among the ranks of its host.
        ranks_here: number of ranks on its host.
    """

    local_rank: int
    ranks_here: int


@final
class HostClock:
    """The offset of this host's monotonic clock from that of rank 0's host.

    Ranks that read the same clock as rank 0 have the offset 0. The others ask rank 0 for the time repeatedly. The
    fastest answer counts and is assumed to be from the middle of its round trip, as in NTP, so that its error is at
    most half the round trip. Clocks drift by tens of microseconds per second; synchronise again for every chunk.

    Args:
        rank: rank of this process.
        world_size: number of ranks.
        store: where the ranks exchange the names of their clocks.
    """

    def __init__(self, rank: int, world_size: int, store: dist.Store) -> None:
        self._rank = rank
        store.set(f"clock/{rank}", _name_of_clock())
        names = [store.get(f"clock/{other}") for other in range(world_size)]
        self._elsewhere = [other for other in range(world_size) if names[other] != names[0]]
        self.behind_ns = 0

    def synchronise(self, device: torch.device) -> None:
        """Measure the offset; all ranks must call this together."""
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
    """Rank 0's time minus the middle of the round trip on this clock, for the fastest of some round trips."""
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
    """A name that processes share if they read the same monotonic clock: same boot and same time namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/time').readlink()}"
