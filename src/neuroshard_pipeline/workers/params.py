"""Where worker processes run. They process items, such as chunks of samples to measure or tasks to solve."""

from typing import Literal

from pydantic import Field

from neuroshard_pipeline.parameters import Parameters


class WorkerParams(Parameters):
    """Where the workers run, and how many there are.

    Attributes:
        engine: `local` starts processes on this host. `ray` starts workers on a Ray cluster (extra [cluster]).
        address: address of the running Ray cluster: `auto` for the cluster that this host belongs to, or `host:port`
            of its head. Null starts Ray on this host for as long as the program runs. `local` ignores the address.
        workers: number of items that are processed at the same time. A worker of a Ray cluster needs one CPU, and for
            lookups on GPUs also one GPU; if the cluster has room for fewer workers, it processes fewer items at a time.
        timeout_s: time limit for one item in seconds, including the start of its worker. A worker that exceeds it
            counts as hung and is replaced.
    """

    engine: Literal["local", "ray"]
    address: str | None
    workers: int = Field(ge=1, le=1024)
    timeout_s: float = Field(gt=0)
