"""Runs work in other processes, on this host or on a Ray cluster, and goes on if one of them dies.

A team is one worker process, or several that do every job together, such as the ranks of a collective.

    params      where the workers run
    team        the interface of a team, and what happens inside a worker
    local_team  a team of processes of this host
    ray_team    a worker on a Ray cluster
    pool        hands items to idle teams and survives the death of workers
    mapping     applies a function to many items in parallel; one worker processes each item
    cores       pins a process to a core

`docs/clusters.md` says how to start a Ray cluster.
"""

from neuroshard_pipeline.workers.cores import settle_on_core, settle_on_free_core
from neuroshard_pipeline.workers.local_team import LocalTeam
from neuroshard_pipeline.workers.mapping import map_items, single_workers
from neuroshard_pipeline.workers.params import WorkerParams
from neuroshard_pipeline.workers.pool import ATTEMPTS, Item, Outcome, Pool
from neuroshard_pipeline.workers.team import Team, TeamFailedError

__all__ = [
    "ATTEMPTS",
    "Item",
    "LocalTeam",
    "Outcome",
    "Pool",
    "Team",
    "TeamFailedError",
    "WorkerParams",
    "map_items",
    "settle_on_core",
    "settle_on_free_core",
    "single_workers",
]
