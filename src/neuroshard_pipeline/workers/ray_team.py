"""A worker on a Ray cluster. Importing this module imports Ray, which is an extra."""

import threading
from collections.abc import Callable
from typing import Any, final

from neuroshard_pipeline.errors import ExecutionError
from neuroshard_pipeline.workers.params import WorkerParams
from neuroshard_pipeline.workers.team import JobServer, SetUp, TeamFailedError, TeamLostError, read_reply

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as problem:
    remedy = "install the project with the extra [cluster], or use the engine local"
    raise ExecutionError(f"engine ray needs Ray, which cannot be imported ({problem}); {remedy}") from problem

#: A host that has not run an empty task after this time counts as dead.
_ANSWER_S = 60.0


@final
class Cluster:
    """A Ray cluster and the number of our workers on it, each of which occupies a CPU and `gpus_per_worker` GPUs.

    Raises:
        ExecutionError: no cluster answers at the address, or Ray cannot be started.
    """

    def __init__(self, params: WorkerParams, gpus_per_worker: int) -> None:
        self._gpus_per_worker = gpus_per_worker
        self._running = 0
        self._changing = threading.Lock()
        if ray.is_initialized():
            return
        where = {"num_cpus": params.workers} if params.address is None else {"address": params.address}
        try:
            ray.init(**where, include_dashboard=False, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as problem:
            raise ExecutionError(
                f"no Ray cluster can be reached or started at address {params.address!r} ({problem}); start one with "
                "`ray start --head` and give its address, or give null to start Ray on this host"
            ) from problem

    def room(self, ask_hosts: bool = False) -> int:
        """Number of workers with a CPU and `gpus_per_worker` GPUs each that fit on the cluster, including running ones.

        With `ask_hosts`, only hosts that answer now count. Ray itself notices a dead host only after half a minute.

        Raises:
            ExecutionError: no worker fits.
        """
        alive = [node for node in ray.nodes() if node["Alive"]]
        hosts = _answering(alive) if ask_hosts else alive
        gpus = self._gpus_per_worker
        rooms = [(int(of.get("CPU", 0)), int(of.get("GPU", 0))) for of in (node["Resources"] for node in hosts)]
        number = sum(min(cpus, cards // gpus) if gpus else cpus for cpus, cards in rooms)
        if not number:
            needed = f"a CPU and {self._gpus_per_worker} GPUs for a worker"
            remedy = "start hosts with `ray start --address <head>:6379`"
            raise ExecutionError(f"none of the {len(hosts)} hosts of the Ray cluster has {needed}; {remedy}")
        return number

    def start(self, setup: SetUp, arguments: tuple[Any, ...], is_replacement: bool) -> Any:
        """Start a worker and return its actor.

        Raises:
            TeamLostError: the worker replaces a failed one, and the remaining hosts have no room for it.
            ExecutionError: it replaces a failed one, and no remaining host has a CPU and enough GPUs for any worker.
        """
        with self._changing:
            if is_replacement and self._running >= (room := self.room(ask_hosts=True)):
                raise TeamLostError(f"the Ray cluster has room for {room} workers only")
            self._running += 1
        actor = ray.remote(num_cpus=1, num_gpus=self._gpus_per_worker)(JobServer)
        return actor.remote(setup, arguments)

    def stop(self, actor: Any) -> None:
        """End a worker."""
        with self._changing:
            self._running -= 1
        ray.kill(actor)


@final
class RayTeam:
    """One worker on a Ray cluster. It starts with the first job, and with the next job after a failure. See `Team`.

    The importable function `setup` runs in the worker, with 0, the worker's rank, and the result of `arguments`, which
    this process calls at every start of the worker.
    """

    def __init__(self, cluster: Cluster, setup: SetUp, arguments: Callable[[], tuple[Any, ...]]) -> None:
        self._cluster = cluster
        self._setup = setup
        self._arguments = arguments
        self._actor: Any = None
        self._has_failed = False
        self._closed = False

    def ask(self, job: Any, timeout_s: float) -> list[Any]:
        """See `Team.ask`.

        Raises:
            TeamLostError: the cluster has no room for a new worker.
        """
        if self._closed:
            raise TeamFailedError("the team was closed")
        try:
            if self._actor is None:
                self._actor = self._cluster.start(self._setup, (0, *self._arguments()), self._has_failed)
            return [read_reply(self._reply(job, timeout_s), "the worker")]
        except ray.exceptions.RayError as problem:
            self._fail()
            first_line = (str(problem).strip().splitlines() or [""])[0]
            raise TeamFailedError(f"the worker died: {type(problem).__name__} {first_line}") from problem
        except BaseException:
            self._fail()
            raise

    def kill(self) -> None:
        """See `Team.kill`."""
        actor, self._actor = self._actor, None
        if actor is not None:
            self._cluster.stop(actor)

    def close(self) -> None:
        """See `Team.close`."""
        self._closed = True
        self.kill()

    def _fail(self) -> None:
        self._has_failed = True
        self.kill()

    def _reply(self, job: Any, timeout_s: float) -> Any:
        reference = self._actor.reply.remote(job)
        if not ray.wait([reference], timeout=timeout_s)[0]:
            raise TeamFailedError(f"the worker did not answer within {timeout_s:g} s")
        return ray.get(reference)


def _answering(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The hosts that run an empty task within `_ANSWER_S`."""
    ping = ray.remote(num_cpus=0)(lambda: None)
    asked = {
        ping.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(): node
        for node in nodes
    }
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
    return [asked[reference] for reference in done if _succeeded(reference)]


def _succeeded(reference: Any) -> bool:
    try:
        ray.get(reference)
    except ray.exceptions.RayError:
        return False
    return True
