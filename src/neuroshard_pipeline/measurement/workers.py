"""Teams of worker processes that outlive a whole campaign and may die without taking it along."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from neuroshard_pipeline.errors import MeasurementError

#: How worker processes start: forked from a server that has imported everything, and inherits nothing from us.
START_METHOD = "forkserver"
#: Imported once by the server that all workers are forked from, so that a worker starts in a hundredth of a second.
_PRELOAD = [f"neuroshard_pipeline.measurement.{name}" for name in ("crew", "fbgemm")]
_EXIT_GRACE_S = 5.0
_FREE_CORE_WAIT_S = 20.0


class TeamFailedError(Exception):
    """A worker of a team died, hung or raised; the message says which and how."""


@dataclass(frozen=True)
class _Member:
    process: BaseProcess
    connection: Connection


class Team:
    """Processes that receive every job together and answer it together.

    `setup(rank, *args)` runs once in every process and returns the function that answers a job there. The team
    starts with its first job, and again after a failure, when all its processes are replaced.
    """

    def __init__(
        self,
        size: int,
        setup: Callable[..., Callable[[Any], Any]],
        arguments: Callable[[], tuple[Any, ...]],
        spawn: bool = False,
    ) -> None:
        """Describe a team; nothing starts yet.

        Args:
            size: number of processes.
            setup: an importable function, called in every process.
            arguments: called at every start in this process; returns what `setup` gets after the rank.
            spawn: start every process from nothing, as CUDA demands, instead of forking it from a warm server.
        """
        self.size = size
        self._setup = setup
        self._arguments = arguments
        self._spawn = spawn
        self._members: list[_Member] = []
        self._closed = False

    def ask(self, job: Any, timeout_s: float) -> list[Any]:
        """Give `job` to every process and return their answers in the order of ranks.

        Raises:
            TeamFailedError: a process died, raised or did not answer in time; the team starts afresh next time.
            MeasurementError: `setup` raised; trying again would not help.
        """
        if self._closed:
            raise TeamFailedError("the campaign was stopped")
        try:
            if not self._members:
                self._start()
            for member in self._members:
                member.connection.send(job)
            return self._gather(time.monotonic() + timeout_s, timeout_s)
        except (TeamFailedError, OSError) as problem:
            self.kill()
            raise TeamFailedError(str(problem)) from problem
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End every process at once."""
        for member in self._members:
            member.process.kill()
            member.connection.close()
        for member in self._members:
            member.process.join(_EXIT_GRACE_S)
        self._members = []

    def close(self) -> None:
        """End the team for good; safe while another thread waits for an answer, which then fails."""
        self._closed = True
        for member in self._members:
            member.process.kill()

    @property
    def process_ids(self) -> tuple[int | None, ...]:
        """Of the running processes, in the order of ranks."""
        return tuple(member.process.pid for member in self._members)

    def _start(self) -> None:
        context: Any = multiprocessing.get_context("spawn" if self._spawn else START_METHOD)
        context.set_forkserver_preload(_PRELOAD)
        arguments = self._arguments()
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._setup, (rank, *arguments)), daemon=True)
            with _without_main():
                process.start()
            theirs.close()
            self._members.append(_Member(process, ours))

    def _gather(self, deadline: float, timeout_s: float) -> list[Any]:
        answers: dict[int, Any] = {}
        waiting = {member.connection: rank for rank, member in enumerate(self._members)}
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TeamFailedError(f"worker {min(waiting.values())} did not answer within {timeout_s:g} s")
            for connection in ready:
                rank = waiting.pop(connection)  # type: ignore[call-overload]
                answers[rank] = self._receive(rank)
        return [answers[rank] for rank in range(self.size)]

    def _receive(self, rank: int) -> Any:
        member = self._members[rank]
        try:
            kind, answer = member.connection.recv()
        except (EOFError, OSError) as problem:
            member.process.join(_EXIT_GRACE_S)
            raise TeamFailedError(f"worker {rank} died, exit code {member.process.exitcode}") from problem
        if kind == "unfit":
            raise MeasurementError(f"worker {rank} cannot be set up: {answer}")
        if kind == "failure":
            raise TeamFailedError(f"worker {rank} failed: {answer}")
        return answer


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from running the program's main script again in every worker, which needs nothing of it.

    Under the `kedro` command that script would import all of Kedro, a second of work for each of many ranks; and a
    plain user script would need the guard `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(connection: Connection, setup: Callable[..., Callable[[Any], Any]], args: tuple[Any, ...]) -> None:
    """Answer jobs until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is the parent's to handle
    try:
        answer = setup(*args)
    except Exception as problem:
        _send(connection, ("unfit", str(problem)))
        return
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        try:
            reply = ("answer", answer(job))
        except Exception as problem:
            reply = ("failure", f"{type(problem).__name__}: {problem}")
        if not _send(connection, reply):
            return


def _send(connection: Connection, reply: tuple[str, Any]) -> bool:
    try:
        connection.send(reply)
    except (BrokenPipeError, OSError):
        return False
    return True


def settle_on_core(rank: int) -> None:
    """Pin this process to one core, `rank` modulo the number of cores: see `_settle`."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        _settle({cores[rank % len(cores)]})


def settle_on_free_core() -> None:
    """Pin this process to a core of this host that no other such process has, for as long as it lives.

    Workers of a cluster do not know of each other; each holds a lock on a file that stands for its core.

    Raises:
        MeasurementError: every core is taken.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    deadline = time.monotonic() + _FREE_CORE_WAIT_S
    while time.monotonic() < deadline:  # the worker whose place this one takes may just be ending
        for core in cores:
            if _lock(f"{tempfile.gettempdir()}/neuroshard-{os.getuid()}-core-{core}.lock"):
                return _settle({core})
        time.sleep(0.1)
    raise MeasurementError(f"all {len(cores)} cores of this host are taken by other workers; ask for fewer workers")


def _settle(cores: set[int]) -> None:
    """Pin this process and ask the scheduler to let it finish its turns.

    Pinning spreads ranks evenly over the cores and keeps them there; SCHED_BATCH, which needs no privilege, stops
    a rank that wakes up from interrupting the one that runs. For 8 ranks on 2 cores the two together make an
    all-to-all four times faster and its noise a quarter.
    """
    os.sched_setaffinity(0, cores)
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _lock(path: str) -> bool:
    """Whether this process now holds the lock on a file, until it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True
