"""Refinement: samples of the best plans and their runners-up are measured and added to the training data.

A sample is one lookup kernel of a rank, or one pair of all-to-alls. The first campaign, of the stage measure, measured
the first training data. The machine's drift since then is removed from the new costs (`anchors`), so that a model can
be trained on old and new costs together. The frames of new samples have two extra columns: `round`, the number of the
run that measured them, and `campaign`, a hash of the first campaign. Samples with another hash are ignored.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

import pandas as pd
from pydantic import Field

from neuroshard_pipeline.augment.task_draws import ShardingTaskParams, sharding_tasks
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.evaluation.anchors import Anchors, measure_as_at_first
from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.measured_samples import MeasuredSamples
from neuroshard_pipeline.evaluation.plan_samples import (
    forward_comm_samples,
    own_costs_ms,
    rank_compute_samples,
    volumes,
)
from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import shortlist
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.task import ShardingTask

_LOGGER = logging.getLogger(__name__)

#: Columns that refinement adds to the frames of samples and costs.
EXTRA_COLUMNS = ("round", "campaign")


class RefineParams(Parameters):
    """What one round of refinement measures. The tasks are drawn like those of the augment stage.

    Attributes:
        tasks_per_world_size: number of tasks for each world size of the augment stage.
        sharders: sharders whose plans are used; they must be able to list the runners-up of the best plan.
        plans_per_task: number of plans that each sharder contributes per task: the best plan and its runners-up.
        max_compute_samples: maximum number of new compute samples; those of the best plans come first.
        max_comm_samples: maximum number of new communication samples.
        seed: seed of the sharders. Tasks are drawn with `seed` + 1000 * round, which should be no other stage's seed.
    """

    tasks_per_world_size: tuple[int, ...] = Field(min_length=1)
    sharders: tuple[Literal["neuroshard", "neuroshard_plus"], ...] = Field(min_length=1)
    plans_per_task: int = Field(ge=1, le=10_000)
    max_compute_samples: int = Field(ge=1, le=1_000_000)
    max_comm_samples: int = Field(ge=1, le=1_000_000)
    seed: int = Field(ge=0)

    def draw_tasks(self, pool: pd.DataFrame, like: ShardingTaskParams, round_number: int) -> pd.DataFrame:
        """A frame of tasks, drawn with the parameters `like`, except for the number of tasks and the seed."""
        changes = {"tasks_per_world_size": self.tasks_per_world_size, "seed": self.seed + 1000 * round_number}
        tasks = sharding_tasks(pool, ShardingTaskParams.model_validate(like.model_dump() | changes))
        return tasks.assign(task_id=f"refine-{round_number}-" + tasks["task_id"])


@dataclass(frozen=True)
class NewSamples:
    """Samples that some plans contain and the training data lacks.

    Attributes:
        compute: compute samples.
        comm: communication samples.
    """

    compute: tuple[ComputeSample, ...]
    comm: tuple[CommSample, ...]

    @classmethod
    def of(cls, plans: Sequence[Plan], known: Collection[str], params: RefineParams) -> Self:
        """New samples in the order of `plans`, up to the maxima of `params`; `known`: ids of training samples."""
        compute = new_compute_samples(plans, known)[: params.max_compute_samples]
        return cls(tuple(compute), tuple(new_comm_samples(plans, known)[: params.max_comm_samples]))


def candidate_plans(
    tasks: Iterable[ShardingTask], models: Models, params: RefineParams, settings: SharderSettings
) -> list[Plan]:
    """Plans of every sharder and task: all best plans, then all second-best plans, and so on.

    If a sharder finds no plan for a task, the plans of the other sharders for this task are still used.
    """
    shortlists = []
    for task in tasks:
        for sharder in params.sharders:
            with suppress(DoesNotFitError):
                plans = shortlist(task, models, sharder, settings, params.seed, params.plans_per_task)
                shortlists.append(plans)
    return [plans[place] for place in range(params.plans_per_task) for plans in shortlists if place < len(plans)]


def new_compute_samples(plans: Sequence[Plan], known: Collection[str]) -> list[ComputeSample]:
    """The distinct compute samples of all ranks of the plans. Samples whose id is in `known` are left out.

    Row shards, replicas and sequence tables of tasks with `index_dedup` are left out, too: their kernels see tables
    that the table pool does not contain.
    """
    pool = {table for plan in plans for table in plan.task.tables}
    new = (sample for sample in rank_compute_samples(plans).samples if sample.sample_id not in known)
    return [sample for sample in new if all(shard.table in pool for shard in sample.shards)]


def new_comm_samples(plans: Sequence[Plan], known: Collection[str]) -> list[CommSample]:
    """The distinct all-to-alls of the plans, with predicted start skews. Samples whose id is in `known` are left out.

    Plans of one task and sharder often have the same volumes in another order of the ranks. Only the first of these
    plans is used, because on one host the predicted costs do not depend on this order.
    """
    first: dict[tuple[object, ...], tuple[Plan, PlanCost]] = {}
    for plan in plans:
        if plan.predicted is not None:
            dims = (tuple(sorted(dim_sums)) for dim_sums in volumes(plan))
            first.setdefault((plan.task.task_id, plan.sharder, *dims), (plan, plan.predicted))
    chosen, costs = [plan for plan, _ in first.values()], [cost for _, cost in first.values()]
    own_ms = own_costs_ms(chosen, [cost.compute_ms for cost in costs], [cost.reduction_ms for cost in costs])
    samples = forward_comm_samples(chosen, own_ms, [cost.backward_comm_ms for cost in costs]).samples
    return [sample for sample in samples if sample.sample_id not in known]


def measure_new(
    samples: NewSamples, table_pool: pd.DataFrame, campaigns: Campaigns, anchors: Anchors
) -> MeasuredSamples:
    """Measure new samples together with anchors, and remove the drift from their costs."""
    compute_costs, compute_drifts = measure_as_at_first(
        samples.compute, (anchors.compute, anchors.compute_costs), campaigns.compute.measure
    )
    comm_costs, comm_drifts = measure_as_at_first(
        samples.comm, (anchors.comm, anchors.comm_costs), campaigns.comm.measure
    )
    message = "%s costs drifted by %+.1f %% since the first campaign (%d anchors); the new costs are corrected for it"
    for kind, drifts in (("compute", compute_drifts), ("communication", comm_drifts)):
        for direction, drift in drifts.items():
            _LOGGER.info(message, f"{kind} {direction.removesuffix('_ms')}", 100 * (drift.ratio - 1), drift.anchors)
    return MeasuredSamples.of(table_pool, (samples.compute, compute_costs), (samples.comm, comm_costs))


def campaign_id(first: MeasuredSamples) -> str:
    """A hash of the pool and the costs of the first campaign; it changes if either of them changes."""
    frames = (
        first.table_pool[["table", "num_embeddings", "pooling_factor", "unique_rows"]],
        first.compute_costs[["sample_id", "forward_ms", "backward_ms"]],
        first.comm_costs[["sample_id", "rank", "forward_ms", "backward_ms"]],
    )
    hashes = [pd.util.hash_pandas_object(frame.astype({frame.columns[0]: str}), index=False) for frame in frames]
    return hashlib.sha256(b"".join(column.to_numpy().tobytes() for column in hashes)).hexdigest()[:16]


def of_campaign(refined: MeasuredSamples, first: MeasuredSamples) -> MeasuredSamples:
    """The samples of `refined` that were measured for the campaign `first`; a warning names other campaigns."""
    present = campaign_id(first)
    others = {campaign for frame in refined.frames() if len(frame) for campaign in frame["campaign"]} - {present}
    if others:
        _LOGGER.warning(
            "the table pool or the first campaign has changed: samples that refine measured before (campaign %s) are "
            "ignored; the current campaign is %s. Run `kedro run --pipeline refine` to measure samples for it",
            ", ".join(sorted(others)),
            present,
        )
    return refined.map_frames(lambda frame: frame[frame["campaign"] == present] if len(frame) else frame)


def appended(known: MeasuredSamples, new: MeasuredSamples, first: MeasuredSamples) -> MeasuredSamples:
    """The samples `known` from earlier rounds (`of_campaign`) and the `new` samples, with `EXTRA_COLUMNS`."""
    number, campaign = next_round(known), campaign_id(first)
    return known.joined(new.map_frames(lambda frame: frame.assign(round=number, campaign=campaign)))


def training_data(first: MeasuredSamples, refined: MeasuredSamples) -> MeasuredSamples:
    """The samples that cost models are trained on: the first campaign and what refine has measured for it, if any."""
    known = of_campaign(refined, first)
    return first.joined(known.map_frames(lambda frame: frame.drop(columns=list(EXTRA_COLUMNS), errors="ignore")))


def next_round(known: MeasuredSamples) -> int:
    """The number of the next round; the first round has number 1."""
    return 1 + max((int(frame["round"].max()) for frame in known.frames() if len(frame)), default=0)
