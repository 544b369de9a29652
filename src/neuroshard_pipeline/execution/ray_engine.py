"""joblib's Ray backend, so that a dead worker ends one map and not the program. Import this module late."""

from __future__ import annotations

from typing import Any, final

from neuroshard_pipeline.errors import ExecutionError
from neuroshard_pipeline.execution.params import ExecutorParams

try:
    import ray
    from ray.util.joblib.ray_backend import RayBackend
    from ray.util.multiprocessing import Pool
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as problem:
    raise ExecutionError(
        f"engine ray needs Ray, which cannot be imported ({problem}); install the project with the extra [cluster], "
        "or use the engine local"
    ) from problem


#: A host that has not run an empty task for so long is taken for dead.
_ANSWER_S = 10.0


@final
class _Backend(RayBackend):
    """Ray's backend, from which results can be taken as they come, and whose single worker is a worker, too."""

    # joblib's multiprocessing backend, its base, hangs when an unfinished generator is collected; ours is used up or
    # closed by the map itself, and ending Ray's workers does not wait for them.
    supports_return_generator = True

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:  # type: ignore[override]
        """Start the workers."""
        self._pool = Pool(n_jobs, ray_remote_args=self.ray_remote_args)
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def effective_n_jobs(self, n_jobs: int) -> int:
        """How many workers joblib believes in: with one it would run everything in this process."""
        return max(n_jobs, 2)

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002
        """End the workers and start no new ones: the cluster may have fewer CPUs than a moment ago."""
        self.terminate()


def connect(params: ExecutorParams) -> None:
    """Join the cluster, or start one on this host.

    Raises:
        ExecutionError: no cluster answers at the address.
    """
    if ray.is_initialized():
        return
    where = {"num_cpus": params.workers} if params.address is None else {"address": params.address}
    try:
        ray.init(**where, include_dashboard=False, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as problem:
        raise ExecutionError(
            f"no Ray cluster answers at {params.address!r} ({problem}); start one with `ray start --head`, "
            "or give null to start Ray here"
        ) from problem


def room(gpus_per_worker: int, ask_hosts: bool) -> int:
    """How many workers of one CPU and `gpus_per_worker` GPUs the cluster has room for.

    Args:
        gpus_per_worker: 0 for none.
        ask_hosts: count hosts that answer now, instead of those that the cluster takes to be alive: it finds out
            about a dead one after half a minute.

    Raises:
        ExecutionError: there is no room for any.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    hosts = _answering(alive) if ask_hosts else alive
    number = sum(_room_on(node["Resources"], gpus_per_worker) for node in hosts)
    if not number:
        raise ExecutionError(
            f"none of the {len(hosts)} hosts of the Ray cluster has a CPU and {gpus_per_worker} GPUs to work with; "
            "start workers with `ray start --address <head>:6379`"
        )
    return number


def backend(gpus_per_worker: int) -> RayBackend:
    """A fresh backend for such workers."""
    return _Backend(ray_remote_args={"num_cpus": 1, "num_gpus": gpus_per_worker})


def worker_deaths() -> tuple[type[BaseException], ...]:
    """What Ray raises when a worker or its host dies."""
    return (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)


def _room_on(resources: dict[str, float], gpus_per_worker: int) -> int:
    cpus = int(resources.get("CPU", 0))
    return min(cpus, int(resources.get("GPU", 0)) // gpus_per_worker) if gpus_per_worker else cpus


def _answering(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those hosts on which a task runs."""
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
