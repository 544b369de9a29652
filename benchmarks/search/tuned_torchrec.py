"""TorchRec's planner as a user would tune it: all proposers and partitioners of TorchRec 1.8, and table_column_wise.

With host memory, `two_memories.py` adds TorchEasyRec's dynamic program over GPU and host memory.
`EmbeddingOffloadScaleupProposer` is left out, because it asserts that every table has measured statistics of its
cache, which tasks do not have. The planner runs once per partitioner and number of column blocks. The plan that
TorchRec itself rates best is taken. Takes 3 to 35 times as long as one run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.torchrec import TorchRecSharder
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY
from neuroshard_pipeline.tables.task import ShardingTask

NAME = "torchrec_tuned"
#: The dynamic program proposes at most so many plans, instead of 100 per rank.
PROPOSALS = 100


def tuned_plan(task: ShardingTask, models: Models) -> Plan:
    """The plan that TorchRec rates best.

    Raises:
        DoesNotFitError: no run found a plan.
    """
    found = tuned_placement(Problem(task, models, default_memory()))
    return priced(Plan(found.task or task, found.shards, found.ranks, NAME), models)


def tuned_placement(problem: Problem) -> Placement:
    """The placement that TorchRec rates best.

    Raises:
        DoesNotFitError: no run found a plan.
    """
    from torchrec.distributed.planner.types import PlannerError

    task, best, rating = problem.task, None, np.inf
    for num_parts in _numbers_of_parts(max(table.embedding_dim for table in task.tables)):
        for options in _runs(task.world_size, task.host_memory_bytes is not None):
            try:
                found, rated = TorchRecSharder(NAME).attempt(problem, num_parts, ("table_column_wise",), **options)
            except PlannerError:
                continue
            if rated < rating:
                best, rating = found, rated
    if best is None:
        raise DoesNotFitError(f"{task.task_id}: TorchRec's planner found no plan")
    return best


def _numbers_of_parts(widest: int) -> Iterator[int]:
    """2, 4, 8, ... until a table of `widest` columns is cut into its narrowest blocks."""
    num_parts = 2
    yield num_parts
    while COLUMN_GRANULARITY * num_parts < widest:
        num_parts *= 2
        yield num_parts


def _runs(world_size: int, has_host_memory: bool) -> Iterator[dict[str, Any]]:
    from torchrec.distributed.planner import partitioners as of_shards
    from torchrec.distributed.planner import proposers

    for partitioner in (
        of_shards.GreedyPerfPartitioner(),
        of_shards.GreedyPerfPartitioner(of_shards.SortBy.PERF),
        of_shards.MemoryBalancedPartitioner(),
    ):
        chosen = [
            proposers.GridSearchProposer(),
            proposers.GreedyProposer(),
            proposers.GreedyProposer(use_depth=False),
            proposers.UniformProposer(),
            proposers.DynamicProgrammingProposer(max(1, PROPOSALS // world_size)),
        ]
        if has_host_memory:
            from two_memories import TwoMemoriesProposer

            chosen.append(TwoMemoriesProposer())
        yield {"partitioner": partitioner, "proposer": chosen}
