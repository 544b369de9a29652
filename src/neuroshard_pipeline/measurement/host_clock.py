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
    """The place of a rank on its host: its index among the `ranks_here` ranks of this host, from 0."""

    local_rank: int
    ranks_here: int


@final
class HostClock:
    """The offset of this host's monotonic clock from that of rank 0's host.

    `behind_ns` is the time to add to this host's clock to obtain rank 0's time. It is 0 for ranks that read the same
    clock as rank 0. All other ranks ask rank 0 for the time repeatedly and use the answer with the shortest round trip.
    As in NTP, rank 0 is assumed to read its clock in the middle of that round trip, so the error is at most half a
    round trip.
    Clocks drift by tens of microseconds per second, so `synchronise` must be called again before every chunk.

    The messages are CPU tensors, which gloo sends even if the collectives are NCCL's. An NCCL call returns as soon as
    the message is enqueued, so a clock that is read after the call would not show the time of arrival. Ranks exchange
    the names of their clocks through `store`.
    """

    def __init__(self, rank: int, world_size: int, store: dist.Store) -> None:
        self._rank = rank
        store.set(f"clock/{rank}", _name_of_clock())
        names = [store.get(f"clock/{other}") for other in range(world_size)]
        self._elsewhere = [other for other in range(world_size) if names[other] != names[0]]
        self.behind_ns = 0

    def synchronise(self) -> None:
        """Measure the offset; all ranks must call this together."""
        for other in self._elsewhere:
            if self._rank == 0:
                _answer(other)
            elif self._rank == other:
                self.behind_ns = _ask()


def _answer(other: int) -> None:
    message = torch.zeros(1, dtype=torch.int64)
    for _ in range(_ROUNDS):
        dist.recv(message, other)
        message.fill_(time.monotonic_ns())
        dist.send(message, other)


def _ask() -> int:
    """Rank 0's time minus this clock's time at the middle of the shortest of `_ROUNDS` round trips, in ns."""
    message = torch.zeros(1, dtype=torch.int64)
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
    """The boot id and the time namespace, which are equal for processes that read the same monotonic clock."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/time').readlink()}"
