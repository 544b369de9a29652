"""Plans with tiers for sequence tables. By the lab's formulas, their collectives take close to the least time.

The tiers are those at which the bound of `communication_bound` is attained. They may exceed the memory by the rows of
one class of equally popular rows. All tiers therefore keep the same share of their rows, the largest that fits. A host
tier then keeps equally many rows on every rank of a host. The bound limits how far the result is from the best plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from communication_bound import communication_bound
from fewest_bytes import plan_with_cuts
from row_popularity import RowPopularity

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.popularity import PopularityCurve
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts

#: The largest share of the tiers' rows that fits is sought to this precision.
_PRECISION = 2.0**-7


def plan_with_least_communication(
    task: ShardingTask,
    popularities: Mapping[str, RowPopularity],
    curves: Mapping[str, PopularityCurve],
    models: Models,
    network: NetworkParams,
) -> Plan:
    """The plan; its cold rows are row-wise.

    Raises:
        PlanError: not even the tables without tiers fit the memory.
        TaskError: the bound does not apply to the task (see `communication_bound`).
    """
    task = replace(task, tiers=True)
    cuts = communication_bound(task, popularities, default_memory(), network).cuts

    def plan_with(share: float) -> Plan:
        shorter = {name: _shortened(own, share, task.ranks_per_host) for name, own in cuts.items()}
        return plan_with_cuts(task, shorter, curves, models, "least_communication")

    low, step = 0.0, 0.5
    try:
        return plan_with(1.0)
    except PlanError:
        best = plan_with(low)
    while step >= _PRECISION:
        with suppress(PlanError):
            best, low = plan_with(low + step), low + step
        step /= 2
    return best


def _shortened(cuts: Cuts, share: float, ranks_per_host: int) -> Cuts:
    host_rows = int(share * cuts.host_rows)
    return Cuts(int(share * cuts.hot_rows), host_rows - host_rows % ranks_per_host)
