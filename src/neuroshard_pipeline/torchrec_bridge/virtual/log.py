"""What a rank does in a step: marks, starts and ends of its collectives, and its time between them."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, final

Call = Callable[[], Any]


class Collective(NamedTuple):
    """A collective as one rank sees it.

    Attributes:
        kind: a name of `lab.network.COLLECTIVES`, `broadcast`, `gather`, `scatter`, `reduce` or `barrier`.
        group: name of the process group; all its ranks start its collectives in the same order.
        ranks: the ranks of the group.
        sent_bytes: for an alltoall the bytes to every rank of the group, else one number, the size of the whole
            buffer (`lab.network`).
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    sent_bytes: tuple[int, ...]


class Event(NamedTuple):
    """One entry of a log: a `mark` of the clock, the `start` of a collective, or the begin of a `wait` for its end.

    `cpu_s` are the seconds of the rank's clock since the event before; time in gloo, and in waiting, does not count.
    `number` is that of the mark or of the collective.
    """

    kind: Literal["mark", "start", "wait"]
    cpu_s: float
    number: int


class StepLog(NamedTuple):
    """The log of one rank in one step; it begins with the first mark."""

    events: tuple[Event, ...]
    collectives: tuple[Collective, ...]

    @property
    def structure(self) -> tuple[object, ...]:
        """The log without times."""
        return tuple((event.kind, event.number) for event in self.events), self.collectives


@final
class RankLog:
    """Logs the steps of this process.

    During a step, the rank holds its core or GPU while it computes, and frees it while it waits. Ranks that share one
    therefore do not interrupt each other.

    Args:
        lock_file: path that the ranks of a core or GPU have in common; None if nobody else uses it.
        clock: seconds that the rank has computed; it waits for all work of the rank. By default, its CPU time.
        wake: runs when the rank takes its core or GPU, before its clock goes on; a GPU switches to the rank meanwhile.
    """

    def __init__(self, lock_file: str | None, clock: Call = time.thread_time, wake: Call = lambda: None) -> None:
        self._core = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600) if lock_file else None
        self._clock, self._wake = clock, wake
        self._is_on = False
        self._events: list[Event] = []
        self._collectives: list[Collective] = []
        self._before = 0  # collectives of earlier steps
        self._marks = 0
        self._last_s = 0.0

    def now(self) -> float:
        """Mark this moment, and return the number of the mark; the first mark begins a step."""
        if self._is_on:
            self._add("mark", self._marks)
        else:
            self._take_core()
            self._before += len(self._collectives)
            self._is_on, self._events, self._collectives, self._marks = True, [Event("mark", 0.0, 0)], [], 0
            self._last_s = self._clock()
        self._marks += 1
        return self._marks - 1

    def finish(self) -> StepLog:
        """End the step and return its log."""
        self._is_on = False
        self._free_core()
        return StepLog(tuple(self._events), tuple(self._collectives))

    def start(self, collective: Collective, begin: Callable[[], Any]) -> tuple[Any, int]:
        """Call `begin`, which starts a collective, and return its result and the collective's number over all steps."""
        self._collectives.append(collective)
        number = len(self._collectives) - 1
        self._add("start", number)
        begun = begin()
        self._last_s = self._clock()
        return begun, self._before + number

    def wait(self, number: int) -> None:
        """The rank needs the result of a collective from now on; those of an earlier step count as done."""
        if number >= self._before:
            self._add("wait", number - self._before)

    @contextmanager
    def away(self, back: Callable[[], None]) -> Iterator[None]:
        """The rank does not compute; `back` runs when it holds its core or GPU again, and does not count."""
        if self._is_on:
            self._free_core()
        yield
        if self._is_on:
            self._take_core()
        back()
        self._last_s = self._clock()

    def _add(self, kind: Literal["mark", "start", "wait"], number: int) -> None:
        now_s = self._clock()
        self._events.append(Event(kind, now_s - self._last_s, number))
        self._last_s = now_s

    def _take_core(self) -> None:
        if self._core is not None:
            fcntl.flock(self._core, fcntl.LOCK_EX)
        self._wake()

    def _free_core(self) -> None:
        if self._core is not None:
            fcntl.flock(self._core, fcntl.LOCK_UN)
