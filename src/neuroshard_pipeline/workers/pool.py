"""Hands items to idle teams of worker processes (`team.Team`) and yields the outcome of every item when it finishes.

Teams form numbered groups. Every team of a group can do every item of that group.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, final

from neuroshard_pipeline.errors import ExecutionError
from neuroshard_pipeline.workers.team import Team, TeamFailedError, TeamLostError

Value = TypeVar("Value")

#: An item is given up when it has failed this many times: a worker died, hung, or raised an exception other than a
#: `NeuroShardError`, which would end the run.
ATTEMPTS = 2


@dataclass(frozen=True)
class Item:
    """A job (`Team.ask`), and the number of the group of teams that can do it."""

    job: Any
    group: int = 0


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """The result of the item at position `index` of the given items, or why it failed; the other one is None."""

    index: int
    value: Value | None
    error: str | None


@final
class Pool:
    """Runs items on several teams at the same time; a context manager.

    A team whose worker died gets a new worker with its next item. A team that cannot get one is dropped, and
    the remaining teams do its items.

    Args:
        open_teams: called once, when the first item is taken; returns the teams of every group.
        timeout_s: time limit for one item, in seconds.
        parallel: number of items that may run at the same time; None for as many as there are teams.
    """

    def __init__(
        self, open_teams: Callable[[], Mapping[int, Sequence[Team]]], timeout_s: float, parallel: int | None = None
    ) -> None:
        self._open_teams = open_teams
        self._timeout_s = timeout_s
        self._parallel = parallel
        self._idle: dict[int, list[Team]] = {}
        self._teams: list[tuple[int, Team]] = []
        self._threads: ThreadPoolExecutor | None = None  # its threads only wait for workers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, team in self._teams:
            team.close()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        for _, team in self._teams:
            team.kill()

    def run(self, items: Iterable[Item], attempts: int = ATTEMPTS) -> Iterator[Outcome[list[Any]]]:
        """Yield the outcome of every item as it finishes; its value is the list of the workers' answers.

        A caller that stops before the last outcome must leave the pool's context; the pool cannot run again after that.

        Args:
            items: taken one at a time, in the given order, when a team becomes idle.
            attempts: maximum number of tries of an item that fails (see `ATTEMPTS`).

        Raises:
            NeuroShardError: a worker raised it.
            ExecutionError: a group has no team, or has lost its last one.
        """
        queue = enumerate(items)
        again: deque[tuple[int, Item]] = deque()
        failures: Counter[int] = Counter()
        running: dict[Future[list[Any]], tuple[Team, int, Item]] = {}
        self._start(running, again, queue)
        while running:
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            team, index, item = running.pop(future)
            problem = future.exception()
            if isinstance(problem, TeamLostError):
                self._teams = [(group, each) for group, each in self._teams if each is not team]
                self._require_team(item.group, str(problem))
            else:
                self._idle[item.group].append(team)
                failures[index] += isinstance(problem, TeamFailedError)
            if isinstance(problem, TeamFailedError):
                if failures[index] < attempts:
                    again.append((index, item))
                else:
                    yield Outcome(index, None, str(problem))  # first, because the caller may end `items` now
            self._start(running, again, queue)  # before the caller spends time on saving the outcome
            if not isinstance(problem, TeamFailedError):
                yield Outcome(index, future.result(), None)
        if again:
            raise RuntimeError("the pool is running already; wait until that run has ended")

    def _start(
        self,
        running: dict[Future[list[Any]], tuple[Team, int, Item]],
        again: deque[tuple[int, Item]],
        queue: Iterator[tuple[int, Item]],
    ) -> None:
        """Hand out items, first those that are tried again or wait for a team, until no team can take the next one."""
        while self._threads is None or len(running) < (self._parallel or len(self._teams)):
            pair = again.popleft() if again else next(queue, None)
            if pair is None:
                return
            index, item = pair
            if self._threads is None:
                self._idle = {group: list(teams) for group, teams in self._open_teams().items()}
                self._teams = [(group, team) for group, teams in self._idle.items() for team in teams]
                self._threads = ThreadPoolExecutor(self._parallel or max(len(self._teams), 1))
            self._require_team(item.group, f"no team was started for group {item.group} of item {index}")
            if not self._idle[item.group]:
                again.appendleft(pair)
                return
            team = self._idle[item.group].pop()
            running[self._threads.submit(team.ask, item.job, self._timeout_s)] = team, index, item

    def _require_team(self, wanted: int, problem: str) -> None:
        if not any(group == wanted for group, _ in self._teams):
            raise ExecutionError(problem)
