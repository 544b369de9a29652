"""A team of worker processes on this host."""

import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, final

from neuroshard_pipeline.workers.team import JobServer, SetUp, TeamFailedError, read_reply

#: Workers are forked from a server that has imported the needed modules, but has no threads or locks of this process.
START_METHOD = "forkserver"
_ALWAYS, _LAST = ("neuroshard_pipeline.workers", "torch"), "neuroshard_pipeline.workers.frozen"
_EXIT_GRACE_S = 5.0
#: Held while a process starts, because `_without_main` changes a global variable of the interpreter.
_STARTING = threading.Lock()


@dataclass(frozen=True)
class _Member:
    process: BaseProcess
    connection: Connection


@final
class LocalTeam:
    """Worker processes on this host. They start with the first job, and with the next job after a failure. See `Team`.

    Args:
        size: number of processes.
        setup: importable function; `setup(rank, *arguments())` runs in every process.
        arguments: returns the other arguments of `setup`; called in this process at every start of the workers.
        spawn: start each process from scratch, as CUDA requires, instead of forking it from a server.
        preload: names of modules that the server imports once, so that a worker starts within a hundredth of a
            second. All teams of a program share one server; it imports only the modules of the first team that starts.
    """

    def __init__(
        self,
        size: int,
        setup: SetUp,
        arguments: Callable[[], tuple[Any, ...]],
        *,
        spawn: bool = False,
        preload: Sequence[str] = (),
    ) -> None:
        self._size = size
        self._setup = setup
        self._arguments = arguments
        self._spawn = spawn
        self._preload = [*_ALWAYS, *preload, _LAST]
        self._members: list[_Member] = []
        self._closed = False

    def ask(self, job: Any, timeout_s: float) -> list[Any]:
        """See `Team.ask`."""
        if self._closed:
            raise TeamFailedError("the team was closed")
        try:
            if not self._members:
                self._start()
            for member in self._members:
                member.connection.send(job)
            return self._gather(time.monotonic() + timeout_s, timeout_s)
        except OSError as problem:
            self.kill()
            raise TeamFailedError(str(problem)) from problem
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """See `Team.kill`."""
        for member in self._members:
            member.process.kill()
            member.connection.close()
        for member in self._members:
            member.process.join(_EXIT_GRACE_S)
        self._members = []

    def close(self) -> None:
        """See `Team.close`."""
        self._closed = True
        for member in self._members:
            member.process.kill()

    def _start(self) -> None:
        context: Any = multiprocessing.get_context("spawn" if self._spawn else START_METHOD)
        arguments = self._arguments()
        for rank in range(self._size):
            ours, theirs = context.Pipe()
            server = JobServer(self._setup, (rank, *arguments))
            process = context.Process(target=_serve, args=(theirs, server), daemon=True)
            with _STARTING, _without_main():
                context.set_forkserver_preload(self._preload)
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
        return [answers[rank] for rank in range(self._size)]

    def _receive(self, rank: int) -> Any:
        member = self._members[rank]
        try:
            reply = member.connection.recv()
        except (EOFError, OSError) as problem:
            member.process.join(_EXIT_GRACE_S)
            raise TeamFailedError(f"worker {rank} died, exit code {member.process.exitcode}") from problem
        return read_reply(reply, f"worker {rank}")


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from running the program's main script again in every worker.

    Otherwise, the script of the `kedro` command would import all of Kedro in every worker, which takes a second each,
    and a user's script would need the guard `if __name__ == "__main__"`.

    multiprocessing runs the script if `__main__` has a file or a spec. The substitute has neither. It has all other
    attributes, because another thread may pickle an object of the script meanwhile. Hold `_STARTING` around this
    function: two threads at once would restore each other's substitute.
    """
    main = sys.modules["__main__"]
    substitute = ModuleType("__main__")

    def attribute(name: str) -> Any:
        if name == "__file__":
            raise AttributeError(name)
        return getattr(main, name)

    substitute.__dict__["__getattr__"] = attribute
    sys.modules["__main__"] = substitute
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(connection: Connection, server: JobServer) -> None:
    """Answer jobs until the parent process closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles an interrupt from the keyboard
    with suppress(EOFError, OSError):
        while True:
            connection.send(server.reply(connection.recv()))
