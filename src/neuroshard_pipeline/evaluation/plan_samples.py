"""Lists the samples to measure for plans, and assigns the measured costs of the samples to the plans' ranks."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import numpy as np
import pandas as pd

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import start_skew_ms
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: Start skews are rounded to 0.1 microseconds, far below the noise of any clock, so that more samples are identical.
_SKEW_DECIMALS = 4

#: Task id → mark; see `session_marks`.
Marks = Mapping[str, str]
NO_MARKS: Marks = {}

Sample = TypeVar("Sample", ComputeSample, CommSample)


@dataclass(frozen=True)
class PlanSamples(Generic[Sample]):
    """Samples of plans; equal samples are measured once.

    Attributes:
        samples: distinct samples.
        sample_ids: sample id per plan and rank. It is None for a rank without shards, and for all ranks of a
            collective whose start skew is unknown because a measurement of the plan failed.
    """

    samples: list[Sample]
    sample_ids: list[tuple[str | None, ...]]

    @classmethod
    def of(cls, found: Sequence[Sequence[Sample | None]]) -> Self:
        """Collect the samples `found` per plan and rank."""
        distinct = {sample.sample_id: sample for samples in found for sample in samples if sample is not None}
        ids = [tuple(None if sample is None else sample.sample_id for sample in samples) for samples in found]
        return cls(list(distinct.values()), ids)


def plans_frame(plans: Sequence[Plan]) -> pd.DataFrame:
    """`search.plans`: one row per shard, `task_id, sharder, table, column_offset, embedding_dim, rank`."""
    columns = ["task_id", "sharder", "table", "column_offset", "embedding_dim", "rank"]
    frames = [plan.to_frame() for plan in plans]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def session_marks(plans: Sequence[Plan]) -> dict[str, str]:
    """Per task id, a hash of all its plans.

    Sample ids contain it, so that records of earlier runs are used only if they measured the same plans of the task.
    The plans of a task are then always measured together, so that the machine's drift affects all of them alike.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for plan in plans:
        found[plan.task.task_id].append(repr(sorted(zip(map(_shard_key, plan.shards), plan.ranks, strict=True))))
    return {task_id: _digest("\n".join(sorted(texts))) for task_id, texts in found.items()}


def rank_compute_samples(plans: Sequence[Plan], marks: Marks = NO_MARKS) -> PlanSamples[ComputeSample]:
    """One compute sample per rank; ranks with equal tables, widths, batch sizes, optimizers and marks share one."""
    ranks = [
        [_rank_sample(shards, plan.task, marks.get(plan.task.task_id, "")) for shards in plan.shards_by_rank]
        for plan in plans
    ]
    return PlanSamples.of(ranks)


def backward_comm_samples(plans: Sequence[Plan], marks: Marks = NO_MARKS) -> PlanSamples[CommSample]:
    """Collectives of the plans, with start skews of 0; only their backward costs are used."""
    return _collectives(plans, [(0.0,) * plan.task.world_size for plan in plans], marks)


def forward_comm_samples(
    plans: Sequence[Plan],
    compute_ms: Sequence[Sequence[float]],
    backward_comm_ms: Sequence[Sequence[float]],
    marks: Marks = NO_MARKS,
) -> PlanSamples[CommSample]:
    """Collectives with the start skew that follows from compute and backward communication costs.

    Args:
        plans: P plans.
        compute_ms: cost per plan and rank; NaN if the measurement failed.
        backward_comm_ms: cost per plan and rank; NaN if the measurement failed.
        marks: see `session_marks`.
    """
    skews: list[tuple[float, ...] | None] = []
    for compute, backward in zip(compute_ms, backward_comm_ms, strict=True):
        start_skew = np.round(start_skew_ms(compute, backward), _SKEW_DECIMALS)
        skews.append(tuple(start_skew.tolist()) if np.isfinite(start_skew).all() else None)
    return _collectives(plans, skews, marks)


def measured_compute_ms(ranks: PlanSamples[ComputeSample], compute_costs: pd.DataFrame) -> list[tuple[float, ...]]:
    """Forward + backward compute cost per plan and rank; 0 for an empty rank, NaN if the measurement failed."""
    measured = compute_costs[compute_costs["error"].isna()].set_index("sample_id")
    total = (measured["forward_ms"] + measured["backward_ms"]).to_dict()
    return [tuple(0.0 if name is None else total.get(name, np.nan) for name in names) for names in ranks.sample_ids]


def measured_comm_ms(
    collectives: PlanSamples[CommSample], comm_costs: pd.DataFrame, direction: str
) -> list[tuple[float, ...]]:
    """Cost of one direction ("forward" or "backward") per plan and rank; NaN if the measurement failed."""
    measured = comm_costs[comm_costs["error"].isna()]
    cost = measured.set_index(["sample_id", "rank"])[f"{direction}_ms"].to_dict()
    return [
        tuple(cost.get((name, rank), np.nan) for rank, name in enumerate(names)) for names in collectives.sample_ids
    ]


def _rank_sample(shards: Sequence[Shard], task: ShardingTask, mark: str) -> ComputeSample | None:
    """The sample of a rank, None for an empty rank; the sample id is a hash of everything that the cost depends on."""
    if not shards:
        return None
    keyed = sorted(((_shard_key(shard), shard) for shard in shards), key=lambda pair: pair[0])
    text = "\n".join([str(task.batch_size), task.optimizer, *(key for key, _ in keyed), *filter(None, [mark])])
    return ComputeSample(f"rank-{_digest(text)}", task.batch_size, tuple(shard for _, shard in keyed), task.optimizer)


def _shard_key(shard: Shard) -> str:
    table = shard.table
    profile = (table.num_embeddings, table.pooling_factor, table.unique_rows, table.reuse, table.data_type)
    return repr((table.name, shard.embedding_dim, *profile))


def _collectives(
    plans: Sequence[Plan], skews: Sequence[tuple[float, ...] | None], marks: Marks
) -> PlanSamples[CommSample]:
    found = [None if skew is None else _collective(plan, skew, marks) for plan, skew in zip(plans, skews, strict=True)]
    return PlanSamples.of([[sample] * plan.task.world_size for plan, sample in zip(plans, found, strict=True)])


def _collective(plan: Plan, skew_ms: tuple[float, ...], marks: Marks) -> CommSample:
    mark = marks.get(plan.task.task_id)
    content = (plan.task.batch_size, plan.dim_sums, skew_ms)
    name = f"collective-{_digest(repr((*content, mark) if mark else content))}"
    return CommSample(name, plan.task.batch_size, plan.dim_sums, skew_ms)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
