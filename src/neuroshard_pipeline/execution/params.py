"""Which engine runs a map, and where."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ExecutorParams(BaseModel):
    """Where the items of a map run.

    Attributes:
        engine: `local`: processes of this host (joblib's loky). `ray`: workers of a Ray cluster (joblib's Ray backend,
            extra [cluster]).
        address: with `ray`, of the running cluster: `auto` for the one that this host belongs to, or `host:port` of
            its head; null starts Ray on this host for as long as the program runs. `local` ignores it.
        workers: items that run at the same time, one CPU each; a cluster with fewer CPUs runs as many as it has.
        timeout_s: after so long without any result the workers count as hung and are replaced, in seconds; the
            start of the workers counts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["local", "ray"]
    address: str | None
    workers: int = Field(ge=1, le=1024)
    timeout_s: float = Field(gt=0)
