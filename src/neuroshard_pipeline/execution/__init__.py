"""Maps a function over items with joblib: processes of this host, or workers of a Ray cluster.

    params      which engine, and where
    mapping     hand items out, take results in, survive workers that die
    ray_engine  joblib's Ray backend

Across hosts, start a cluster with two commands (the project installed on every host, extra [cluster]):

    ray start --head --port 6379                   # on the first host, where the pipeline runs
    ray start --address <first host>:6379          # on every other host

and set `engine: ray`, `address: auto`.
"""

from neuroshard_pipeline.execution.mapping import Executor, Outcome, map_items
from neuroshard_pipeline.execution.params import ExecutorParams

__all__ = ["Executor", "ExecutorParams", "Outcome", "map_items"]
