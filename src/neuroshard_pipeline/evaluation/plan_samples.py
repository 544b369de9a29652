"""Plans as samples to measure, and measured and predicted costs side by side.

Measuring a plan has three phases, as the start skew of the forward collective is known only after the first two:
the compute of every rank (one device at a time), the backward collectives (no skew), the forward collectives with
`start skew = measured compute + measured backward communication - minimum over ranks` [Zha2023] §4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Shard

PLAN_COLUMNS = ["task_id", "sharder", "table", "column_offset", "embedding_dim", "rank"]
PREDICTED_COLUMNS = ["predicted_compute_ms", "predicted_forward_comm_ms", "predicted_backward_comm_ms"]
MEASURED_COLUMNS = ["measured_compute_ms", "measured_forward_comm_ms", "measured_backward_comm_ms"]

#: Start skews closer than this are the same sample: a tenth of a microsecond, far below any clock's noise.
_SKEW_DECIMALS = 4


@dataclass(frozen=True)
class RankSamples:
    """What to run to measure the compute of plans; ranks with the same shards share a sample.

    Attributes:
        samples: distinct samples.
        sample_ids: per plan and rank, the sample's id; None for an empty rank, which computes nothing.
    """

    samples: list[ComputeSample]
    sample_ids: list[tuple[str | None, ...]]


@dataclass(frozen=True)
class CollectiveSamples:
    """What to run to measure the collectives of plans; plans with the same volumes and skews share a sample.

    Attributes:
        samples: distinct samples.
        sample_ids: per plan, the sample's id; None where an earlier phase failed.
    """

    samples: list[CommSample]
    sample_ids: list[str | None]


def plans_frame(plans: Sequence[Plan]) -> pd.DataFrame:
    """All plans, one row per shard: `task_id, sharder, table, column_offset, embedding_dim, rank`."""
    if not plans:
        return pd.DataFrame(columns=PLAN_COLUMNS)
    return pd.concat([plan.to_frame() for plan in plans], ignore_index=True)


def rank_compute_samples(plans: Sequence[Plan]) -> RankSamples:
    """One compute sample for every distinct multiset of (table, width) that some rank of some plan holds."""
    samples: dict[str, ComputeSample] = {}
    sample_ids = []
    for plan in plans:
        ids: list[str | None] = []
        for shards in plan.shards_by_rank:
            if not shards:
                ids.append(None)
                continue
            sample = _rank_sample(shards, plan.task.batch_size, plan.task.optimizer)
            samples.setdefault(sample.sample_id, sample)
            ids.append(sample.sample_id)
        sample_ids.append(tuple(ids))
    return RankSamples(list(samples.values()), sample_ids)


def backward_comm_samples(plans: Sequence[Plan]) -> CollectiveSamples:
    """Collectives without start skew: their backward cost is what counts."""
    return _collectives(plans, [(0.0,) * plan.task.world_size for plan in plans])


def forward_comm_samples(
    plans: Sequence[Plan], compute_ms: Sequence[Sequence[float]], backward_comm_ms: Sequence[Sequence[float]]
) -> CollectiveSamples:
    """Collectives with the start skew that measured compute and backward communication cause.

    Args:
        plans: P plans.
        compute_ms: per plan and rank; NaN where the measurement failed.
        backward_comm_ms: per plan and rank; NaN where the measurement failed.
    """
    skews: list[tuple[float, ...] | None] = []
    for compute, backward in zip(compute_ms, backward_comm_ms, strict=True):
        ready = np.asarray(compute) + np.asarray(backward)
        start_skew = np.round(ready - ready.min(), _SKEW_DECIMALS)
        skews.append(tuple(start_skew.tolist()) if np.isfinite(start_skew).all() else None)
    return _collectives(plans, skews)


def measured_compute_ms(ranks: RankSamples, compute_costs: pd.DataFrame) -> list[tuple[float, ...]]:
    """Forward + backward compute per plan and rank out of `measure.compute_costs`.

    An empty rank computes 0; NaN stands for a measurement that failed.
    """
    measured = compute_costs[compute_costs["error"].isna()].set_index("sample_id")
    total = (measured["forward_ms"] + measured["backward_ms"]).to_dict()
    return [tuple(0.0 if name is None else total.get(name, np.nan) for name in names) for names in ranks.sample_ids]


def measured_comm_ms(
    plans: Sequence[Plan], collectives: CollectiveSamples, comm_costs: pd.DataFrame, direction: str
) -> list[tuple[float, ...]]:
    """`direction` ("forward" or "backward") cost per plan and rank out of `measure.comm_costs`; NaN for a failure."""
    measured = comm_costs[comm_costs["error"].isna()]
    cost = dict(
        zip(zip(measured["sample_id"], measured["rank"], strict=True), measured[f"{direction}_ms"], strict=True)
    )
    return [
        tuple(cost.get((name, rank), np.nan) for rank in range(plan.task.world_size))
        for plan, name in zip(plans, collectives.sample_ids, strict=True)
    ]


def plan_costs_frame(
    plans: Sequence[Plan],
    compute_ms: Sequence[Sequence[float]] | None = None,
    forward_comm_ms: Sequence[Sequence[float]] | None = None,
    backward_comm_ms: Sequence[Sequence[float]] | None = None,
) -> pd.DataFrame:
    """`search.plan_costs`: one row per plan and rank, predicted and measured costs; null where there is none.

    Args:
        plans: P plans.
        compute_ms: measured compute per plan and rank, or None where nothing was measured; so also
        forward_comm_ms: and
        backward_comm_ms: the two measured communication costs.
    """
    frames = []
    for index, plan in enumerate(plans):
        measured = (compute_ms, forward_comm_ms, backward_comm_ms)
        columns: dict[str, Any] = {
            "task_id": plan.task.task_id,
            "sharder": plan.sharder,
            "rank": np.arange(plan.task.world_size),
            "memory_bytes": np.array(plan.memory_bytes, dtype=np.int64),
            **dict(zip(PREDICTED_COLUMNS, _predicted(plan), strict=True)),
        }
        for name, values in zip(MEASURED_COLUMNS, measured, strict=True):
            columns[name] = np.nan if values is None else np.asarray(values[index], dtype=np.float64)
        frames.append(pd.DataFrame(columns))
    if not frames:
        return pd.DataFrame(
            columns=["task_id", "sharder", "rank", "memory_bytes", *PREDICTED_COLUMNS, *MEASURED_COLUMNS]
        )
    return pd.concat(frames, ignore_index=True)


def _predicted(plan: Plan) -> tuple[tuple[float, ...], ...]:
    if plan.predicted is None:
        return ((np.nan,) * plan.task.world_size,) * len(PREDICTED_COLUMNS)
    return plan.predicted.compute_ms, plan.predicted.forward_comm_ms, plan.predicted.backward_comm_ms


def _rank_sample(shards: Sequence[Shard], batch_size: int, optimizer: str) -> ComputeSample:
    """The sample of a rank; its id is a hash of everything that a lookup of its shards depends on."""
    keyed = sorted(((_shard_key(shard), shard) for shard in shards), key=lambda pair: pair[0])
    text = "\n".join([str(batch_size), optimizer, *(key for key, _ in keyed)])
    return ComputeSample(f"rank-{_digest(text)}", batch_size, tuple(shard for _, shard in keyed), optimizer)


def _shard_key(shard: Shard) -> str:
    table = shard.table
    profile = (table.num_embeddings, table.pooling_factor, table.unique_rows, table.reuse, table.data_type)
    return repr((table.name, shard.embedding_dim, *profile))


def _collectives(plans: Sequence[Plan], skews: Sequence[tuple[float, ...] | None]) -> CollectiveSamples:
    samples: dict[str, CommSample] = {}
    sample_ids: list[str | None] = []
    for plan, start_skew_ms in zip(plans, skews, strict=True):
        if start_skew_ms is None:
            sample_ids.append(None)
            continue
        name = f"collective-{_digest(repr((plan.task.batch_size, plan.dim_sums, start_skew_ms)))}"
        samples.setdefault(name, CommSample(name, plan.task.batch_size, plan.dim_sums, start_skew_ms))
        sample_ids.append(name)
    return CollectiveSamples(list(samples.values()), sample_ids)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
