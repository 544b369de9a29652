"""The interface of a team of worker processes, and the server that answers jobs inside each of these processes."""

from collections.abc import Callable
from typing import Any, Protocol, final

from neuroshard_pipeline.errors import ExecutionError, NeuroShardError

#: `setup(rank, *arguments)` runs once in a worker and returns the function that answers jobs there.
SetUp = Callable[..., Callable[[Any], Any]]
#: (kind, content). The content is an answer, an error of this project, or the text of any other exception.
Reply = tuple[str, Any]


class TeamFailedError(Exception):
    """A worker died, hung or raised, or the team was closed; the message says why.

    Unless the team was closed, the next job starts new workers.
    """


class TeamLostError(TeamFailedError):
    """The team's worker is gone, and there is no room for a new one."""


class Team(Protocol):
    """One or more worker processes, numbered by ranks from 0, that do every job together."""

    def ask(self, job: Any, timeout_s: float) -> list[Any]:
        """Give a job to every worker and return their answers in the order of ranks.

        Raises:
            TeamFailedError: a worker died, hung, or raised an exception that is no `NeuroShardError`; or the team was
                closed.
            NeuroShardError: a worker raised it; another attempt would fail in the same way.
        """

    def close(self) -> None:
        """Stop for good. Another thread that waits in `ask` gets a `TeamFailedError`."""

    def kill(self) -> None:
        """End every worker at once."""


@final
class JobServer:
    """Answers jobs inside a worker; `setup` runs with the first job."""

    def __init__(self, setup: SetUp, arguments: tuple[Any, ...]) -> None:
        self._setup = setup
        self._arguments = arguments
        self._answer: Callable[[Any], Any] | None = None

    def reply(self, job: Any) -> Reply:
        """Do a job and return its reply; `read_reply` turns the reply into an answer or an exception."""
        try:
            if self._answer is None:
                self._answer = self._set_up()
            return "answer", self._answer(job)
        except NeuroShardError as problem:
            return "refusal", problem
        except Exception as problem:
            return "failure", f"{type(problem).__name__}: {problem}"

    def _set_up(self) -> Callable[[Any], Any]:
        try:
            return self._setup(*self._arguments)
        except NeuroShardError:
            raise
        except Exception as problem:
            raise ExecutionError(f"a worker cannot be set up: {type(problem).__name__}: {problem}") from problem


def read_reply(reply: Reply, worker: str) -> Any:
    """The answer in a reply of `JobServer`; `worker` is the name of the worker for the message.

    Raises:
        TeamFailedError: the worker raised any other exception than a `NeuroShardError`.
        NeuroShardError: the worker raised this error.
    """
    kind, content = reply
    if kind == "refusal":
        raise content
    if kind == "failure":
        raise TeamFailedError(f"{worker} failed: {content}")
    return content
