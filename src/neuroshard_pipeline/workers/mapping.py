"""Applies a function to many items in parallel. Each item is processed by one worker."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.host import usable_cores
from neuroshard_pipeline.workers.local_team import LocalTeam
from neuroshard_pipeline.workers.params import WorkerParams
from neuroshard_pipeline.workers.pool import Item, Outcome, Pool
from neuroshard_pipeline.workers.team import SetUp, Team

Input = TypeVar("Input")
Value = TypeVar("Value")


def map_items(
    function: Callable[[Input], Value], items: Iterable[Input], params: WorkerParams, preload: Sequence[str] = ()
) -> Iterator[Outcome[Value]]:
    """Yield an outcome for every item, in the order in which the items finish.

    An item whose worker died or hung is tried once more.

    Args:
        function: importable function, or instance of an importable class; it is sent to every worker once.
        items: the arguments of the calls. The next item is taken when a worker becomes idle.
        params: where the workers run.
        preload: see `LocalTeam`.

    Raises:
        NeuroShardError: `function` raised it. Such an error concerns more than one item, so it ends the whole call.
        ExecutionError: Ray is missing, cannot be reached, or has no room for any worker.
    """
    sharing = params.workers if params.engine == "local" else None  # Ray itself gives a worker one thread per CPU

    def open_teams() -> dict[int, list[Team]]:
        return {0: single_workers(params, _set_up, lambda _: (function, sharing), preload=preload)}

    with Pool(open_teams, params.timeout_s) as pool:
        for outcome in pool.run(Item(item) for item in items):
            if outcome.value is None:
                yield Outcome(outcome.index, None, outcome.error)
            else:
                ((value, error),) = outcome.value
                yield Outcome(outcome.index, value, error)


def single_workers(
    params: WorkerParams,
    setup: SetUp,
    arguments: Callable[[int], tuple[Any, ...]],
    *,
    gpus_per_worker: int = 0,
    preload: Sequence[str] = (),
) -> list[Team]:
    """Teams of one worker each, as many as `params` and the room on the cluster allow; see `LocalTeam` and `RayTeam`.

    `arguments` is given the number of a worker, and returns the arguments of its `setup` after the first one, which is
    0. A worker occupies `gpus_per_worker` GPUs besides a CPU.

    Raises:
        ExecutionError: Ray is missing, cannot be reached, or has no room for any worker.
    """
    calls = [partial(arguments, worker) for worker in range(params.workers)]
    if params.engine == "local":
        return [LocalTeam(1, setup, call, spawn=gpus_per_worker > 0, preload=preload) for call in calls]
    from neuroshard_pipeline.workers import ray_team  # Ray is an extra

    cluster = ray_team.Cluster(params, gpus_per_worker)
    return [ray_team.RayTeam(cluster, setup, call) for call in calls[: cluster.room()]]


def _set_up(_: int, function: Callable[[Any], Any], sharing: int | None) -> Callable[[Any], tuple[Any, str | None]]:
    """Limit this worker to its share of the threads, and return the function that answers its jobs.

    `sharing` workers share the host's threads; with None, the threads of each worker are limited already.
    """
    if sharing is not None:
        threads = max(1, len(usable_cores()) // sharing)
        if find_spec("torch"):  # an extra, which searches do without; the server that forks local workers imports it
            torch = import_module("torch")
            threads = max(1, torch.get_num_threads() // sharing)
            torch.set_num_threads(threads)
        threadpool_limits(threads)  # of the libraries that NumPy calls; the limit holds for the rest of the process
    tqdm.set_lock(threading.RLock())  # tqdm's own lock is a semaphore, which a worker that is killed would leak
    return partial(_call, function)


def _call(function: Callable[[Any], Any], item: Any) -> tuple[Any, str | None]:
    """(value, error) of one item; a `NeuroShardError` is raised instead and ends `map_items`."""
    try:
        return function(item), None
    except NeuroShardError:
        raise
    except Exception as problem:
        return None, f"{type(problem).__name__}: {problem}"
