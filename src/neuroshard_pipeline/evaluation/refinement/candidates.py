"""What a search's best plans and their runners-up contain: shard sets to look up, volumes to exchange."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.evaluation.plan_samples import forward_comm_samples, rank_compute_samples
from neuroshard_pipeline.evaluation.refinement.params import RefineParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.simulator import Models
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import shortlist
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.task import ShardingTask


def candidate_plans(
    tasks: Sequence[ShardingTask], models: Models, params: RefineParams, settings: SharderSettings
) -> list[Plan]:
    """Plans of every sharder and task: all best ones, then all second ones, and so on.

    A task for which a sharder finds no plan contributes none.
    """
    shortlists = [_shortlist(task, models, name, params, settings) for name in params.sharders for task in tasks]
    return [plans[place] for place in range(params.plans_per_task) for plans in shortlists if place < len(plans)]


def _shortlist(
    task: ShardingTask, models: Models, sharder: str, params: RefineParams, settings: SharderSettings
) -> list[Plan]:
    try:
        return shortlist(task, models, sharder, settings, params.seed, params.plans_per_task)
    except DoesNotFitError:
        return []


def new_compute_samples(plans: Sequence[Plan], known: Collection[str], most: int) -> list[ComputeSample]:
    """Distinct shard sets of the plans' ranks that are not `known` yet, those of the first plans first.

    Their ids name their content (`rank-` and a hash), so that equal sets of different plans are one sample.
    """
    fresh = [sample for sample in rank_compute_samples(plans).samples if sample.sample_id not in known]
    return fresh[:most]


def new_comm_samples(plans: Sequence[Plan], known: Collection[str], most: int) -> list[CommSample]:
    """Distinct collectives of the plans, with the start skew that the simulator predicts for them.

    Ids name the content (`collective-` and a hash), as those of compute samples do. The runners-up of a plan mostly
    differ in a few columns of two ranks: of collectives with equal volumes, the first plan's start skew stands for all.
    """
    with_cost = [plan for plan in _of_distinct_volumes(plans) if plan.predicted is not None]
    predicted = [plan.predicted for plan in with_cost if plan.predicted is not None]
    compute_ms, backward_ms = [cost.compute_ms for cost in predicted], [cost.backward_comm_ms for cost in predicted]
    fresh = forward_comm_samples(with_cost, compute_ms, backward_ms).samples
    return [sample for sample in fresh if sample.sample_id not in known][:most]


def _of_distinct_volumes(plans: Sequence[Plan]) -> list[Plan]:
    """The first plan of every task and sharder with the same sorted volumes: a model knows no order of ranks."""
    first: dict[tuple[object, ...], Plan] = {}
    for plan in plans:
        first.setdefault((plan.task.task_id, plan.sharder, *np.sort(plan.dim_sums).tolist()), plan)
    return list(first.values())
