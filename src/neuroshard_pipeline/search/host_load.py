"""Cost that a table adds to the ranks of a host if its rows are cut over them. A search balances hosts by it."""

from collections.abc import Sequence

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.search.parts import outputs_per_sample
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.step_prices import step_prices
from neuroshard_pipeline.tables.samples import Reduction
from neuroshard_pipeline.tables.table import Shard

_BYTES_PER_FLOAT = 4.0
_REDUCTIONS: tuple[Reduction, ...] = ("reduce_scatter", "all_gather")


def host_loads_ms(problem: Problem, shards: Sequence[Shard]) -> FloatArray:
    """(S,) ms that each row shard of a table on one host adds to its rank, without launches of kernels.

    They consist of the shard's lookup, input dist and module work, and of a part for reductions: how much more two
    reductions of the table's outputs cost if these have twice their bytes. The models must price whole steps.
    """
    task, models, step = problem.task, problem.models, problem.step
    embeddings = problem.known.embeddings(shards)
    lookups = models.compute.costs_from_sums(embeddings, task.batch_size).sum(axis=-1)
    nothing = models.compute.costs_from_sums(np.zeros_like(embeddings[:1]), task.batch_size).sum(axis=-1)
    floats = np.array([outputs_per_sample(shard, task) for shard in shards]) * task.batch_size
    sizes = _BYTES_PER_FLOAT * task.comm_share * floats
    world, local = task.ranks_per_host, task.ranks_per_host
    smaller, larger = (
        sum(step.reductions.predict_ms(name, times * sizes, world, local) for name in _REDUCTIONS) for times in (1, 2)
    )
    own_ms = (problem.step_prices or step_prices(step, task)).own_ms(shards)
    return np.asarray(np.maximum(lookups - nothing, 0.0) + own_ms + (larger - smaller))
