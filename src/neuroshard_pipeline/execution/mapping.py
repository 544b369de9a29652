"""Hands items out to workers and takes results in as they come; a worker that dies takes nothing along."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing import TimeoutError as PoolTimeoutError
from threading import Event
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, final

from joblib import Parallel, delayed
from joblib._parallel_backends import LokyBackend
from joblib.executor import get_memmapping_executor

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.execution.params import ExecutorParams

Item = TypeVar("Item")
Value = TypeVar("Value")

#: An item that was alone with its worker when that died is given up at this death.
_DEATHS_OF_AN_ITEM = 2


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """What became of one item.

    Attributes:
        index: of the item, in the given order.
        value: what the function returned, None where it failed.
        error: why it failed, or None: it raised, or its worker died or hung in each of several attempts.
    """

    index: int
    value: Value | None
    error: str | None


@final
class _LocalBackend(LokyBackend):
    """joblib's processes of this host, also where there is only one: the stock backend would then start none."""

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Start the workers."""
        environment = self._prepare_worker_env(n_jobs=n_jobs)
        self._workers = get_memmapping_executor(n_jobs, env=environment, context_id=parallel._id)
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def effective_n_jobs(self, n_jobs: int) -> int:
        """How many workers joblib believes in: with one it would run everything in this process."""
        return max(n_jobs, 2)


class Executor:
    """Workers that stay for several maps; a context manager.

    When a worker dies, the items that were with the workers then are handed out again, in two halves: the half with an
    item that kills its worker shrinks until that item is alone. Every such death ends the other workers, too, and
    starts new ones; what they had finished stays.

    Args:
        params: engine, place and number of workers.
        gpus_per_worker: with `ray`, what one worker occupies besides a CPU.

    Raises:
        ExecutionError: Ray is missing or cannot be reached.
    """

    def __init__(self, params: ExecutorParams, gpus_per_worker: int = 0) -> None:
        self._params = params
        self._gpus_per_worker = gpus_per_worker
        self._lost_workers = False
        self._parallel: Parallel | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def map(self, function: Callable[[Item], Value], items: Iterable[Item]) -> Iterator[Outcome[Value]]:
        """Yield an outcome for every item, in the order in which they finish.

        Args:
            function: importable, or what cloudpickle can send.
            items: what it is called with, one at a time; each is taken when a worker is about to need it.

        Raises:
            NeuroShardError: `function` raised it; it concerns more than one item, and the map ends.
        """
        batches: list[Iterator[tuple[int, Item]]] = [enumerate(items)]
        deaths: Counter[int] = Counter()
        while batches:
            pairs = batches.pop()
            with_workers: dict[int, Item] = {}
            try:
                for outcome in self._run(function, pairs, with_workers):
                    del with_workers[outcome.index]
                    yield outcome
            except _worker_deaths(self._params) as problem:
                self._stop()
                self._lost_workers = True
                batches.append(pairs)  # what was not handed out yet
                if len(with_workers) == 1:
                    (index,) = with_workers
                    deaths[index] += 1
                    if deaths[index] == _DEATHS_OF_AN_ITEM:
                        yield Outcome(index, None, _told(problem))
                        continue
                batches += _halves(with_workers)

    def _run(
        self, function: Callable[[Item], Value], pairs: Iterator[tuple[int, Item]], with_workers: dict[int, Item]
    ) -> Iterator[Outcome[Value]]:
        """Outcomes as they come; `with_workers` learns what has been handed out."""
        first = next(pairs, None)
        if first is None:
            return
        with_workers.update([first])

        enough = Event()

        def calls() -> Iterator[Any]:
            for index, item in chain([first], pairs):
                if enough.is_set():
                    return
                with_workers[index] = item
                yield delayed(_call)(function, index, item)

        if self._parallel is None:
            self._parallel = self._workers().__enter__()
        outcomes = self._parallel(calls())
        try:
            for outcome in outcomes:  # noqa: UP028 - `yield from` would close them before we can
                yield outcome
        except GeneratorExit:  # joblib may fall over its own threads when it is stopped: let it end what has begun
            enough.set()
            with suppress(NeuroShardError, *_worker_deaths(self._params)):
                deque(outcomes, maxlen=0)
            raise

    def _workers(self) -> Parallel:
        """Workers of the engine that is asked for; one item at a time goes to each."""
        params = self._params
        common: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": 1, "timeout": params.timeout_s}
        if params.engine == "local":
            return Parallel(params.workers, backend=_LocalBackend(), **common)
        from neuroshard_pipeline.execution import ray_engine

        ray_engine.connect(params)
        room = ray_engine.room(self._gpus_per_worker, ask_hosts=self._lost_workers)
        return Parallel(min(params.workers, room), backend=ray_engine.backend(self._gpus_per_worker), **common)

    def _stop(self) -> None:
        parallel, self._parallel = self._parallel, None
        if parallel is not None:
            parallel.__exit__(None, None, None)


def map_items(
    function: Callable[[Item], Value], items: Iterable[Item], params: ExecutorParams
) -> Iterator[Outcome[Value]]:
    """Map once: see `Executor.map`."""
    with Executor(params) as executor:
        yield from executor.map(function, items)


def _call(function: Callable[[Item], Value], index: int, item: Item) -> Outcome[Value]:
    """One item in a worker; whatever is the item's own fault becomes its outcome."""
    try:
        return Outcome(index, function(item), None)
    except NeuroShardError:
        raise
    except Exception as problem:
        return Outcome(index, None, f"{type(problem).__name__}: {problem}")


def _worker_deaths(params: ExecutorParams) -> tuple[type[BaseException], ...]:
    """What joblib raises when a worker dies or hangs."""
    deaths: tuple[type[BaseException], ...] = (BrokenExecutor, FutureTimeoutError, PoolTimeoutError)
    if params.engine == "local":
        return deaths
    from neuroshard_pipeline.execution import ray_engine

    return (*deaths, *ray_engine.worker_deaths())


def _halves(items: Mapping[int, Item]) -> list[Iterator[tuple[int, Item]]]:
    pairs = list(items.items())
    middle = len(pairs) // 2
    return [iter(half) for half in (pairs[:middle], pairs[middle:]) if half]


def _told(problem: BaseException) -> str:
    """The reason in one line."""
    first_line = (str(problem).strip().splitlines() or [""])[0]
    return f"its worker died or hung {_DEATHS_OF_AN_ITEM} times: {type(problem).__name__} {first_line}".strip()
